"""The backbone's layers in torch: for what the engine does not show, and for an accelerator.

Legend: B sequences, T tokens of the longest, A anchors, D hidden size, R positions kept of a
sequence, L layers asked for, G KV heads, H head size. Weights are f32 and activations are not
rounded, so states are close to the engine's and not its bits (host_check.py says how close).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from drafthead.backbone.handle import Backbone
from drafthead.training.answers import Answer
from drafthead.training.device import usable_device
from drafthead.training.features import kept_rows
from drafthead.training.library import dequantised, file_model, folder_model


@dataclass(frozen=True)
class Inside:
    """What a run does inside; each (T, D), by layer.

    entering: what enters the layer; one more, what enters the final norm.  attended: what its
    attention's output projection gives.
    """

    entering: list[Tensor]
    attended: list[Tensor]


class TorchHost:
    """The first layers of a backbone of any family.

    dtype: of the matrix products; bf16 halves the time where the processor has it.  weights: a
    folder with the model's own safetensors, in place of the file's dequantised tensors.

    Raises:
        TrainingError: transformers is not installed, has no such model, or the folder holds
            another one.
    """

    def __init__(
        self,
        backbone: Backbone,
        layers: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        weights: Path | None = None,
    ) -> None:
        self.spec = backbone.spec
        self._gguf, self._native = backbone.gguf, backbone.native
        self._device = usable_device(device)
        count = layers or self.spec.n_layers
        self._model: Any = (
            folder_model(weights, backbone) if weights else file_model(backbone, count)
        )
        self._own_embeddings = weights is not None
        for module in self._model.modules():
            if isinstance(module, nn.Linear):
                module.to(dtype)  # so that no run casts them
        self._model.to(self._device)
        enabled = dtype != torch.float32
        self._autocast = torch.autocast(self._device.type, dtype, enabled=enabled)

    def values(self, name: str) -> Tensor:
        """A tensor of the file in f32; query and key rows in the split-half rotary layout."""
        return dequantised(self._gguf, self.spec, name)

    def states(self, tokens: Sequence[int]) -> Tensor:
        """The states of a sequence after the final norm, (T, D)."""
        return self._forward([tokens])[0][0].float().cpu()

    def inside(self, tokens: Sequence[int]) -> Inside:
        """What happens at each layer while a sequence runs."""
        with _watched(self._model) as found:
            self._forward([tokens])
        return found

    def show(
        self, answers: Sequence[Answer], kv_layers: Sequence[int]
    ) -> list[tuple[NDArray[np.float16], NDArray[np.float16]]]:
        """What features.py keeps of each answer: states (A, D), K and V (R, L, 2, G, H)."""
        tokens = [[*a.prompt_tokens, *a.answer][: kept_rows(a)] for a in answers]
        states_BTD, cache = self._forward(tokens)
        kept = [[cache.layers[at].keys, cache.layers[at].values] for at in kv_layers]
        shown = []
        for row, answer in enumerate(answers):
            end, first = len(tokens[row]), len(answer.prompt_tokens) - 1
            kv = torch.empty(end, len(kept), 2, self.spec.n_kv_heads, self.spec.head_dim).half()
            for at, pair in enumerate(kept):
                for part, values_BGTH in enumerate(pair):
                    kv[:, at, part] = values_BGTH[row, :, :end].transpose(0, 1)
            hidden = states_BTD[row, first:end].half().cpu()
            shown.append((hidden.numpy(), kv.numpy()))
        return shown

    @torch.no_grad()
    def _forward(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Any]:
        """States (B, T, D) and the library's cache; padding is last, where no row sees it."""
        ids_BT = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.int32)
        for row, tokens in enumerate(sequences):
            ids_BT[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        inputs = {"input_ids": ids_BT.to(self._device)}
        if not self._own_embeddings:
            table = self._native.embed(ids_BT.flatten().numpy())
            embeddings_BTD = torch.from_numpy(table.copy()).unflatten(0, ids_BT.shape)
            inputs = {"inputs_embeds": embeddings_BTD.to(self._device)}
        with self._autocast:
            states, cache = self._model(**inputs, use_cache=True)[:2]
        return states, cache


@contextmanager
def _watched(model: Any) -> Iterator[Inside]:
    """Collect what a model does inside while it runs one sequence."""
    found = Inside([], [])

    def entered(_module: Any, inputs: tuple[Tensor, ...]) -> None:
        found.entering.append(inputs[0][0].float().cpu())

    def attended(_module: Any, _inputs: Any, outputs: tuple[Tensor, ...]) -> None:
        found.attended.append(outputs[0][0].float().cpu())

    hooks = [m.register_forward_pre_hook(entered) for m in [*model.layers, model.norm]]
    hooks += [layer.self_attn.register_forward_hook(attended) for layer in model.layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


class TorchFeatures:
    """A source of features: the host, made at the first answer it is asked for."""

    def __init__(
        self, backbone: Backbone, device: str = "cpu", weights: Path | None = None
    ) -> None:
        usable_device(device)
        self._backbone, self._device, self._weights = backbone, device, weights
        self.name = "torch with weights of a folder" if weights else "torch"

    @cached_property
    def host(self) -> TorchHost:
        """The host of all layers."""
        return TorchHost(self._backbone, device=self._device, weights=self._weights)

    def show(
        self, answers: Sequence[Answer], kv_layers: Sequence[int]
    ) -> list[tuple[NDArray[np.float16], NDArray[np.float16]]]:
        """As TorchHost.show."""
        return self.host.show(answers, kv_layers)
