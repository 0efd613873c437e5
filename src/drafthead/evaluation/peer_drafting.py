"""llama.cpp with drafters of its own: prompt lookup, and a small model from a file.

The loop is ours and greedy, over the low-level functions: the logits of all rows of a pass are read
where llama.cpp keeps them. That is faster than the binding's own loop, which copies every row. The
drafts are llama.cpp's: the binding's prompt lookup with the two tokens that its manual recommends
on a CPU, and the rule of llama.cpp's examples for a draft model, at most 16 tokens, ended before
the first whose probability is below 0.75. V is the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from drafthead.errors import RequestError
from drafthead.evaluation.peers import LlamaCpp

LOOKUP_TOKENS = 2
MODEL_TOKENS, MODEL_CONFIDENCE = 16, 0.75
PADDED_TOKENS = 128  # by which vocabularies of one tokenizer may differ
LOOKUP, MODEL = "prompt-lookup", "draft-model"


class PeerDrafter(Protocol):
    """Proposes what may follow the tokens so far."""

    name: str

    def begin(self, tokens: Sequence[int]) -> None:
        """Read the prompt."""

    def propose(self, tokens: Sequence[int], room: int) -> list[int]:
        """At most `room` tokens to follow."""


class PromptLookup:
    """The binding's prompt lookup: what followed the last two tokens, or one, before."""

    name = LOOKUP

    def __init__(self) -> None:
        decoding = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding
        self._draft = decoding(num_pred_tokens=LOOKUP_TOKENS)

    def begin(self, tokens: Sequence[int]) -> None:
        """Nothing to read ahead."""

    def propose(self, tokens: Sequence[int], room: int) -> list[int]:
        """At most `room` tokens to follow."""
        return [int(token) for token in self._draft(np.asarray(tokens, np.intc))[:room]]


class DraftModel:
    """A small model in a llama.cpp context of its own, with a cache that it rolls back."""

    name = MODEL

    def __init__(self, path: str | Path, target: LlamaCpp) -> None:
        """Load the model.

        Args:
            path: a GGUF file of the target's vocabulary.
            target: whose threads and context it gets.

        Raises:
            FileError: llama.cpp does not take the file.
            RequestError: it has a vocabulary of another size.
        """
        self._model = LlamaCpp(path, target.threads, target.context)
        self.path = Path(path)
        # What its cache holds, and how many of these tokens are certainly committed.
        self._seen, self._sure = list[int](), 0
        # llama.cpp's own rule: files of one tokenizer are padded to different sizes.
        if abs(self._model.vocab_size - target.vocab_size) > PADDED_TOKENS:
            sizes = f"{self._model.vocab_size} tokens there and {target.vocab_size} in the backbone"
            self._model.close()
            raise RequestError(
                f"{path} cannot draft in llama.cpp: {sizes}; choose a model with the backbone's "
                "tokenizer."
            )

    def begin(self, tokens: Sequence[int]) -> None:
        """Read the prompt."""
        self._model.rollback(0)
        self._model.feed(tokens)
        self._seen, self._sure = list(tokens), len(tokens)

    def propose(self, tokens: Sequence[int], room: int) -> list[int]:
        """Draft greedily while the model is sure."""
        start = self._sure
        while start < min(len(self._seen), len(tokens) - 1) and self._seen[start] == tokens[start]:
            start += 1
        self._model.rollback(start)
        logits_V = self._model.feed(tokens[start:])[0]
        self._seen, self._sure = list(tokens), len(tokens)
        draft: list[int] = []
        while True:
            token, probability = likeliest(logits_V)
            if probability < MODEL_CONFIDENCE:
                return draft
            draft.append(token)
            if len(draft) == min(room, MODEL_TOKENS):
                return draft
            logits_V = self._model.feed([token])[0]
            self._seen.append(token)

    def close(self) -> None:
        """Give its memory back."""
        self._model.close()


def likeliest(logits_V: NDArray[np.float32]) -> tuple[int, float]:
    """The likeliest token and its probability."""
    token = int(logits_V.argmax())
    return token, 1.0 / float(np.exp(logits_V - logits_V[token]).sum())
