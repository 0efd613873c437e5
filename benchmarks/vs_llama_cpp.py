"""Plain decoding and prompt processing beside llama.cpp, alternating in one process.

    python benchmarks/vs_llama_cpp.py [--backbone NAME|FILE] [--threads 2] [--rounds 7]

Needs llama-cpp-python in the same environment, built from source for this machine:

    CMAKE_ARGS="-DGGML_NATIVE=ON" pip install --no-binary llama-cpp-python llama-cpp-python

Each round runs a 512-token prompt and 64 greedy tokens after it, and passes of 1, 2, 4 and 8 rows,
on both sides in turn. Printed are medians over the rounds, their spread, and the ratios; the last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from llama_cpp import Llama

from drafthead.backbone.handle import Backbone, Segment
from drafthead.backbone.registry import resolve

PROMPT, ANSWER, WIDTHS = 512, 64, (1, 2, 4, 8)


class Ours:
    """drafthead, one cache."""

    def __init__(self, path: str, threads: int) -> None:
        self.backbone = Backbone.open(path, threads=threads)
        self.cache = self.backbone.new_cache(PROMPT + ANSWER + max(WIDTHS))

    def reset(self, length: int) -> None:
        self.cache.rollback(length)

    def feed(self, tokens: list[int], every_row: bool) -> int:
        rows = "all" if every_row else "last"
        return int(self.backbone.forward([Segment(self.cache, tokens)], rows=rows).tokens[-1])


class LlamaCpp:
    """llama.cpp through its Python binding; logits of every row only where ours gives them too."""

    def __init__(self, path: str, threads: int) -> None:
        sizes = {"n_ctx": 1024, "n_batch": PROMPT, "n_ubatch": PROMPT}
        counts = {"n_threads": threads, "n_threads_batch": threads}
        self.last = Llama(path, **sizes, **counts, verbose=False)
        self.all = Llama(path, **sizes, **counts, logits_all=True, verbose=False)
        self.prefilled = False

    def reset(self, length: int) -> None:
        for model in (self.last, self.all):
            model.n_tokens = length
            model._ctx.kv_cache_seq_rm(0, length, -1)

    def feed(self, tokens: list[int], every_row: bool) -> int:
        model = self.all if every_row else self.last
        model.eval(tokens)
        scores = model.scores[model.n_tokens - 1] if every_row else model._scores[-1]
        return int(np.argmax(scores))


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


def one_round(engine: Ours | LlamaCpp, prompt: list[int]) -> dict[str, float]:
    """Prompt and decoding speeds (tokens a second) and the time of an M-row pass (ms)."""
    engine.reset(0)
    found = {"prompt_tok_s": 1000 * PROMPT / timed(lambda: engine.feed(prompt, False))}

    def answer() -> None:
        token = prompt[0]
        for _ in range(ANSWER):
            token = engine.feed([token], False)

    found["plain_tok_s"] = 1000 * ANSWER / timed(answer)
    engine.reset(0)
    engine.feed(prompt[:200], True)
    for width in WIDTHS:
        times = []
        for _ in range(5):
            engine.reset(200)
            times.append(timed(lambda: engine.feed(prompt[:width], True)))  # noqa: B023
        found[f"rows_{width}_ms"] = statistics.median(times)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    path = str(resolve(args.backbone))
    engines = {"drafthead": Ours(path, args.threads), "llama.cpp": LlamaCpp(path, args.threads)}
    prompt = [int(t) for t in np.random.default_rng(0).integers(1000, 20000, PROMPT)]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for number in range(args.rounds + 1):
        names = list(engines) if number % 2 else list(engines)[::-1]
        for name in names:
            result = one_round(engines[name], prompt)
            if number:  # the first round warms up
                rounds[name].append(result)
    summary: dict[str, dict[str, float]] = {name: {} for name in engines}
    print(f"{'':16}{'drafthead':>22}{'llama.cpp':>22}{'ratio':>8}")
    for key in rounds["drafthead"][0]:
        cells = []
        for name in engines:
            values = sorted(result[key] for result in rounds[name])
            summary[name][key] = statistics.median(values)
            cells.append(f"{summary[name][key]:.2f} ({values[0]:.2f}-{values[-1]:.2f})")
        ours, theirs = (summary[name][key] for name in engines)
        ratio = ours / theirs if key.endswith("tok_s") else theirs / ours
        print(f"{key:16}{cells[0]:>22}{cells[1]:>22}{ratio:>8.2f}")
    for name in engines:
        base = summary[name]["rows_1_ms"]
        widths = {f"v({m})": round(summary[name][f"rows_{m}_ms"] / base, 2) for m in WIDTHS[1:]}
        print(f"{name}: {widths}")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
