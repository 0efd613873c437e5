"""Load a file as a user would, under limits; whatever is not one clear sentence is a finding.

Measured is what the file costs: processor time of this process, and the growth of its peak memory
where the system tells it (Linux). An endless loop in Python is stopped by a timer.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import process_time
from types import FrameType
from typing import NamedTuple, NoReturn

import drafthead
from drafthead.errors import DraftheadError, FileError

CPU_S = 1.0
MEMORY_BYTES = 50 << 20
MESSAGE_CHARACTERS = 300  # without the path
CHAT = [{"role": "user", "content": "ab cd"}]
_PEAK = re.compile(rb"VmHWM:\s+(\d+) kB")


class FindingError(BaseException):
    """A file did what no file may do; not an Exception, so that nothing swallows it."""


class Cost(NamedTuple):
    """What came of a file: the sentence that refused it, or "", and what it took."""

    sentence: str
    cpu_s: float
    memory_bytes: int


def examine(path: Path, cpu_s: float = CPU_S, memory_bytes: int = MEMORY_BYTES) -> Cost:
    """Load a file and generate from it.

    Raises:
        FindingError: an exception that is not drafthead's own, a message that is no clear sentence,
            or more time or memory than allowed.
    """
    before_bytes, started = _peak_bytes(), process_time()
    with _time_limit(cpu_s):
        sentence = _refusal(path)
    cost = Cost(sentence, process_time() - started, _peak_bytes(restart=False) - before_bytes)
    if cost.cpu_s > cpu_s:
        raise FindingError(f"took {cost.cpu_s:.2f} s of processor time: {sentence or 'loaded'}")
    if cost.memory_bytes > memory_bytes:
        raise FindingError(f"took {cost.memory_bytes >> 20} MiB: {sentence or 'loaded'}")
    return cost


def _refusal(path: Path) -> str:
    """The first sentence that refused the file; "" where it loads, chats and continues a text."""
    sentence = ""
    try:
        session = drafthead.load(path, head="none", threads=1, context=64)
        try:
            session.generate(messages=CHAT, max_tokens=2)
        except DraftheadError as error:
            sentence = checked_sentence(error, path)
        session.generate("ab cd", raw=True, max_tokens=2)
    except DraftheadError as error:
        return sentence or checked_sentence(error, path)
    except Exception as error:
        raise FindingError(f"{type(error).__name__} escaped: {str(error)[:300]}") from error
    return sentence


def checked_sentence(error: DraftheadError, path: Path) -> str:
    """The message of an error, if it is one clear sentence that names the file at fault."""
    sentence = str(error)
    for wrong, why in (
        (not sentence.endswith("."), "does not end as a sentence"),
        (not sentence.isprintable(), "holds what cannot be printed"),
        (len(sentence) > MESSAGE_CHARACTERS + len(str(path)), "is too long"),
        (isinstance(error, FileError) and str(path) not in sentence, "does not name the file"),
    ):
        if wrong:
            raise FindingError(f"a {type(error).__name__} {why}: {sentence!r}")
    return sentence


@contextmanager
def _time_limit(cpu_s: float) -> Iterator[None]:
    def stop(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise FindingError(f"still busy after {cpu_s} s of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@cache
def _system_file(path: str, flags: int) -> int | None:
    """A descriptor of a file that tells about this process; None where there is none."""
    try:
        return os.open(path, flags)
    except OSError:
        return None


def _peak_bytes(restart: bool = True) -> int:
    """Peak resident memory, restarted from what is resident now; 0 where it is not told."""
    clear = _system_file("/proc/self/clear_refs", os.O_WRONLY)
    status = _system_file("/proc/self/status", os.O_RDONLY)
    if clear is None or status is None:
        return 0
    if restart:
        os.pwrite(clear, b"5", 0)
    found = _PEAK.search(os.pread(status, 1 << 12, 0))
    return int(found[1]) << 10 if found else 0
