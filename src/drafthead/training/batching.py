"""From answers and features on disk to the tensors of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drafthead.training.answers import Answer
from drafthead.training.data import AnchorTable, DraftVocabulary, anchor_table
from drafthead.training.device import CPU
from drafthead.training.modules import Batch, SequenceKv


class Embeddings(Protocol):
    """The backbone's tables, dequantised to f32; ids are int32, results (n, D)."""

    def embed(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """Input embeddings."""

    def output_rows(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """Rows whose product with a state is the token's logit."""


class Features(Protocol):
    """What the backbone showed for each answer: states (A, D), K and V (R, L, 2, G, H)."""

    def hidden(self, index: int) -> NDArray[np.float16]:
        """States of the anchors of one answer."""

    def kv(self, index: int) -> NDArray[np.float16]:
        """Keys and values of one answer's positions."""


class BatchMaker:
    """Builds batches for a number of draft steps, on the processor unless `to` says otherwise.

    dtype: of keys, values and output rows.  softcap: of the backbone's logits, 0 is none.
    prompt_tokens: whether the head may draft what is outside the draft vocabulary and in the text
    it continues.
    """

    def __init__(
        self,
        tables: Embeddings,
        features: Features,
        answers: Sequence[Answer],
        vocabulary: DraftVocabulary,
        steps: int,
        dtype: torch.dtype,
        softcap: float = 0.0,
        prompt_tokens: bool = False,
    ) -> None:
        self._tables, self._features, self._answers = tables, features, answers
        self._vocabulary, self._steps, self._dtype = vocabulary, steps, dtype
        self._device = CPU
        self.rows_VD = self._output_rows(vocabulary.token_ids)
        self.softcap = softcap
        self._prompt_tokens = prompt_tokens

    def to(self, device: torch.device) -> BatchMaker:
        """Make the batches on this device from now on."""
        self._device, self.rows_VD = device, self.rows_VD.to(device)
        return self

    def __call__(self, indices: Sequence[int]) -> Batch:
        """The batch of the anchors of some answers."""
        tables = [self._table(index) for index in indices]
        inputs_KA = np.concatenate([table.inputs_KA for table in tables], axis=1)
        labels_KA = np.concatenate([table.labels_KA for table in tables], axis=1)
        positions = np.concatenate([table.positions_A for table in tables])
        hidden = np.concatenate([self._features.hidden(index) for index in indices])
        embeddings = self._tables.embed(inputs_KA.reshape(-1).astype(np.int32))
        more = self._more(indices)
        return Batch(
            hidden_AD=self._put(hidden).float(),
            embeddings_KAD=self._put(np.array(embeddings)).unflatten(0, inputs_KA.shape),
            inputs_KA=self._put(self._vocabulary.to_index(inputs_KA)),
            labels_KA=self._put(self._vocabulary.to_index(labels_KA, more)),
            positions_A=self._put(positions),
            sequences=self._sequences(indices, tables),
            rows_VD=self._rows(more),
        )

    def _put(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self._device)

    def _output_rows(self, ids: NDArray[np.int64]) -> Tensor:
        return self._put(np.array(self._tables.output_rows(ids.astype(np.int32)))).to(self._dtype)

    def _more(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """Ids outside the draft vocabulary that these answers may be drafted with."""
        if not self._prompt_tokens:
            return np.zeros(0, np.int64)
        texts = [self._answers[index] for index in indices]
        return self._vocabulary.more(np.concatenate([[*a.prompt_tokens, *a.answer] for a in texts]))

    def _rows(self, more: NDArray[np.int64]) -> Tensor:
        if not len(more):
            return self.rows_VD
        return torch.cat([self.rows_VD, self._output_rows(more)])

    def _table(self, index: int) -> AnchorTable:
        answer = self._answers[index]
        return anchor_table(answer.prompt_tokens, answer.answer, self._steps)

    def _sequences(self, indices: Sequence[int], tables: Sequence[AnchorTable]) -> list[SequenceKv]:
        sequences, begin = [], 0
        for index, table in zip(indices, tables, strict=True):
            end = begin + len(table.positions_A)
            kv = self._put(np.array(self._features.kv(index)))  # (R, L, 2, G, H)
            kv_2LGRH = kv.to(self._dtype).permute(2, 1, 3, 0, 4).contiguous()
            sequences.append(SequenceKv(slice(begin, end), kv_2LGRH[0], kv_2LGRH[1]))
            begin = end
        return sequences
