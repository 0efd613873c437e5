"""Training that goes on from an existing head: its weights and its draft vocabulary are taken over.

The vocabulary is never chosen anew. What a head has learned to say is tied to its ids, and a Markov
bias has a row for each place of it: with another vocabulary, or the same ids in another order,
acceptance falls to nothing while the loss still looks well.

A head may grow: the recipe names the layers it reads and more. A new layer begins as a copy of the
layer it reads whose output matrices are zero, so that the grown head drafts what the old one did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from drafthead.backbone.handle import Backbone
from drafthead.errors import TrainingError
from drafthead.heads.config import HeadConfig
from drafthead.heads.package import WEIGHTS, HeadPackage, target_mismatch
from drafthead.heads.store import embedded_heads
from drafthead.training.head_shape import head_sizes
from drafthead.training.modules import FrozenMtpHead
from drafthead.training.quantize import dequantize
from drafthead.training.recipe import Recipe

# What a training may change: these shape no tensor, and layers may be added.
OF_A_TRAINING = {
    "target", "training", "trained_steps", "min_confidence", "prompt_tokens", "quantization",
    "calibration", "kv_layers",
}  # fmt: skip
SHAPE = [field.name for field in fields(HeadConfig) if field.name not in OF_A_TRAINING]
OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")  # what a layer adds to the state


def layer_places(old: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """Where each of the old layers is among the new ones, in order; None where one is not."""
    places, after = list[int](), 0
    for layer in old:
        if layer not in new[after:]:
            return None
        places.append(new.index(layer, after))
        after = places[-1] + 1
    return places


@dataclass(frozen=True)
class StartHead:
    """The head that a training begins with. digest: SHA-256 of its model.safetensors."""

    package: HeadPackage
    digest: str

    @classmethod
    def open(cls, name: str, recipe: Recipe, backbone: Backbone) -> StartHead:
        """Read a head and see that the recipe makes one of its shape on this backbone.

        The backbone may have other weights than the head's own, as a fine-tune of it has.

        Args:
            name: the folder of a head package, or the name of a head that ships with the package.
            recipe: of the training; its [head] describes the same head.
            backbone: that the training is for.

        Raises:
            TrainingError: another architecture, tokenizer, draft vocabulary size or shape; named.
            HeadError: there is no such package, or it is damaged.
        """
        shipped = {path.name: path for path in embedded_heads()}
        folder = Path(name)
        package = HeadPackage.load(folder if folder.exists() else shipped.get(name, folder))
        found = package.config
        here = replace(found.target, fingerprint=backbone.fingerprint)
        reason = target_mismatch(replace(found, target=here), backbone)
        if reason is not None:
            raise TrainingError(f"--start-from {name}: {reason}")
        wanted = head_sizes(recipe, backbone, recipe.head.draft_vocab)
        for field in SHAPE:
            if getattr(found, field) != getattr(wanted, field):
                raise TrainingError(
                    f"--start-from {name}: a training keeps the head's shape, but its {field} is "
                    f"{getattr(found, field)} and the recipe asks for {getattr(wanted, field)} on "
                    f"{backbone.name}; change the recipe's [head] or start from another head."
                )
        if layer_places(found.kv_layers, wanted.kv_layers) is None:
            raise TrainingError(
                f"--start-from {name}: a training keeps the layers of the head, which read "
                f"{[*found.kv_layers]}, and may add others; the recipe's kv_layers are "
                f"{[*wanted.kv_layers]}."
            )
        weights = (package.path / WEIGHTS).read_bytes()
        return cls(package, hashlib.sha256(weights).hexdigest())

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """The head's draft vocabulary in its own order, (V,)."""
        return self.package.tensors["draft_token_ids"].astype(np.int64)

    @property
    def record(self) -> Mapping[str, str]:
        """What the package that comes of the training says about its beginning."""
        target = self.package.config.target
        return {
            "head": self.package.path.resolve().name, "weights_sha256": self.digest,
            "target": target.name, "target_fingerprint": target.fingerprint,
        }  # fmt: skip

    def going_on(self, config: HeadConfig) -> HeadConfig:
        """The config of the new head: it records its beginning and doubts as the old one did."""
        training = {**config.training, "started_from": self.record}
        return replace(config, training=training, min_confidence=self.package.config.min_confidence)

    def grows(self, kv_layers: Sequence[int]) -> bool:
        """Whether a head that reads these layers has more of them."""
        return len(kv_layers) > len(self.package.config.kv_layers)

    def load_into(self, head: FrozenMtpHead, kv_layers: Sequence[int]) -> None:
        """Set the weights of a new head to the f32 values that the package's blocks stand for.

        Its layers read `kv_layers`; those that the package has not keep their weights, but for the
        output matrices, which become zero.
        """
        config, tensors = self.package.config, self.package.tensors
        places = layer_places(config.kv_layers, kv_layers)
        assert places is not None, "`open` refuses other layers"
        weights = head.state_dict()
        for layer in set(range(len(kv_layers))) - set(places):
            for name in (f"model.layers.{layer}.{part}" for part in OUTPUTS):
                if name in weights:  # a layer without attention has but one
                    weights[name] = torch.zeros_like(weights[name])
        for name in config.vectors():
            weights[_moved(name, places)] = torch.from_numpy(np.array(tensors[name]))
        for name in config.matrices():
            values = dequantize(tensors[name], tensors[name + "_scale"])
            weights[_moved(name, places)] = torch.from_numpy(values)
        head.load_state_dict(weights)


def _moved(name: str, places: Sequence[int]) -> str:
    """The name of a tensor of the old head in the new one, whose layers are at other places."""
    prefix = "model.layers."
    if not name.startswith(prefix):
        return name
    layer, rest = name.removeprefix(prefix).split(".", 1)
    return f"{prefix}{places[int(layer)]}.{rest}"
