"""How a head's weights move: AdamW or Muon, and the average of the weights on the way.

With `average = a` above 0 the averaged weights are the ones that are evaluated and exported: after
update t they move 1 / (1 + a t) of the way to the weights, so that about the last share a of the
training so far counts, however long it is (power-function averages: arXiv 2312.02696; a = 1 is the
plain mean, a = 0 none).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from drafthead.errors import TrainingError
from drafthead.training.recipe import TrainRecipe

BETAS = (0.9, 0.95)
TABLES = ("markov.", "model.embed_tokens.")  # matrices whose rows belong to tokens
AVERAGE = "average"


def _muon(matrices: list[Tensor], recipe: TrainRecipe) -> torch.optim.Optimizer:
    """Muon: momentum, made orthogonal (Newton-Schulz), in the size of an AdamW step.

    The size is 0.2 sqrt(max(rows, columns)) (arXiv 2502.16982), so that one rate serves all shapes.

    Raises:
        TrainingError: the installed torch has none.
    """
    if not hasattr(torch.optim, "Muon"):
        raise TrainingError(
            f'optimizer = "muon" needs torch 2.9 or later, found {torch.__version__}; update torch '
            'or use "adamw".'
        )
    return torch.optim.Muon(
        matrices, lr=recipe.muon_lr, weight_decay=recipe.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip


class HeadOptimizer:
    """Updates the weights of one head, or of a standalone drafter.

    Norms, biases and tables whose rows belong to tokens always go by AdamW without decay.
    """

    def __init__(self, head: nn.Module, recipe: TrainRecipe) -> None:
        self._weights = dict(head.named_parameters())
        matrices, others = list[Tensor](), list[Tensor]()
        for name, weight in self._weights.items():
            table = weight.dim() != 2 or name.startswith(TABLES)
            (others if table else matrices).append(weight)
        groups = [{"params": others, "weight_decay": 0.0}]
        self._parts: list[torch.optim.Optimizer] = []
        if recipe.optimizer == "muon":
            self._parts.append(_muon(matrices, recipe))
        else:
            groups.insert(0, {"params": matrices, "weight_decay": recipe.weight_decay})
        self._parts.append(torch.optim.AdamW(groups, lr=recipe.lr, betas=BETAS, foreach=False))
        self._peaks = [part.defaults["lr"] for part in self._parts]
        self._share = recipe.average
        self._averages: dict[str, Tensor] = {}

    def set_rate(self, share: float) -> None:
        """Set the learning rates to a share of their peaks."""
        for part, peak in zip(self._parts, self._peaks, strict=True):
            for group in part.param_groups:
                group["lr"] = peak * share

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self._parts:
            part.zero_grad()

    @torch.no_grad()
    def step(self, done: int) -> None:
        """Move the weights by their gradients. done: steps of this training before this one."""
        for part in self._parts:
            part.step()
        if not self._share:
            return
        for name, weight in self._weights.items():
            average = self._averages.setdefault(name, weight.detach().clone())
            average.lerp_(weight.detach(), 1.0 / (1.0 + self._share * done))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the head its averaged weights for a while, where the recipe asks for averages."""
        trained = {name: self._weights[name].data for name in self._averages}
        for name, average in self._averages.items():
            self._weights[name].data = average
        try:
            yield
        finally:
            for name, weight in trained.items():
                self._weights[name].data = weight

    def use_average(self) -> None:
        """Give the head its averaged weights for good."""
        for name, average in self._averages.items():
            self._weights[name].data = average

    def tensors(self) -> dict[str, Tensor]:
        """Moments and averages, as "kind/weight name"."""
        saved = {f"{AVERAGE}/{name}": average for name, average in self._averages.items()}
        for part, name, weight in self._owned():
            moments = part.state.get(weight, {})
            saved.update({f"{kind}/{name}": value for kind, value in moments.items()})
        return saved

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        split = [(*key.split("/", 1), value) for key, value in saved.items()]
        self._averages = {
            name: value.to(self._weights[name].device)
            for kind, name, value in split
            if kind == AVERAGE
        }
        for part, owned, weight in self._owned():
            moments = {kind: value for kind, name, value in split if name == owned}
            moments.pop(AVERAGE, None)
            if moments:  # a count of steps, a scalar, stays with the processor
                part.state[weight] = {
                    kind: value.to(weight.device) if value.dim() else value
                    for kind, value in moments.items()
                }

    def _owned(self) -> Iterator[tuple[torch.optim.Optimizer, str, Tensor]]:
        """Each weight with its name and the optimizer that moves it."""
        names = {weight: name for name, weight in self._weights.items()}
        for part in self._parts:
            for group in part.param_groups:
                for weight in group["params"]:
                    yield part, names[weight], weight
