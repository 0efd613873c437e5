"""From answers and features on disk to the tensors of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drafthead.training.answers import Answer
from drafthead.training.data import AnchorTable, DraftVocabulary, anchor_table
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
    """Builds batches for a number of draft steps.

    softcap: of the backbone's logits, 0 is none.  prompt_tokens: whether the head may draft what is
    outside the draft vocabulary and in the text it continues.
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
        rows = tables.output_rows(vocabulary.token_ids.astype(np.int32))
        self.rows_VD = torch.from_numpy(np.array(rows)).to(dtype)
        self.softcap = softcap
        self._prompt_tokens = prompt_tokens

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
            hidden_AD=torch.from_numpy(hidden.astype(np.float32)),
            embeddings_KAD=torch.from_numpy(np.array(embeddings)).unflatten(0, inputs_KA.shape),
            inputs_KA=torch.from_numpy(self._vocabulary.to_index(inputs_KA)),
            labels_KA=torch.from_numpy(self._vocabulary.to_index(labels_KA, more)),
            positions_A=torch.from_numpy(positions),
            sequences=self._sequences(indices, tables),
            rows_VD=self._rows(more),
        )

    def _more(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """Ids outside the draft vocabulary that these answers may be drafted with."""
        if not self._prompt_tokens:
            return np.zeros(0, np.int64)
        texts = [self._answers[index] for index in indices]
        return self._vocabulary.more(np.concatenate([[*a.prompt_tokens, *a.answer] for a in texts]))

    def _rows(self, more: NDArray[np.int64]) -> Tensor:
        if not len(more):
            return self.rows_VD
        rows = torch.from_numpy(np.array(self._tables.output_rows(more.astype(np.int32))))
        return torch.cat([self.rows_VD, rows.to(self._dtype)])

    def _table(self, index: int) -> AnchorTable:
        answer = self._answers[index]
        return anchor_table(answer.prompt_tokens, answer.answer, self._steps)

    def _sequences(self, indices: Sequence[int], tables: Sequence[AnchorTable]) -> list[SequenceKv]:
        sequences, begin = [], 0
        for index, table in zip(indices, tables, strict=True):
            end = begin + len(table.positions_A)
            kv = torch.from_numpy(np.array(self._features.kv(index)))  # (R, L, 2, G, H)
            kv_2LGRH = kv.to(self._dtype).permute(2, 1, 3, 0, 4).contiguous()
            sequences.append(SequenceKv(slice(begin, end), kv_2LGRH[0], kv_2LGRH[1]))
            begin = end
        return sequences
