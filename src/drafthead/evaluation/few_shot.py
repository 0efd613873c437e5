"""Prompts for a base model: worked examples, then the question with its answer left open.

A base model continues text and has no end of turn. It is shown examples of the row's class, apart
by two blank lines, and ends its own answer in the same way or by beginning the next example: both
show in one token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from drafthead.evaluation.worked_examples import EXAMPLES, GENERAL
from drafthead.text.tokenizer import Tokenizer

SEPARATOR, HEADING = "\n\n\n", "###"
SYSTEM_ROLES = ("system", "developer")


@lru_cache(maxsize=4)
def few_shot_ends(tokenizer: Tokenizer) -> frozenset[int]:
    """Every token that ends an answer: it holds the separator, or it is the heading's mark.

    A longer run of line ends is the separator too; four marks, as before a sum, are no heading.
    """
    texts = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
    blank, mark = SEPARATOR.encode(), HEADING.encode()
    return frozenset(token for token, text in enumerate(texts) if blank in text or text == mark)


def few_shot_text(task: str, messages: Sequence[Mapping[str, str]]) -> str:
    """The text that a base model continues with its answer.

    System text comes first; the turns of a conversation become further examples.

    Args:
        task: class of the examples; those of any other name are two general questions.
        messages: the prompt.
    """
    parts = [m["content"] for m in messages if m["role"] in SYSTEM_ROLES]
    parts += [_example(*example) for example in EXAMPLES.get(task, GENERAL)]
    asked: list[str] = []
    for message in messages:
        if message["role"] == "assistant":
            parts.append(_example("\n\n".join(asked), message["content"]))
            asked = []
        elif message["role"] not in SYSTEM_ROLES:
            asked.append(message["content"])
    return SEPARATOR.join([*parts, _example("\n\n".join(asked), "").rstrip(" ")])


def _example(question: str, answer: str) -> str:
    return f"{HEADING} Input: {question}\n{HEADING} Output: {answer}"
