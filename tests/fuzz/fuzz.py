"""Fuzz the loading of files: `python -m tests.fuzz.fuzz --seconds 60 --findings DIR`.

Files that are refused in a way not seen before join those that are mutated, so that the search goes
on from what it has reached. A finding is kept as a file; where the process dies, it is
`current.gguf`.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from tests.fuzz.corpus import CASES, SOUNDS
from tests.fuzz.harness import FindingError, examine
from tests.fuzz.mutate import mutated

WATCHED = 100  # mutations to which the watchdog gives HANG_S
HANG_S = 120  # in native code, which no timer interrupts: the process ends with a traceback


def fuzz(folder: Path, seed: int) -> Iterator[tuple[int, str | None]]:
    """Try mutations for ever; yields how many ways to end are known, and a finding or None."""
    rng = random.Random(seed)
    pool = [*SOUNDS.values()] * 5 + [raw for raw, _ in CASES.values()]
    seen: set[str] = set()
    path = folder / "current.gguf"
    with path.open("wb", buffering=0) as file:
        while True:
            raw = mutated(rng.choice(pool), rng)
            os.pwrite(file.fileno(), raw, 0)
            file.truncate(len(raw))
            try:
                sentence = examine(path).sentence
            except FindingError as error:
                kept = folder / f"finding-{hashlib.sha256(raw).hexdigest()[:12]}.gguf"
                kept.write_bytes(raw)
                yield len(seen), f"{kept}: {error}"
                continue
            ending = outline(sentence.replace(str(path), ""))
            if ending not in seen:
                seen.add(ending)
                pool.append(raw)
            yield len(seen), None


def outline(sentence: str) -> str:
    """A sentence without the numbers and names in it."""
    return re.sub(r"'.*?'|\"[^\"]*\"|\d+|\(.*?\)", "", sentence)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"))
    given = parser.parse_args()
    given.findings.mkdir(parents=True, exist_ok=True)
    found = 0
    end = monotonic() + given.seconds
    for count, (endings, finding) in enumerate(fuzz(given.findings, given.seed), 1):  # noqa: B007
        if count % WATCHED == 1:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
        if finding:
            found += 1
            print(f"mutation {count}, seed {given.seed}: {finding}", file=sys.stderr, flush=True)
        if monotonic() > end:
            break
    faulthandler.cancel_dump_traceback_later()
    print(f"{count} mutations, {endings} ways to end, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
