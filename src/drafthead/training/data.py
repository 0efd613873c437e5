"""Sequences, anchors and labels: which state meets which token.

Legend: A anchors, K draft steps, T tokens of a sequence.

Tokens t_0 .. t_{P-1} are the prompt, t_P .. t_{T-1} the answer. Position i is an *anchor* where
the runtime could begin a draft there: t_{i+1} is known, t_{i+2} is the first token to draft. Draft
step k (from 1) takes the embedding of t_{i+k} and the state of step k - 1 (the backbone's hidden
state h_i for k = 1) and is to give t_{i+k+1}. Every step of an anchor attends to positions 0 .. i
and sits at rope position i + 1. In the runtime's names: n = i + 1, (h_{n-1}, x_n) -> x_{n+1}.

Only answer tokens count: t_{i+1} and the labels are answer tokens, so the first anchor is the last
prompt token and the last one is T - 3. The end token belongs to the answer where it was produced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drafthead.errors import TrainingError
from drafthead.heads.config import GROUP
from drafthead.training.answers import Answer

IGNORED = -1


@dataclass(frozen=True)
class AnchorTable:
    """The anchors of one sequence.

    positions_A: i of each anchor.  inputs_KA: input token of each step.  labels_KA: token id that
    each step is to give, IGNORED past the end of the answer.
    """

    positions_A: NDArray[np.int64]
    inputs_KA: NDArray[np.int64]
    labels_KA: NDArray[np.int64]


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    pairs = zip(left, right)  # noqa: B905 - the shorter one decides
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def anchor_count(prompt_length: int, answer_length: int) -> int:
    """Anchors of an answer: one less than its tokens, for the first one comes from the prefill."""
    return max(0, answer_length - 1) if prompt_length else 0


def anchor_table(prompt: Sequence[int], answer: Sequence[int], steps: int) -> AnchorTable:
    """Lay out the anchors of one answer for `steps` draft steps."""
    tokens = np.array([*prompt, *answer], dtype=np.int64)
    count = anchor_count(len(prompt), len(answer))
    positions = len(prompt) - 1 + np.arange(count, dtype=np.int64)
    padded = np.concatenate([tokens, np.full(steps + 1, IGNORED, dtype=np.int64)])
    step = np.arange(1, steps + 1, dtype=np.int64)[:, None]
    inputs = padded[positions[None, :] + step]
    labels = padded[positions[None, :] + step + 1]
    return AnchorTable(positions, np.where(inputs == IGNORED, 0, inputs), labels)


class DraftVocabulary:
    """A union of whole, aligned groups of 16 token ids, ascending, and the way there and back."""

    def __init__(self, token_ids: NDArray[np.int64], vocab_size: int) -> None:
        self.token_ids = token_ids
        self._index = np.full(vocab_size + 1, IGNORED, dtype=np.int64)
        self._index[token_ids] = np.arange(len(token_ids))

    def __len__(self) -> int:
        return len(self.token_ids)

    def more(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids of the whole groups that hold these tokens and are not in the vocabulary, (n,)."""
        groups = np.unique(tokens // GROUP)
        groups = groups[(groups + 1) * GROUP < len(self._index)]
        new = groups[self._index[groups * GROUP] == IGNORED]
        ids: NDArray[np.int64] = (new[:, None] * GROUP + np.arange(GROUP)).reshape(-1)
        return ids

    def to_index(
        self, ids: NDArray[np.int64], more: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Token ids to places in the draft vocabulary, `more` behind it; IGNORED outside both."""
        index = self._index
        if more is not None and len(more):
            index = index.copy()
            index[more] = len(self.token_ids) + np.arange(len(more))
        places: NDArray[np.int64] = index[ids]
        return places

    def coverage(self, answers: Iterable[Answer], prompt_tokens: bool = False) -> float | None:
        """The share of answer tokens that can be drafted; None where there are none.

        prompt_tokens: whether groups of tokens that the prompt holds can be drafted too.
        """
        inside = total = 0
        for answer in answers:
            ids = np.array(answer.answer, dtype=np.int64)
            prompt = np.array(answer.prompt_tokens, dtype=np.int64)
            more = self.more(prompt) if prompt_tokens else None
            inside += int((self.to_index(ids, more) != IGNORED).sum())
            total += len(ids)
        return inside / total if total else None


PROMPT_WEIGHT = 0.05  # a prompt token counts as this share of an answer token


def select_vocabulary(
    answers: Iterable[Answer], end_ids: Iterable[int], vocab_size: int, size: int,
    kind: str = "frequency",
) -> DraftVocabulary:  # fmt: skip
    """Keep the groups of 16 ids whose tokens the backbone says most often; or the first `size` ids.

    Prompt tokens count a little: answers copy from prompts. Groups that hold an end token always
    belong to it. Groups that were never seen fill up in ascending order, so that the size is exact.
    The kind "prefix" is the first ids as they come: one run of output rows, read in place.

    Raises:
        TrainingError: the size is not a multiple of 16 within the vocabulary.
    """
    groups = vocab_size // GROUP
    if size % GROUP or not 0 < size <= groups * GROUP:
        raise TrainingError(
            f"draft_vocab must be a multiple of {GROUP} of at most {groups * GROUP}, found {size}."
        )
    if kind == "prefix":
        return DraftVocabulary(np.arange(size, dtype=np.int64), vocab_size)
    weights = np.zeros(vocab_size, dtype=np.float64)
    for answer in answers:
        np.add.at(weights, np.array(answer.answer, dtype=np.int64), 1.0)
        np.add.at(weights, np.array(answer.prompt_tokens, dtype=np.int64), PROMPT_WEIGHT)
    for token in end_ids:
        weights[token] = np.inf
    ranked = weights[: groups * GROUP].reshape(groups, GROUP).sum(axis=1)
    chosen = np.sort(np.argsort(-ranked, kind="stable")[: size // GROUP])
    ids = (chosen[:, None] * GROUP + np.arange(GROUP)[None, :]).reshape(-1)
    return DraftVocabulary(ids.astype(np.int64), vocab_size)


def split(answers: Sequence[Answer], heldout: float) -> tuple[list[Answer], list[Answer]]:
    """Training and held-out answers, decided by each answer's id alone."""
    train: list[Answer] = []
    held: list[Answer] = []
    for answer in answers:
        value = int.from_bytes(hashlib.sha256(answer.id.encode()).digest()[:8], "big") / 2**64
        (held if value < heldout else train).append(answer)
    return train, held


def batches(counts: Sequence[int], batch_anchors: int, seed: int, epoch: int) -> list[list[int]]:
    """Pack sequences into batches of about `batch_anchors` anchors, in an order of the epoch.

    The same counts, seed and epoch give the same batches, which is what makes resuming exact.
    """
    order = np.random.default_rng((seed, epoch)).permutation(len(counts))
    packed: list[list[int]] = []
    current: list[int] = []
    filled = 0
    for index in order.tolist():
        if not counts[index]:
            continue
        current.append(index)
        filled += counts[index]
        if filled >= batch_anchors:
            packed.append(current)
            current, filled = [], 0
    if current:
        packed.append(current)
    return packed


def data_digest(answers: Iterable[Answer]) -> str:
    """A hash of all answers, for the record in the head package."""
    digest = hashlib.sha256()
    for answer in sorted(answers, key=lambda row: row.id):
        digest.update(answer.line().encode())
    return digest.hexdigest()
