"""A separate small language model as a drafter: its own weights, embeddings, cache and prefill.

The baseline of speculative decoding (Leviathan et al., arXiv 2211.17192). It runs on the same
engine as the backbone, from any GGUF file with the backbone's vocabulary.

V is the draft model's vocabulary, D the backbone's hidden size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from drafthead.backbone.handle import Backbone, KvCache, Segment
from drafthead.backbone.registry import resolve
from drafthead.common_start import common_start
from drafthead.drafters.base import Floors
from drafthead.errors import RequestError
from drafthead.gguf.file import quoted
from drafthead.heads.config import MIN_CONFIDENCE
from drafthead.types import Draft

MAX_DRAFT_TOKENS = 6  # as of a head
PREFILL_ROWS = 512
TOKENS_KEY = "tokenizer.ggml.tokens"
# What `drafthead train` found to be the fastest threshold of a model; other readers pass over it.
CONFIDENCE_KEY = "drafthead.min_confidence"


def open_draft_model(backbone: Backbone, name: str | os.PathLike[str]) -> Backbone:
    """Open a GGUF file to draft for a backbone, with its threads and its type of cache.

    Raises:
        RequestError: the file has another vocabulary.
        BackboneMissingError, FileError: as for a backbone.
    """
    model = Backbone.open(resolve(name), backbone.threads, backbone.kv)
    check_vocabulary(backbone, model)
    return model


def check_vocabulary(backbone: Backbone, model: Backbone) -> None:
    """Refuse a draft model that means other tokens by the ids that both models have.

    Files of one tokenizer pad its vocabulary to different sizes, so sizes may differ.

    Raises:
        RequestError: the first id with another token is named.
    """
    pairs = zip(backbone.gguf.strings(TOKENS_KEY), model.gguf.strings(TOKENS_KEY))  # noqa: B905
    for token_id, (ours, theirs) in enumerate(pairs):
        if ours != theirs:
            raise RequestError(
                f"{model.name} cannot draft for {backbone.name}, for it has another vocabulary: "
                f"token {token_id} is {quoted(theirs)} there and {quoted(ours)} here; choose a "
                "draft model with the backbone's tokenizer."
            )


def model_confidence(model: Backbone) -> float:
    """The threshold that a draft model's file names, or that of heads which name none."""
    return model.gguf.number(CONFIDENCE_KEY, 0.0, 1.0, MIN_CONFIDENCE)


def likeliest(model: Backbone, cache: KvCache, rows: Sequence[int]) -> tuple[int, float]:
    """One draft step: feed rows; the likeliest token after them, and its probability."""
    found = model.forward([Segment(cache, rows)], rows="last", want="logits")
    assert found.logits is not None
    token, logits_V = int(found.tokens[0]), found.logits[0]
    return token, 1.0 / float(np.exp(logits_V - logits_V[token]).sum())


class StandaloneDrafter:
    """Drafts greedily by a model of its own, which reads the text itself.

    Its cache holds a prefix of the committed tokens, and between `propose` and `observe` drafted
    ones behind it. What it has not seen yet goes through in the pass of the first draft step.
    """

    name = "standalone"

    def __init__(
        self,
        model: Backbone,
        max_draft_tokens: int = MAX_DRAFT_TOKENS,
        min_confidence: float = MIN_CONFIDENCE,
    ) -> None:
        """Wrap a model.

        Args:
            model: of the backbone's vocabulary.
            max_draft_tokens: longest draft.
            min_confidence: a draft ends before the token with which the product of the model's
                probabilities of the drafted tokens falls below this; unless `floors` are set.
        """
        self.model = model
        self.max_draft_tokens = max_draft_tokens
        self.min_confidence = min_confidence
        self.floors: Floors | None = None
        self.reason: str | None = None
        self._cache: KvCache | None = None
        self._tokens: list[int] = []
        self._drafted: list[int] = []

    @property
    def cache_bytes(self) -> int:
        """Bytes of its own keys and values."""
        return self._cache.nbytes if self._cache is not None else 0

    def begin(self, tokens: Sequence[int], hidden_D: NDArray[np.float32], cache: KvCache) -> None:
        """Read the prompt; `reason` says why not, where it does not fit or holds unknown ids."""
        self._tokens, self._drafted, self.reason = list(tokens), [], None
        capacity = min(cache.capacity, self.model.spec.context_length)
        if self._cache is None or self._cache.capacity < capacity:
            self._cache = self.model.new_cache(capacity)
        self._cache.rollback(0)
        if self._can_read(tokens):
            self._feed(self._tokens[:-1])

    def propose(self, max_tokens: int) -> Draft:
        """Draft from the last committed token; nothing where `reason` is set."""
        if self.reason is not None:
            return Draft()
        assert self._cache is not None, "propose before begin"
        fits = self._cache.capacity - len(self._tokens) + 1
        steps = min(max_tokens, self.max_draft_tokens, fits)
        floors = self.floors or Floors.of(self.min_confidence)
        product, confidences = 1.0, list[float]()
        self._drafted = []
        rows, made = self._tokens[self._cache.length :], 0
        for step in range(steps):
            token, confidence = likeliest(self.model, self._cache, rows)
            product, made = product * confidence, step + 1
            if not floors.keeps(product, step):
                break
            self._drafted.append(token)
            confidences.append(confidence)
            rows = [token]
            if not floors.goes_on(product, step):
                break
        return Draft(tuple(self._drafted), tuple(confidences), steps=made)

    def observe(self, tokens: Sequence[int], hidden_D: NDArray[np.float32]) -> None:
        """Keep the cells of what was accepted and forget those of the rest.

        The last token is left to be fed: its row gives the next draft its first token.
        """
        if self.reason is not None or self._cache is None:
            return
        right = common_start(tokens[:-1], self._drafted)
        self._cache.rollback(min(self._cache.length, len(self._tokens) + right))
        self._tokens += tokens
        self._drafted = []
        self._can_read(tokens)

    def _can_read(self, new: Sequence[int]) -> bool:
        """Whether the model can take all tokens; else it drafts no more in this request."""
        assert self._cache is not None
        if len(self._tokens) > self._cache.capacity:
            self.reason = (
                f"the {len(self._tokens)} tokens of the text do not fit the context of "
                f"{self._cache.capacity} tokens of {self.model.name}"
            )
        elif max(new) >= self.model.spec.vocab_size:
            self.reason = f"{self.model.name} does not know the token {max(new)}"
        return self.reason is None

    def _feed(self, tokens: Sequence[int]) -> None:
        assert self._cache is not None
        for start in range(0, len(tokens), PREFILL_ROWS):
            chunk = Segment(self._cache, tokens[start : start + PREFILL_ROWS])
            self.model.forward([chunk], rows="last", want="hidden")
