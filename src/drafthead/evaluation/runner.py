"""All arms, prompt by prompt, in one run: the machine's drift then hits them alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter, process_time
from types import MappingProxyType
from typing import Protocol

from drafthead.errors import RequestError
from drafthead.evaluation.conversation import answer_turns
from drafthead.evaluation.energy import EnergyMeter
from drafthead.evaluation.metrics import Answer
from drafthead.evaluation.prompts import PromptRow, end_ids, prompt_ids
from drafthead.session import Session

WARM_UP_TOKENS = 16


class Answering(Protocol):
    """Answers the first turn of a row, loops cut or not, and reads joules off the meter."""

    def __call__(
        self, row: PromptRow, max_tokens: int, cut_loops: bool, meter: EnergyMeter
    ) -> Answer:
        """The answer, of at most `max_tokens` tokens."""


def run_arms(
    arms: Mapping[str, Session],
    rows: Sequence[PromptRow],
    max_tokens: int,
    repeat: int = 1,
    cut_loops: bool = True,
    on_answer: Callable[[Answer], None] = lambda answer: None,
    peers: Mapping[str, Answering] = MappingProxyType({}),
) -> list[Answer]:
    """Answer every prompt with every arm.

    The order of the arms turns by one with each prompt, and starts by one later in each repeat.
    A warm-up of each arm on the first prompt comes before and is not counted. The first prompt of
    each task keeps the events of its answers.

    Args:
        arms: a session for each drafter, sharing one backbone.
        rows: the prompts.
        max_tokens: limit of each answer.
        repeat: how often all of it is done; every answer is kept.
        cut_loops: end answers that repeat themselves.
        on_answer: called after each answer, for progress.
        peers: other engines by name; they take their turns with the arms.

    Returns:
        For each arm, then each peer, its answers in the order of `rows`, repeat after repeat.

    Raises:
        RequestError, CapacityError: a prompt cannot be answered; told before anything is measured.
    """
    for row in rows:
        check_row(next(iter(arms.values())), row, max_tokens)
    meter = EnergyMeter()
    answering: dict[str, Answering] = {
        name: partial(answer_one, name, session) for name, session in arms.items()
    }
    answering |= peers
    for answer_with in answering.values():
        answer_with(rows[0], WARM_UP_TOKENS, cut_loops, meter)
    by_arm: dict[str, list[Answer]] = {name: [] for name in answering}
    first_of_task = {row.task: index for index, row in reversed(list(enumerate(rows)))}
    session = next(iter(arms.values()))
    for turn in range(repeat * len(rows)):
        round_index, row_index = divmod(turn, len(rows))
        row = rows[row_index]
        shown = round_index == 0 and first_of_task[row.task] == row_index
        for name in turned(list(answering), round_index + row_index):
            answer = answer_turns(
                session,
                row,
                partial(answering[name], max_tokens=max_tokens, cut_loops=cut_loops, meter=meter),
            )
            by_arm[name].append(answer if shown else replace(answer, events=()))
            on_answer(answer)
    return [answer for answers in by_arm.values() for answer in answers]


def check_row(session: Session, row: PromptRow, max_tokens: int) -> None:
    """Begin an answer and decode nothing of it: a prompt that cannot be answered is named."""
    try:
        session.stream_ids(prompt_ids(session, row), max_tokens, end_ids(session))
    except RequestError as error:
        raise type(error)(f"Prompt {row.id}: {error}") from None


def turned(names: Sequence[str], turn: int) -> Iterator[str]:
    """The names, starting at the `turn`-th of them."""
    for index in range(len(names)):
        yield names[(turn + index) % len(names)]


def answer_one(
    name: str,
    session: Session,
    row: PromptRow,
    max_tokens: int,
    cut_loops: bool,
    meter: EnergyMeter,
) -> Answer:
    """Answer one prompt with one arm, cold, timing the first token apart from the rest."""
    session.forget()
    started = perf_counter()
    stream = session.stream_ids(prompt_ids(session, row), max_tokens, end_ids(session), cut_loops)
    events = [next(stream)]
    ttft_ms = 1000 * (perf_counter() - started)
    meter.lap_joules()
    cpu_started = process_time()
    events += stream
    return Answer(
        drafter=name,
        task=row.task,
        prompt_id=row.id,
        tokens=tuple(event.token for event in events),
        finish_reason=str(stream.finish_reason),
        stats=stream.stats,
        ttft_ms=ttft_ms,
        cpu_s=process_time() - cpu_started,
        joules=meter.lap_joules(),
        events=tuple(events),
    )
