"""Prompts of several turns: each is answered after the answers to the turns before it.

As Spec-Bench measures MT-bench (Xia et al., arXiv 2401.07851): every turn starts cold, with the
whole conversation as its prompt, and counts and times of the turns are added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from drafthead.decoding.stats import pool
from drafthead.errors import CapacityError
from drafthead.evaluation.metrics import Answer
from drafthead.evaluation.prompts import PromptRow, end_ids
from drafthead.session import Session


def answer_turns(
    session: Session, row: PromptRow, answer_one: Callable[[PromptRow], Answer]
) -> Answer:
    """Answer every turn of a row; the last ones are left out where the context has no room.

    Args:
        session: whose tokenizer turns an answer into the text that the next turn quotes.
        row: the first turn, and the later ones.
        answer_one: answers a row of one turn.

    Raises:
        CapacityError: there is no room for the first.
    """
    asked = replace(row, later=())
    latest = whole = answer_one(asked)
    for question in row.later:
        ends = end_ids(session)
        said = session.tokenizer.decode([token for token in latest.tokens if token not in ends])
        turns = ({"role": "assistant", "content": said}, {"role": "user", "content": question})
        asked = replace(asked, messages=(*asked.messages, *turns))
        try:
            latest = answer_one(asked)
        except CapacityError:
            break
        whole = added(whole, latest)
    return whole


def added(first: Answer, later: Answer) -> Answer:
    """Both turns as one answer; the time to its first token is that of the first turn."""
    energy = (first.joules, later.joules)
    return replace(
        first,
        tokens=first.tokens + later.tokens,
        finish_reason=later.finish_reason,
        stats=pool((first.stats, later.stats)),
        cpu_s=first.cpu_s + later.cpu_s,
        joules=None if None in energy else sum(filter(None, energy)),
    )
