"""Prompts, plain decoding and passes of several rows beside llama.cpp, alternating in one process.

    python benchmarks/vs_llama_cpp.py [--backbone NAME|FILE ...] [--rounds 5] [--threads N]
        [--json FILE]

Needs llama-cpp-python in the same environment, built from source for this machine:

    CMAKE_ARGS="-DGGML_NATIVE=ON" pip install --no-binary llama-cpp-python llama-cpp-python

Each round measures both engines, in turned order, on the same file with the same threads: a
512-token prompt, 64 greedy tokens after it, and passes of 1, 2, 4 and 8 rows at context 200 with
the logits of every row (drafthead's passes also choose a token for each row; llama.cpp's logits are
left where they are). Memory is read in each round too. A ratio or v(M) is computed within a round;
the table has medians over the rounds, with the lowest and highest.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

from tables import markdown

from drafthead.backbone.handle import Backbone, Segment, default_threads
from drafthead.backbone.registry import backbone_name, resolve
from drafthead.evaluation.machine import BANDWIDTH_BYTES, MemoryReader, describe
from drafthead.evaluation.peers import SETTLE_S, LlamaCpp

PROMPT, ANSWER, ROWS_CONTEXT = 512, 64, 200
WIDTHS, REPEATS = (1, 2, 4, 8), 5
CONTEXT = PROMPT + ANSWER + max(WIDTHS)
Round = dict[str, float]


class Drafthead:
    """drafthead, one cache."""

    name = "drafthead"

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.cache = backbone.new_cache(CONTEXT)

    def rollback(self, length: int) -> None:
        self.cache.rollback(length)

    def choose(self, tokens: Sequence[int]) -> int:
        return int(self.backbone.forward([Segment(self.cache, tokens)], rows="last").tokens[-1])

    def feed_rows(self, tokens: Sequence[int]) -> None:
        self.backbone.forward([Segment(self.cache, tokens)], rows="all")


class Peer(LlamaCpp):
    """llama.cpp, one context."""

    def feed_rows(self, tokens: Sequence[int]) -> None:
        self.feed(tokens, every_row=True)


def timed_ms(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return 1000 * (perf_counter() - start)


def one_round(engine: Drafthead | Peer, prompt: list[int], order: random.Random) -> Round:
    """Speeds (tokens a second) and the times of passes (ms) of one engine."""
    sleep(SETTLE_S)
    engine.rollback(0)
    found = {"prompt_tok_s": 1000 * PROMPT / timed_ms(lambda: engine.choose(prompt))}

    def answer() -> None:
        token = prompt[0]
        for _ in range(ANSWER):
            token = engine.choose([token])

    found["plain_tok_s"] = 1000 * ANSWER / timed_ms(answer)
    engine.rollback(0)
    engine.choose(prompt[:ROWS_CONTEXT])
    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(REPEATS):
        for width in order.sample(WIDTHS, len(WIDTHS)):
            rows = prompt[ROWS_CONTEXT : ROWS_CONTEXT + width]
            times[width].append(timed_ms(lambda: engine.feed_rows(rows)))  # noqa: B023
            engine.rollback(ROWS_CONTEXT)
    for width, values in times.items():
        found[f"rows_{width}_ms"] = median(values)
        found[f"v_{width}"] = found[f"rows_{width}_ms"] / found["rows_1_ms"]
    return found


def measure(path: Path, threads: int, rounds: int) -> dict[str, object]:
    """All rounds with one backbone, the first of which warms up and is not counted."""
    backbone = Backbone.open(path, threads=threads)
    peer = Peer(path, threads, CONTEXT)
    engines: list[Drafthead | Peer] = [Drafthead(backbone), peer]
    order = random.Random(0)
    prompt = [order.randrange(1000, 20_000) for _ in range(PROMPT)]
    reader = MemoryReader(threads)
    found: dict[str, list[Round]] = {engine.name: [] for engine in engines}
    read_ms = []
    for number in range(rounds + 1):
        read_ms.append(median(timed_ms(reader.read) for _ in range(REPEATS)))
        for engine in engines if number % 2 else engines[::-1]:
            found[engine.name].append(one_round(engine, prompt, order))
    version, build = peer.version, peer.build
    peer.close()
    ours, theirs = (found[engine.name][1:] for engine in engines)
    shares = [
        backbone.pass_bytes / a["rows_1_ms"] * ms / BANDWIDTH_BYTES
        for a, ms in zip(ours, read_ms[1:], strict=True)
    ]
    speeds = ("plain_tok_s", "prompt_tok_s")
    ratios = {
        name: [a[name] / b[name] for a, b in zip(ours, theirs, strict=True)] for name in speeds
    }
    return {
        "backbone": backbone_name(path),
        "file": path.name,
        "bytes_per_pass": backbone.pass_bytes,
        "memory_read_gb_s": spread([BANDWIDTH_BYTES / ms / 1e6 for ms in read_ms[1:]]),
        "drafthead": {name: spread([a[name] for a in ours]) for name in ours[0]},
        "llama.cpp": {name: spread([b[name] for b in theirs]) for name in theirs[0]},
        "ratio": {name: spread(values) for name, values in ratios.items()},
        "bandwidth_share": spread(shares),
        "peer": {"version": version, "build": build},
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": median(values), "low": min(values), "high": max(values)}


def cell(value: Mapping[str, float], digits: int = 2) -> str:
    low, high = (f"{value[name]:.{digits}f}" for name in ("low", "high"))
    return f"{value['median']:.{digits}f} ({low}-{high})"


def table(results: Sequence[Mapping]) -> str:
    """One row a backbone; two numbers in a cell are drafthead's and llama.cpp's."""
    header = ["backbone"]
    for speed in ("plain", "prompt"):
        header += [f"{speed} tok/s", f"{speed} ratio"]
    header += [f"v({width})" for width in WIDTHS[1:]] + ["bandwidth share"]
    rows = []
    for result in results:
        both = [result["drafthead"], result["llama.cpp"]]
        row = [result["backbone"]]
        for name in ("plain_tok_s", "prompt_tok_s"):
            row += [" / ".join(f"{engine[name]['median']:.0f}" for engine in both)]
            row += [cell(result["ratio"][name])]
        for width in WIDTHS[1:]:
            row += [" / ".join(f"{engine[f'v_{width}']['median']:.2f}" for engine in both)]
        rows.append([*row, cell(result["bandwidth_share"])])
    return markdown(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", nargs="+", default=["smollm2-135m"], metavar="NAME|FILE")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None, help="write every number to this file")
    args = parser.parse_args()
    results = [measure(resolve(name), args.threads, args.rounds) for name in args.backbone]
    machine = describe(args.threads)
    print(table(results))
    print(
        f"\n{machine['cpu']}, {args.threads} threads, {machine['isa']}; {args.rounds} rounds. "
        f"drafthead / {results[0]['peer']['version']}, built with {results[0]['peer']['build']}."
    )
    if args.json is not None:
        report = {"machine": machine, "rounds": args.rounds, "backbones": results}
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
