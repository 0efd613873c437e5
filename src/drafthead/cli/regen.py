"""`drafthead regen`: the backbone answers prompts, to train on."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

from drafthead.cli import output
from drafthead.errors import RequestError

BUILT_IN_PER_TASK = 500


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser("regen", help="answer prompts by the backbone, for training")
    parser.add_argument("--backbone", default="smollm2-135m", help="name or path of a .gguf")
    parser.add_argument(
        "--prompts",
        nargs="+",
        type=Path,
        default=[],
        help="JSON-lines files, plain or gzip; without any, built-in on-device prompts",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of answers; resumes")
    parser.add_argument("--tasks", default="", help="only these, comma-separated")
    parser.add_argument(
        "--limit", type=output.count, default=None, help="prompts a task; all of them"
    )
    parser.add_argument("--max-tokens", type=output.count, default=256, help="longest answer")
    parser.add_argument(
        "--capacity", type=output.count, default=1024, help="prompt and answer, in tokens"
    )
    parser.add_argument("--sequences", type=output.count, default=16, help="answers in flight")
    parser.add_argument("--keep-loops", action="store_true", help="do not cut repetitions")
    parser.add_argument("--sampled", type=share, default=0.0,
                        help="share of the prompts answered by sampling, 0 to 1")  # fmt: skip
    parser.add_argument("--temperature", type=temperature, default=1.0, help="of sampled answers")
    parser.add_argument("--seed", type=int, default=0,
                        help="decides which prompts --limit takes and what is sampled")  # fmt: skip
    parser.add_argument("--features", type=Path, default=None,
                        help="also keep what training reads, in this folder")  # fmt: skip
    parser.add_argument("--kv-layers", type=layer_list, default=(),
                        help="layers whose keys and values --features keeps, as 17,18")  # fmt: skip
    output.add_threads_flag(parser)
    output.add_json_flag(parser)
    parser.set_defaults(run=run)


def number(text: str, low: float, high: float) -> float:
    """A flag value within two limits; for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"expected a number of {low} to {high}, found {text!r}")
    return value


def share(text: str) -> float:
    """A flag value from 0 to 1; for argparse."""
    return number(text, 0.0, 1.0)


def temperature(text: str) -> float:
    """A flag value that logits can be divided by; for argparse."""
    return number(text, 0.05, 10.0)


def layer_list(text: str) -> tuple[int, ...]:
    """Comma-separated layer numbers; for argparse."""
    try:
        layers = tuple(int(part) for part in text.split(","))
    except ValueError:
        layers = (-1,)
    if min(layers) < 0:
        raise argparse.ArgumentTypeError(f"expected layer numbers such as 17,18, found {text!r}")
    return layers


def _check(args: argparse.Namespace) -> None:
    if args.max_tokens >= args.capacity:
        raise RequestError(
            f"--max-tokens {args.max_tokens} leaves no room for a prompt in --capacity "
            f"{args.capacity}."
        )


def run(args: argparse.Namespace) -> int:
    """Answer the prompts and print what the folder holds."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from drafthead.evaluation.prompts import PromptRow, end_ids, parse_row, prompt_ids, read_prompts
    from drafthead.session import load
    from drafthead.tasks import TASKS, prompt_set
    from drafthead.training.answers import Answer
    from drafthead.training.features import FeatureFiles
    from drafthead.training.prompts import choose
    from drafthead.training.regen import RegenCounts, Regenerator, RegenSettings, regenerate

    _check(args)
    tasks = [task for task in args.tasks.split(",") if task]
    if args.prompts:
        rows = (row for path in args.prompts for row in read_prompts(path))
    else:
        count = args.limit or BUILT_IN_PER_TASK
        made = (row for task in tasks or TASKS for row in prompt_set(task, count, args.seed))
        rows = (parse_row(row, "built-in prompts") for row in made)
    prompts, duplicates = choose(rows, tasks, args.limit, args.seed)
    session = load(args.backbone, head="none", drafter="none", threads=args.threads)

    def encode(prompt: PromptRow) -> list[int]:
        return prompt_ids(session, prompt)

    features = None
    if args.features is not None:
        features = FeatureFiles(args.features, session.backbone, args.kv_layers)
    settings = RegenSettings(
        args.max_tokens, args.capacity, args.keep_loops, args.seed,
        args.temperature if args.sampled else 1.0, args.sampled,
    )  # fmt: skip
    regenerator = Regenerator(
        session.backbone, encode, end_ids(session), settings, args.sequences,
        features,
    )  # fmt: skip
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    start = time.perf_counter()
    with output.progress("answers", *columns) as progress:
        bar = progress.add_task("answers", total=len(prompts), note="")

        def on_answer(_answer: Answer, counts: RegenCounts) -> None:
            rate = counts.answer_tokens / (time.perf_counter() - start)
            note = f"{counts.answer_tokens} tokens, {rate:.0f} tok/s"
            done = counts.resumed + counts.answers + counts.skipped
            progress.update(bar, completed=done, note=note)

        manifest = regenerate(regenerator, prompts, args.out, settings, on_answer)
    manifest |= {"duplicates": duplicates, "seconds": round(time.perf_counter() - start, 1)}
    if args.json:
        output.print_json(manifest)
    else:
        print(
            f"{manifest['answers']} answers with {manifest['answer_tokens']} tokens in {args.out}"
        )
    return 0
