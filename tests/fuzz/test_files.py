"""Hostile files cost one clear sentence, little time and little memory, through the whole loading.

Costs are limits against hangs and blow-ups, not measurements.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from statistics import median

import pytest

import drafthead
from drafthead.errors import GgufError, RequestError
from drafthead.gguf import reader
from drafthead.gguf.cursor import Cursor
from drafthead.gguf.file import GgufFile
from drafthead.text import sandbox
from tests.fuzz import corpus
from tests.fuzz.fuzz import fuzz
from tests.fuzz.harness import CPU_S, FindingError, checked_sentence, examine
from tests.unit import gguf_bytes as made

CASE_CPU_S = 0.1
MUTATIONS = 10_000
LARGE = {"gigantic template"}
MEMORY_IS_TOLD = Path("/proc/self/clear_refs").exists()

# Values of every kind, for every key.
MINUS_ONE = (made.INT32, b"\xff" * 4)
HUGE_NUMBER = (made.UINT64, made.u64(corpus.HUGE))
HUGE_NUMBERS = (made.ARRAY, made.u32(made.UINT64) + made.u64(2) + 2 * made.u64(corpus.HUGE))
WRONG = (
    True,
    MINUS_ONE,
    HUGE_NUMBER,
    HUGE_NUMBERS,
    0.5,
    float("nan"),
    float("inf"),
    "text",
    [],
    [1],
    ["a"],
    "",
)


@pytest.fixture(autouse=True, scope="module")
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Imports and first allocations are not the cost of a file."""
    path = tmp_path_factory.mktemp("warm") / "sound.gguf"
    path.write_bytes(corpus.SOUND)
    assert examine(path, cpu_s=60, memory_bytes=1 << 40).sentence == ""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("name", corpus.SOUNDS)
def test_the_sound_files_load_chat_and_go_on(path: Path, name: str) -> None:
    """What the corpus is made from is no error: each fault is that of its case alone."""
    path.write_bytes(corpus.SOUNDS[name])
    assert examine(path).sentence == ""


@pytest.mark.parametrize("name", corpus.CASES)
def test_a_crafted_file_costs_one_clear_sentence(path: Path, name: str) -> None:
    """G4, G6, G7: each of the corpus is refused by a sentence that names the fault, at once."""
    raw, fragment = corpus.CASES[name]
    assert name in LARGE or len(raw) < (2 << 10 if name in corpus.READER else 16 << 10)
    path.write_bytes(raw)
    costs = [examine(path) for _ in range(3)]
    assert fragment in costs[0].sentence
    assert median(cost.cpu_s for cost in costs) < CASE_CPU_S


def test_a_file_cut_anywhere_is_refused(path: Path) -> None:
    """G7: the prefixes of a model are told to be truncated."""
    path.write_bytes(corpus.SOUND)
    for length in range(len(corpus.SOUND) - 1, 0, -7):
        os.truncate(path, length)
        assert "truncated" in examine(path).sentence


@pytest.mark.parametrize("key", corpus.METADATA)
def test_a_value_of_any_type_at_any_key_is_taken_or_refused(path: Path, key: str) -> None:
    """No key trusts its value: most of these are refused, and none breaks anything."""
    refused = 0
    for value in WRONG:
        path.write_bytes(made.gguf({**corpus.METADATA, key: value}, corpus.TENSORS))
        refused += examine(path).sentence != ""
    assert refused >= len(WRONG) - 4


def test_mutations_of_the_corpus_are_no_finding(tmp_path: Path) -> None:
    """G6: ten thousand files, damaged ones of the corpus, load or are refused, each in time."""
    findings, endings = [], 0
    for endings, finding in islice(fuzz(tmp_path, seed=1), MUTATIONS):  # noqa: B007
        if finding:
            findings.append(finding)
    assert findings == []
    assert endings > 150  # it went far beyond the first check


BROKEN = {
    "bounds": (Cursor, "need", lambda *_: None),
    "overlaps": (reader, "_check_data_section", lambda *_: None),
    "types": (GgufFile, "_wrong", lambda *_: None),
    "sentences": (reader, "quoted", lambda value: f"\n{value}"),
    "template steps": (sandbox, "_step", lambda *_, **__: None),
}


@pytest.mark.parametrize("part", BROKEN)
def test_a_broken_guard_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The fuzzer can fail: without a guard it keeps a file that shows it."""
    monkeypatch.setattr(*BROKEN[part])
    finding = next(f for _, f in islice(fuzz(tmp_path, seed=1), MUTATIONS) if f)
    monkeypatch.undo()
    kept = Path(finding.split(": ")[0])
    assert kept.exists()
    examine(kept)


def test_the_harness_tells_what_a_file_may_not_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other exceptions, endless loops, memory and unclear messages are findings."""

    def loop(*_: object, **__: object) -> None:
        while True:
            pass

    def crash(*_: object, **__: object) -> None:
        raise KeyError("x")

    def hoard(*_: object, **__: object) -> None:
        held = bytearray(b"x" * (80 << 20))
        raise RequestError(f"It has {len(held)} bytes.")

    path.write_bytes(corpus.SOUND)
    for load, cpu_s, found in ((loop, 0.05, "busy"), (crash, CPU_S, "KeyError"), (hoard, 9, "MiB")):
        monkeypatch.setattr(drafthead, "load", load)
        if load is hoard and not MEMORY_IS_TOLD:
            continue
        with pytest.raises(FindingError, match=found):
            examine(path, cpu_s)
    for error in (
        RequestError("No end"),
        RequestError("Two\nlines."),
        RequestError("x" * 999 + "."),
        GgufError("No path here."),
    ):
        with pytest.raises(FindingError):
            checked_sentence(error, path)
