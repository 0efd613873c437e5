"""`drafthead regen`: the backbone answers prompts, to train on."""

from __future__ import annotations

import argparse
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafthead.cli import output
from drafthead.cli.flag_types import gigabytes, layer_list, part, share, temperature
from drafthead.errors import RequestError, TrainingError

if TYPE_CHECKING:
    from drafthead.evaluation.prompts import PromptRow
    from drafthead.session import Session
    from drafthead.training.answers import Answer
    from drafthead.training.features import FeatureFiles
    from drafthead.training.regen import RegenCounts, Regenerator, RegenSettings

BUILT_IN_PER_TASK = 500
PROMPTS_FILE = "invented.jsonl"


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
    _add_feature_flags(parser)
    parser.add_argument("--invent", type=output.count, default=0, metavar="N",
                        help="let the backbone invent N prompts too")  # fmt: skip
    parser.add_argument("--shard", type=part, default=None, metavar="I/N",
                        help="answer part I of N alone, as 2/4")  # fmt: skip
    parser.add_argument("--merge", nargs="+", type=Path, default=[], metavar="DIR",
                        help="put the folders of all parts together in --out; stop")  # fmt: skip
    parser.add_argument("--merge-features", nargs="+", type=Path, default=[], metavar="DIR",
                        help="with --merge: put these --features folders of the parts together "
                        "in --features")  # fmt: skip
    parser.add_argument("--plan", action="store_true", help="say what it will take, and stop")
    output.add_threads_flag(parser)
    output.add_json_flag(parser)
    parser.set_defaults(run=run)


def _add_feature_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--features", type=Path, default=None,
                        help="also keep what training reads, in this folder")  # fmt: skip
    parser.add_argument("--kv-layers", type=layer_list, default=(),
                        help="layers whose keys and values --features keeps, as 17,18")  # fmt: skip
    parser.add_argument("--taps", type=layer_list, default=(),
                        help="layers whose outputs --features keeps too, as 9,19")  # fmt: skip
    parser.add_argument("--max-disk", type=gigabytes, default=8.0, help="GB that features may take")


def _check(args: argparse.Namespace) -> None:
    if args.max_tokens >= args.capacity:
        raise RequestError(
            f"--max-tokens {args.max_tokens} leaves no room for a prompt in --capacity "
            f"{args.capacity}."
        )
    kept = (("--kv-layers", args.kv_layers), ("--taps", args.taps))
    for flag, layers in (*kept, ("--merge-features", args.merge_features)):
        if layers and args.features is None:
            raise RequestError(f"{flag} says what --features keeps; give that folder too.")
    if args.merge_features and not args.merge:
        raise RequestError("--merge-features belongs to --merge; give the parts' answers too.")
    for other, given in (("--shard", args.shard), ("--plan", args.plan)):
        if args.invent and given:
            raise RequestError(
                f"--invent and {other} do not go together: invent first, then give the prompts "
                f"with --prompts {args.out / PROMPTS_FILE} and {other}."
            )


def run(args: argparse.Namespace) -> int:
    """Merge, plan, or answer the prompts and print what the folder holds."""
    _check(args)
    if args.merge:
        return _merge(args)
    from drafthead.session import load
    from drafthead.training.prompts import choose
    from drafthead.training.shards import Shard, cut

    tasks = output.names(args.tasks)
    rows = _read(args, tasks)
    session = load(args.backbone, head="none", drafter="none", threads=args.threads)
    if args.capacity > session.context:
        raise RequestError(
            f"--capacity {args.capacity} is more than {session.backbone.name} can hold: "
            f"{session.context} tokens."
        )
    _check_layers(args, session)
    if args.invent:
        with _alone(args):
            rows += _invent(args, session)
        tasks = tasks and [*tasks, "invented"]
    prompts, duplicates = choose(rows, tasks, args.limit, args.seed)
    if args.plan:
        part = (
            prompts if args.shard is None else [p for p in prompts if Shard(*args.shard).holds(p)]
        )
        return _plan(args, session, part)
    if args.shard is not None:
        prompts = cut(prompts, Shard(*args.shard), args.out)
    start = time.perf_counter()
    with _alone(args):
        manifest = _answer(args, session, prompts)
    seconds = round(time.perf_counter() - start, 1)
    return _print_manifest(args, manifest | {"duplicates": duplicates, "seconds": seconds})


def _alone(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Hold the folders that are written in."""
    from drafthead.training.alone import alone_in

    return alone_in(*(folder for folder in (args.out, args.features) if folder is not None))


def _merge(args: argparse.Namespace) -> int:
    """Put parts together: their answers, and where asked for their features."""
    from drafthead.training.answers import AnswerStore
    from drafthead.training.merge_features import merge_features, open_parts
    from drafthead.training.shards import merge

    parts = []
    answered = AnswerStore(args.merge[0]).manifest()
    if args.merge_features and answered is not None:  # what holds no answers, `merge` names
        parts = open_parts(args.merge_features, args.features, answered.get("fingerprint"))
        check_disk(sum(part.nbytes for part in parts), args.max_disk)
    with _alone(args):
        manifest = merge(args.merge, args.out)
        if parts:
            missing = merge_features(parts, args.features, list(AnswerStore(args.out).rows()))
            manifest |= {"without_features": missing}
    return _print_manifest(args, manifest)


def _print_manifest(args: argparse.Namespace, manifest: dict[str, object]) -> int:
    if args.json:
        output.print_json(manifest)
        return 0
    print(f"{manifest['answers']} answers with {manifest['answer_tokens']} tokens in {args.out}")
    if skipped := manifest.get("skipped"):
        print(
            f"{skipped} prompts were passed over: with {args.max_tokens} tokens of answer they do "
            f"not fit into --capacity {args.capacity}."
        )
    return 0


def _read(args: argparse.Namespace, tasks: list[str]) -> list[PromptRow]:
    from drafthead.evaluation.prompts import read_prompts
    from drafthead.training.prompts import built_in

    if args.prompts or args.invent:
        return [row for path in args.prompts for row in read_prompts(path)]
    return built_in(tasks, args.limit or BUILT_IN_PER_TASK, args.seed)


def _check_layers(args: argparse.Namespace, session: Session) -> None:
    last = session.backbone.spec.n_layers - 1
    for flag, layers in (("--kv-layers", args.kv_layers), ("--taps", args.taps)):
        if max(layers, default=0) > last:
            raise RequestError(
                f"{flag}: {session.backbone.name} has layers 0 to {last}, found {max(layers)}."
            )


def _feature_files(args: argparse.Namespace, session: Session, folder: Path) -> FeatureFiles:
    """The files of --features, or the same ones in another folder."""
    from drafthead.training.features import FeatureFiles, FeatureSizes

    return FeatureFiles(folder, FeatureSizes.of(session.backbone), args.kv_layers, args.taps)


def _settings(args: argparse.Namespace) -> RegenSettings:
    from drafthead.training.regen import RegenSettings

    heat = args.temperature if args.sampled else 1.0
    return RegenSettings(
        args.max_tokens, args.capacity, args.keep_loops, args.seed, heat, args.sampled
    )


def _regenerator(
    args: argparse.Namespace, session: Session, features: FeatureFiles | None = None
) -> Regenerator:
    from drafthead.training.regen import session_regenerator

    return session_regenerator(session, _settings(args), args.sequences, features)


def _invent(args: argparse.Namespace, session: Session) -> list[PromptRow]:
    from drafthead.training.invent import invent, write_prompts

    with output.progress("prompts invented", *_columns()) as progress:
        bar = progress.add_task("prompts", total=args.invent, note="")

        def on_answer(_answer: Answer, counts: RegenCounts) -> None:
            progress.update(bar, completed=counts.resumed + counts.answers)

        found = invent(
            session, args.out, args.invent, args.seed, args.temperature, args.sequences, on_answer
        )
    write_prompts(args.out / PROMPTS_FILE, found)
    return found


def _columns() -> tuple[Any, ...]:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn

    return BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[note]}")


def _answer(
    args: argparse.Namespace, session: Session, prompts: list[PromptRow]
) -> dict[str, object]:
    from drafthead.training.pace import Pace
    from drafthead.training.regen import regenerate

    features = None
    if args.features is not None:
        features = _feature_files(args, session, args.features)
    regenerator = _regenerator(args, session, features)
    pace = Pace(regenerator, _settings(args))
    with output.progress("answers", *_columns()) as progress:
        bar = progress.add_task("tokens", total=None, note="")

        def on_answer(answer: Answer, counts: RegenCounts) -> None:
            pace.add(answer)
            done, left = pace.tokens()
            note = (
                f"{counts.resumed + counts.answers} answers, {counts.answer_tokens} tokens, "
                f"{counts.answer_tokens / pace.seconds:.0f} tok/s, about "
                f"{output.duration(pace.seconds_left())} left"
            )
            progress.update(bar, completed=done, total=done + left, note=note)
            if features is not None:
                check_disk(features.nbytes, args.max_disk)

        return regenerate(regenerator, prompts, args.out, _settings(args), on_answer)


def _plan(args: argparse.Namespace, session: Session, prompts: list[PromptRow]) -> int:
    from dataclasses import asdict
    from tempfile import TemporaryDirectory

    from drafthead.training.answers import AnswerStore
    from drafthead.training.plan import make_plan

    sizes = None
    if args.features is not None:
        with TemporaryDirectory() as empty:  # what is in --features stays as it is
            files = _feature_files(args, session, Path(empty))
            sizes = files.bytes_per_anchor, files.bytes_per_row
    held = list(AnswerStore(args.out).rows())
    plan = make_plan(
        _regenerator(args, session), _settings(args), prompts, held, args.sequences, sizes
    )
    if args.json:
        output.print_json(asdict(plan))
    else:
        features = "" if sizes is None else f", features {(plan.feature_bytes or 0) / 1e9:.2f} GB"
        print(
            f"{plan.prompts} prompts to answer ({plan.held} answered, {plan.skipped} too long): "
            f"{plan.prompt_tokens} prompt tokens and about {plan.answer_tokens} answer tokens, "
            f"{plan.rows} rows in about {output.duration(plan.seconds)}; answers "
            f"{plan.answer_bytes / 1e6:.1f} MB{features}"
        )
    check_disk(plan.feature_bytes or 0, args.max_disk)
    return 0


def check_disk(nbytes: int, max_disk: float) -> None:
    """Refuse features over the limit: TrainingError with both numbers."""
    if nbytes > max_disk * 1e9:
        raise TrainingError(
            f"The features take {nbytes / 1e9:.2f} GB and the limit is {max_disk:.2f} GB; answer "
            "fewer prompts or raise --max-disk. Answers and features so far are kept."
        )
