"""Training that goes on from an existing head: its weights and its draft vocabulary are taken over.

The vocabulary is never chosen anew. What a head has learned to say is tied to its ids, and a Markov
bias has a row for each place of it: with another vocabulary, or the same ids in another order,
acceptance falls to nothing while the loss still looks well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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

# What a training may change: these shape no tensor.
OF_A_TRAINING = {
    "target", "training", "trained_steps", "min_confidence", "prompt_tokens", "quantization",
    "calibration",
}  # fmt: skip
SHAPE = [field.name for field in fields(HeadConfig) if field.name not in OF_A_TRAINING]


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

    def load_into(self, head: FrozenMtpHead) -> None:
        """Set the weights of a new head to the f32 values that the package's blocks stand for."""
        config, tensors = self.package.config, self.package.tensors
        weights = {name: np.array(tensors[name]) for name in config.vectors()}
        for name in config.matrices():
            weights[name] = dequantize(tensors[name], tensors[name + "_scale"])
        head.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
