"""A small llama to train from scratch, in the place where the trainer holds a head.

Legend: A anchors, B sequences, T tokens, V vocabulary, W width of the model, D of the backbone.

An anchor is a place where the runtime could begin a draft (data.py). The model reads the text up to
the newest token itself, so the state at i + 1 is to give the first token of that draft: the very
labels of a head's first step. Its output rows are its own embeddings; they learn as the columns do
that a head may add to the backbone's rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from drafthead.training.answers import Answer
from drafthead.training.data import anchor_table
from drafthead.training.device import CPU
from drafthead.training.draft_shape import DraftShape
from drafthead.training.modules import Batch, SequenceKv

RMS_EPS = 1e-5
GROUP_TOKENS = 2048  # that run at once, padding included


@dataclass(frozen=True)
class TextBatch(Batch):
    """The anchors of several texts, shortest text first; nothing of the backbone is read.

    texts: (B, T) token ids, those of about one length together.  places: of each, the row in
    (B T) whose state is an anchor's.
    """

    texts: Sequence[Tensor] = ()
    places: Sequence[Tensor] = ()


class TextBatches:
    """Batches of answers, by place in the list, on the processor unless `to` says otherwise."""

    softcap = 0.0

    def __init__(self, answers: Sequence[Answer], vocab_size: int, dtype: torch.dtype) -> None:
        self._answers = answers
        self._device, self._rows_V0 = CPU, torch.zeros(vocab_size, 0, dtype=dtype)

    def to(self, device: torch.device) -> TextBatches:
        """Make the batches on this device from now on."""
        self._device, self._rows_V0 = device, self._rows_V0.to(device)
        return self

    def __call__(self, indices: Sequence[int]) -> TextBatch:
        """The batch of some answers."""
        answers = sorted((self._answers[index] for index in indices), key=_length)
        tables = [anchor_table(answer.prompt_tokens, answer.answer, 1) for answer in answers]
        bounds = np.cumsum([0, *(len(table.positions_A) for table in tables)]).tolist()
        nothing, groups = (
            self._rows_V0.new_zeros(0),
            list(_groups([_length(answer) for answer in answers])),
        )
        texts, places = [], []
        for group in groups:
            longest = max(_length(answers[index]) for index in group)
            ids_BT = torch.zeros(len(group), longest, dtype=torch.int64)
            for row, index in enumerate(group):
                tokens = [*answers[index].prompt_tokens, *answers[index].answer]
                ids_BT[row, : len(tokens)] = torch.tensor(tokens)
            rows = [
                row * longest + tables[index].positions_A + 1 for row, index in enumerate(group)
            ]
            texts.append(ids_BT.to(self._device))
            places.append(self._put(rows))
        return TextBatch(
            hidden_AD=torch.zeros(bounds[-1], 0, device=self._device),
            embeddings_KAD=nothing,
            inputs_KA=self._put([t.inputs_KA for t in tables]),
            labels_KA=self._put([t.labels_KA for t in tables]),
            positions_A=self._put([t.positions_A for t in tables]),
            sequences=[
                SequenceKv(slice(begin, end), nothing, nothing) for begin, end in pairwise(bounds)
            ],
            rows_VD=self._rows_V0,
            texts=texts,
            places=places,
        )

    def _put(self, parts: Sequence[NDArray[np.int64]]) -> Tensor:
        """The parts side by side, on the device."""
        return torch.from_numpy(np.concatenate(parts, axis=-1)).to(self._device)


def _length(answer: Answer) -> int:
    return len(answer.prompt_tokens) + len(answer.answer)


def _groups(lengths: Sequence[int]) -> Iterable[list[int]]:
    """Places of ascending lengths, in runs of at most GROUP_TOKENS tokens with their padding."""
    group: list[int] = []
    for index, length in enumerate(lengths):
        if group and (len(group) + 1) * length > GROUP_TOKENS:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


class DraftModel(nn.Module):
    """A llama with tied embeddings; transformers' own layers."""

    def __init__(self, shape: DraftShape, rope_base: float) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaModel

        self.shape, self.rope_base = shape, rope_base
        config = LlamaConfig(
            vocab_size=shape.vocab_size, hidden_size=shape.width, num_hidden_layers=shape.layers,
            intermediate_size=shape.d_ff, num_attention_heads=shape.n_heads,
            num_key_value_heads=shape.n_kv_heads, head_dim=shape.head_dim, rms_norm_eps=RMS_EPS,
            initializer_range=first_size(shape.width), use_cache=False, pad_token_id=None,
            rope_parameters={"rope_type": "default", "rope_theta": rope_base},
        )  # fmt: skip
        self.model = LlamaModel(config)

    @property
    def learned_rows(self) -> Tensor:
        """The embeddings, which are the output rows too, (V, W)."""
        rows: Tensor = self.model.embed_tokens.weight
        return rows

    def forward(self, batch: TextBatch) -> list[Tensor]:
        """The states of one step, (A, W) f32. Padding is last, where no row sees it."""
        states = [
            self.model(input_ids=ids_BT).last_hidden_state.flatten(0, 1)[rows]
            for ids_BT, rows in zip(batch.texts, batch.places, strict=True)
        ]
        return [torch.cat(states).float()]


def first_size(width: int) -> float:
    """Standard deviation of the first weights; with it, logits begin at about 0.5."""
    return 0.5 / math.sqrt(width)


@torch.no_grad()
def start_embeddings(
    model: DraftModel, rows_VD: NDArray[np.float32], answers: Iterable[Answer]
) -> None:
    """Begin with the backbone's output rows, seen in the directions in which they differ most.

    Tokens weigh as the root of how often the texts have them: a narrow table cannot keep all.

    Args:
        model: whose embeddings are set.
        rows_VD: the backbone's output rows.
        answers: the texts.
    """
    counts = np.ones(len(rows_VD))
    for answer in answers:
        np.add.at(counts, np.array([*answer.prompt_tokens, *answer.answer], np.int64), 1.0)
    weights = np.sqrt(counts)
    centred = rows_VD - (weights @ rows_VD / weights.sum()).astype(np.float32)
    covariance = (centred * weights[:, None].astype(np.float32)).T @ centred
    directions = np.linalg.eigh(covariance.astype(np.float64))[1][:, ::-1]
    table = model.model.embed_tokens.weight
    kept = min(table.shape[1], directions.shape[1])
    seen = torch.from_numpy(centred @ directions[:, :kept].astype(np.float32))
    table[:, :kept] = seen * (first_size(table.shape[1]) / seen.square().mean().sqrt())
