"""The automatic policy against fixed draft lengths, and against drafts that are never right.

    python benchmarks/policy.py [--backbone NAME] [--prompts FILE.jsonl ...] [--limit N per task]
        [--max-tokens N] [--lengths 1,2,3,4,6] [--repeat N] [--threads N] [--json FILE]

Arms take turns prompt by prompt: plain decoding, the automatic policy, and each fixed length. For
each task: the automatic policy's speed over that of the fixed length which is best there; pooled:
over the best single one. Then 500 tokens, end-of-sequence tokens passed over, beside plain decoding
with a drafter of random tokens, once without confidences and once sure of all of them; and the time
to the first token.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, permutations
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from tables import markdown

from drafthead.decoding.policy import Adaptive
from drafthead.drafters.base import NoDrafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.evaluation.machine import describe
from drafthead.evaluation.metrics import arm_lines
from drafthead.evaluation.prompts import read_prompts, select
from drafthead.evaluation.runner import run_arms
from drafthead.session import Session, load
from drafthead.tasks import TASKS, prompt_set
from drafthead.types import Draft

FLOOR_TOKENS, FLOOR_CYCLES = 500, 2  # a cycle: every order of the three arms once
FLOOR_PROMPT = "Write a long story about a lighthouse keeper and the sea."
AUTO = "auto"


@dataclass
class RandomDrafter:
    """RANDOM: uniform ids; `sure` of each of them where a number is given."""

    vocab_size: int
    sure: float | None = None
    longest: int = 6
    name = "RANDOM"

    def __post_init__(self) -> None:
        self._random = random.Random(0)

    def begin(self, *_request: object) -> None:
        """Nothing to know."""

    def propose(self, max_tokens: int) -> Draft:
        """Some ids."""
        count = min(max_tokens, self.longest)
        tokens = tuple(self._random.randrange(self.vocab_size) for _ in range(count))
        return Draft(tokens, () if self.sure is None else (self.sure,) * count)

    def observe(self, *_pass: object) -> None:
        """Nothing to learn."""


def against_fixed(
    session: Session,
    files: Sequence[Path],
    limit: int,
    max_tokens: int,
    lengths: Sequence[int],
    repeat: int,
) -> dict[str, Any]:
    """Speeds by arm and task."""
    drafting, package = session.drafting, session.head
    assert isinstance(drafting, MtpDrafter) and package is not None
    arms = {"plain": session.using(NoDrafter()), AUTO: session}
    for length in lengths:
        fixed = MtpDrafter(drafting.head, length, 0.0, package.config.calibration)
        arms[f"K={length}"] = session.using(fixed)
    if files:
        rows = select(chain.from_iterable(map(read_prompts, files)), [], limit)
    else:
        built_in = [row for name in TASKS for row in prompt_set(name, limit)]
        rows = select(map(parse_built_in, built_in), [])
    lines = arm_lines(run_arms(arms, rows, max_tokens, repeat))
    assert all(line["identical"] for line in lines)
    speeds: dict[str, dict[str, float]] = {}
    for line in lines:
        speeds.setdefault(str(line["task"]), {})[str(line["drafter"])] = line["tok_s"]["pooled"]  # type: ignore[index]
    return {"speeds": speeds, "tau": {f"{x['drafter']} {x['task']}": x["tau"] for x in lines}}


def parse_built_in(row: dict[str, Any]) -> Any:
    """A built-in prompt as a row."""
    from drafthead.evaluation.prompts import parse_row

    return parse_row(row, row["id"])


def table(speeds: dict[str, dict[str, float]]) -> list[list[str]]:
    """One row a task."""
    rows = []
    for task, by_arm in speeds.items():
        fixed = {name: speed for name, speed in by_arm.items() if name.startswith("K=")}
        best = max(fixed, key=lambda name: fixed[name])
        rows.append(
            [task, f"{by_arm[AUTO] / by_arm['plain']:.2f}", best,
             f"{fixed[best] / by_arm['plain']:.2f}", f"{by_arm[AUTO] / fixed[best]:.3f}"]
        )  # fmt: skip
    return rows


def floor(session: Session) -> dict[str, dict[str, float]]:
    """Speed and time to first token with random drafts over plain: medians of rounds."""
    size = session.backbone.spec.vocab_size
    arms = {
        "plain": session.using(NoDrafter()),
        "RANDOM": session.using(RandomDrafter(size), Adaptive()),
        "RANDOM, sure": session.using(RandomDrafter(size, 0.9), Adaptive()),
    }
    ids = session.encode(FLOOR_PROMPT, raw=not session.template.exists)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    orders = [*permutations(arms)] * FLOOR_CYCLES
    for turn, order in enumerate([orders[-1], *orders]):  # the first one warms up
        for name in order:
            arms[name].forget()
            started = perf_counter()
            stream = arms[name].stream_ids(ids, FLOOR_TOKENS, frozenset())
            next(stream)
            first = perf_counter()
            for _ in stream:
                pass
            if turn:
                taken[name].append((first - started, perf_counter() - first))
    ratios: dict[str, dict[str, float]] = {}
    for name in list(arms)[1:]:
        pairs = list(zip(taken["plain"], taken[name], strict=True))
        ratios[name] = {
            "speed": median(plain[1] / mine[1] for plain, mine in pairs),
            "first_token": median(mine[0] / plain[0] for plain, mine in pairs),
        }
    return ratios


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--prompts", type=Path, nargs="+", default=[])
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--lengths", default="1,2,3,4,6")
    parser.add_argument("--repeat", type=int, default=1, help="how often all of it is done")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    session = load(args.backbone, threads=args.threads)
    lengths = [int(word) for word in args.lengths.split(",")]
    found = against_fixed(session, args.prompts, args.limit, args.max_tokens, lengths, args.repeat)
    found |= {"floor": floor(session), "machine": describe(session.backbone.threads)}
    titles = ["task", "auto / plain", "best fixed", "fixed / plain", "auto / fixed"]
    print(markdown(titles, table(found["speeds"])))
    for name, ratio in found["floor"].items():
        print(f"{name}: {ratio['speed']:.3f} x plain, first token {ratio['first_token']:.3f} x")
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
