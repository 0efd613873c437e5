"""How far the features of another host are from those of the engine, which will verify.

Legend: M rows, A anchors, D hidden size, V draft vocabulary.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from drafthead.backbone.handle import Backbone
from drafthead.training.answers import Answer, write_atomic
from drafthead.training.features import FeatureStore, kept_rows

CHECKED_ANSWERS = 8
COMPARISON = "host.json"


@dataclass(frozen=True)
class Nearness:
    """Of rows: cosine, mean and lowest, and the largest error relative to its row's largest value.

    An error of 1 is as large as the row.
    """

    cosine: float
    lowest_cosine: float
    error: float

    @classmethod
    def of(cls, found_MD: NDArray[np.float32], expected_MD: NDArray[np.float32]) -> Nearness:
        """Compare rows; those of zeros count as equal where both are."""
        scale = np.linalg.norm(found_MD, axis=1) * np.linalg.norm(expected_MD, axis=1)
        products = (found_MD * expected_MD).sum(axis=1)
        cosine = np.where(scale > 0, products / np.maximum(scale, 1e-30), 1.0)
        largest = np.maximum(np.abs(expected_MD).max(axis=1), 1e-30)
        errors = np.abs(found_MD - expected_MD).max(axis=1) / largest
        return cls(float(cosine.mean()), float(cosine.min()), float(errors.max()))

    def text(self) -> str:
        """For people."""
        return (
            f"cosine {self.cosine:.5f}, at least {self.lowest_cosine:.4f}, error {self.error:.3f}"
        )


@dataclass(frozen=True)
class Comparison:
    """A host beside the engine on some answers.

    keys, values: None where the head reads no layer.  same_choice: share of anchors whose likeliest
    token of the draft vocabulary is the same.
    """

    answers: int
    anchors: int
    states: Nearness
    keys: Nearness | None
    values: Nearness | None
    same_choice: float

    def content(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def text(self) -> str:
        """For people."""
        parts = {"states": self.states, "keys": self.keys, "values": self.values}
        distances = [f"{name} {near.text()}" for name, near in parts.items() if near is not None]
        return (
            f"The host beside the engine on {self.answers} answers, {self.anchors} anchors: "
            f"{'; '.join(distances)}; the same likeliest token at {self.same_choice:.1%} of anchors"
        )


def compare_with_engine(
    backbone: Backbone,
    features: FeatureStore,
    answers: Sequence[Answer],
    kv_layers: Sequence[int],
    token_ids: NDArray[np.int64],
    run: Path,
) -> Comparison:
    """Compute the features of some answers by the engine too, and record how far they are apart.

    Args:
        backbone: the engine's.
        features: built by another host, of `answers`.
        answers: those of `features`, in its order; some, spread over all, are compared.
        kv_layers: backbone layers whose K and V are compared; may be empty.
        token_ids: the draft vocabulary.
        run: folder that host.json is written to.
    """
    usable = [index for index, answer in enumerate(answers) if kept_rows(answer)]
    places = usable[:: max(1, len(usable) // CHECKED_ANSWERS)][:CHECKED_ANSWERS]
    with tempfile.TemporaryDirectory() as folder:
        chosen = [answers[place] for place in places]
        engine = FeatureStore(Path(folder), backbone, chosen, kv_layers)
        engine.build()
        expected = [np.array(engine.hidden(at)) for at in range(len(places))]
        expected_kv = [np.array(engine.kv(at)) for at in range(len(places))]
    states = np.concatenate([features.hidden(place) for place in places]).astype(np.float32)
    wanted = np.concatenate(expected).astype(np.float32)
    kv = np.concatenate([features.kv(place) for place in places]).astype(np.float32)
    wanted_kv = np.concatenate(expected_kv).astype(np.float32)
    rows_VD = backbone.native.output_rows(token_ids.astype(np.int32))
    choices, wanted_choices = ((part @ rows_VD.T).argmax(axis=1) for part in (states, wanted))
    keys, values = (
        Nearness.of(_by_head(kv[:, :, part]), _by_head(wanted_kv[:, :, part]))
        if len(kv_layers)
        else None
        for part in (0, 1)
    )
    comparison = Comparison(
        len(places), len(states), Nearness.of(states, wanted), keys, values,
        float((choices == wanted_choices).mean()),
    )  # fmt: skip
    run.mkdir(parents=True, exist_ok=True)
    write_atomic(run / COMPARISON, json.dumps(comparison.content(), indent=2) + "\n")
    return comparison


def _by_head(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """One row for each position, layer and head."""
    return values.reshape(-1, values.shape[-1])
