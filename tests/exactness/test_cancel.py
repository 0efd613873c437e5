"""Whatever ends an answer, at whatever moment: the session goes on as a new one would.

As a new one: the same tokens, log-probabilities to the bit, and cells; the same drafts, and as many
of them accepted.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from itertools import product
from pathlib import Path

import pytest

import drafthead
from drafthead import session as session_module
from tests import every_drafter
from tests.every_drafter import REAL, make
from tests.exactness.test_matrix import everything_said
from tests.windowed import same_cells

PACKAGE = str(Path(drafthead.__file__).parent)
FIRST = [(7 * n) % 200 for n in range(30)]
SECOND = [*FIRST[:20], *[(11 * n) % 200 for n in range(14)]]
ASKED = {"max_tokens": 5, "logprobs": 1}
# What its drafts gave is kept from one request to the next, so that they differ in length.
LEARNS = ("ngram", "ngram+mtp")


def traced(action, at_line) -> None:
    """Run it and call `at_line` before each line of the package, with its file and number."""

    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            at_line((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)


def moments(action, room: str) -> list[int]:
    """The steps of an action at which it runs a line of a room for the first time or the last."""
    lines: list[tuple[str, int]] = []
    traced(action, lines.append)
    ours = [(step, line) for step, line in enumerate(lines) if room in line[0]]
    firsts = {line: step for step, line in reversed(ours)}
    lasts = {line: step for step, line in ours}
    return sorted({*firsts.values(), *lasts.values()})


def interrupt(action, step: int) -> None:
    """Run it, with Ctrl-C at that step."""
    left = iter(range(step, -1, -1))

    def at_line(_):
        if next(left, 1) == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        traced(action, at_line)


@lru_cache
def fresh(name: str, prompt: tuple[int, ...]):
    """What a cold session with a new drafter answers, and the cells that are left."""
    talk = every_drafter.session(make(name))
    return talk.generate(prompt, **ASKED), talk.held.cache


def goes_on_as_new(talk, name: str) -> None:
    """The next answers are those of a cold session and a new drafter."""
    for prompt in ([*talk.tokens, 5, 6], FIRST):
        found = talk.generate(prompt, **ASKED)
        expected, cells = fresh(name, tuple(prompt))
        assert everything_said(found) == everything_said(expected)
        assert 0 <= found.stats.cached_tokens < len(prompt)
        if name not in LEARNS:
            assert found.stats.drafted_at == expected.stats.drafted_at
            assert found.stats.accepted_at == expected.stats.accepted_at
        assert same_cells(talk.backbone, talk.held.cache, cells)


@pytest.mark.parametrize(("name", "cells"), [("none", 16), *((n, 99) for n in ["none", *REAL])])
def test_ctrl_c_at_any_line_leaves_a_session_as_new(name, cells, monkeypatch):
    """F2: in the loop, in the cache's lending and growing, and in whoever drafts."""
    monkeypatch.setattr(session_module, "SMALLEST_CACHE", cells)

    def started():
        talk = every_drafter.session(make(name))
        talk.generate(FIRST, max_tokens=3)
        return talk, lambda: talk.generate(SECOND, **ASKED)

    steps = moments(started()[1], "drafthead" if name == "none" else "drafters")
    assert len(steps) > 10
    for step in steps:
        talk, action = started()
        interrupt(action, step)
        goes_on_as_new(talk, name)


class FaultError(Exception):
    """What a drafter with a fault raises."""


class Failing:
    """Another drafter, of which one method fails at one of its calls, before its work or after."""

    def __init__(self, drafter, method: str, call: int, late: bool, error) -> None:
        self.drafter, self.name = drafter, drafter.name
        self.left, self.late, self.error = {method: call}, late, error

    def _do(self, method, *args):
        self.left[method] = self.left.get(method, 0) - 1
        fails = self.left[method] == 0
        if fails and not self.late:
            raise self.error
        done = getattr(self.drafter, method)(*args)
        if fails:
            raise self.error
        return done

    def begin(self, *args):
        self._do("begin", *args)

    def propose(self, *args):
        return self._do("propose", *args)

    def observe(self, *args):
        self._do("observe", *args)


class FailingWatcher(Failing):
    """One that watches, as the drafter must do too."""

    def watch(self, *args):
        self._do("watch", *args)


@pytest.mark.parametrize("error", [KeyboardInterrupt, FaultError])
@pytest.mark.parametrize("name", ["jacobi", "standalone", "mtp"])
def test_a_drafter_that_fails_takes_its_answer_with_it_and_nothing_else(name, error):
    """F2: in each of its methods, at the first call or a later one, before its work or after."""
    kind, methods = Failing, ["begin", "propose", "observe"]
    if name == "jacobi":
        kind, methods = FailingWatcher, [*methods, "watch"]
    for method, call, late in product(methods, (1, 2), (False, True)):
        if (method, call) == ("begin", 2):
            continue
        talk = every_drafter.session(kind(make(name), method, call, late, error))
        with pytest.raises(error):
            talk.generate(SECOND, **ASKED)
        goes_on_as_new(talk, name)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("call", [1, 2, 3, 4, 5])
def test_a_pass_that_is_interrupted_leaves_what_is_sound(monkeypatch, call, late):
    """F2: between the chunks of a prompt, and in verification; its cells may be there or not."""
    talk = every_drafter.session(make("mtp"))
    forward, passes = talk.backbone.forward, []

    def interrupted(*args, **how):
        passes.append(1)
        if len(passes) == call and not late:
            raise KeyboardInterrupt
        given = forward(*args, **how)
        if len(passes) == call:
            raise KeyboardInterrupt
        return given

    long = [token % 200 for token in range(3, 1300)]  # three chunks
    talk.generate(FIRST, max_tokens=3)
    with monkeypatch.context() as patched:
        patched.setattr(talk.backbone, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            talk.generate(long, **ASKED)
    goes_on_as_new(talk, "mtp")


@pytest.mark.parametrize("options", [{}, {"logprobs": 0, "prompt_logprobs": True}])
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_stream_that_is_closed_stops_reading_its_prompt(monkeypatch, chunks, options):
    """F2: from another thread, here from within a pass; no further pass is made."""
    talk = every_drafter.session(make("mtp"))
    stream = talk.stream([token % 200 for token in range(3, 1300)], **ASKED | options)
    forward, passes = talk.backbone.forward, []

    def closing(*args, **how):
        passes.append(1)
        if len(passes) == chunks:
            stream.close()
        return forward(*args, **how)

    with monkeypatch.context() as patched:
        patched.setattr(talk.backbone, "forward", closing)
        assert list(stream) == []
    assert len(passes) == chunks
    assert stream.finish_reason is None
    goes_on_as_new(talk, "mtp")


def leave_by_close(stream):
    stream.close()


def leave_by_an_error(stream):
    with pytest.raises(FaultError), stream:
        raise FaultError


def leave_by_the_end_of_with(stream):
    with stream as same:
        assert same is stream


def leave_by_forgetting(stream):
    del stream


@pytest.mark.parametrize(
    "leave", [leave_by_close, leave_by_an_error, leave_by_the_end_of_with, leave_by_forgetting]
)
@pytest.mark.parametrize("name", ["mtp", "standalone", "ngram", "jacobi"])
def test_a_stream_left_at_any_event_leaves_a_session_as_new(name, leave):
    for events in range(9):
        talk = every_drafter.session(make(name))
        stream = talk.stream(SECOND, max_tokens=8, logprobs=1)
        for _ in range(events):
            next(stream)
        leave(stream)
        goes_on_as_new(talk, name)
        if leave is not leave_by_forgetting:
            assert next(stream, None) is None
            assert stream.finish_reason == ("length" if events == 8 else None)
