"""All arms, prompt by prompt, in one run: the machine's drift then hits them alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter, process_time
from types import MappingProxyType

from drafthead.errors import RequestError
from drafthead.evaluation.machine import EnergyMeter
from drafthead.evaluation.metrics import Answer
from drafthead.evaluation.prompts import PromptRow, end_ids, prompt_ids
from drafthead.session import Session

WARM_UP_TOKENS = 16

# Answers one row, with at most so many tokens, loops cut or not, and joules read off the meter.
Answering = Callable[[PromptRow, int, bool, EnergyMeter], Answer]


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
    A warm-up of each arm on the first prompt comes before and is not counted.

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
    for turn in range(repeat * len(rows)):
        round_index, row_index = divmod(turn, len(rows))
        row = rows[row_index]
        for name in turned(list(answering), round_index + row_index):
            answer = answering[name](row, max_tokens, cut_loops, meter)
            by_arm[name].append(answer)
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
    tokens = [next(stream).token]
    ttft_ms = 1000 * (perf_counter() - started)
    meter.lap_joules()
    cpu_started = process_time()
    tokens += [event.token for event in stream]
    return Answer(
        drafter=name,
        task=row.task,
        prompt_id=row.id,
        tokens=tuple(tokens),
        finish_reason=str(stream.finish_reason),
        stats=stream.stats,
        ttft_ms=ttft_ms,
        cpu_s=process_time() - cpu_started,
        joules=meter.lap_joules(),
    )
