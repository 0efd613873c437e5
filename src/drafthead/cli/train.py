"""`drafthead train`: a head from a recipe and the backbone's own answers."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafthead.cli import output
from drafthead.errors import TrainingError

if TYPE_CHECKING:
    from rich.console import Console

    from drafthead.heads.package import HeadPackage
    from drafthead.session import Session
    from drafthead.training.features import FeatureStore
    from drafthead.training.recipe import Recipe
    from drafthead.training.trainer import Report


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser("train", help="train a head from a recipe")
    parser.add_argument("recipe", type=Path, help="TOML file")
    parser.add_argument("--answers", type=Path, required=True, help="folder made by regen")
    parser.add_argument("--run", dest="run_folder", type=Path, required=True,
                        help="folder of checkpoints; resumes")  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, help="folder of the head package")
    parser.add_argument("--features", type=Path, default=None, help="default: RUN/features")
    parser.add_argument("--prompts", nargs="*", type=Path, default=[],
                        help="prompts to measure the head on at the end")  # fmt: skip
    parser.add_argument("--backbone", default=None, help="default: the recipe's")
    parser.add_argument("--max-disk", type=gigabytes, default=8.0, help="GB that features may take")
    parser.add_argument("--plan", action="store_true", help="say what it will take, and stop")
    output.add_threads_flag(parser)
    output.add_json_flag(parser)
    parser.set_defaults(run=run)


def gigabytes(text: str) -> float:
    """A flag value above 0; for argparse."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return value


def _percent(shares: list[float | None]) -> str:
    return "/".join("-" if share is None else f"{share:.2f}"[1:] for share in shares)


def show(console: Console, report: Report) -> None:
    """One line of progress."""
    line = (
        f"{report.share:6.1%}  step {report.progress.step:5d}  loss {report.loss:.3f}  "
        f"top-1 {_percent(report.accuracy)}  {report.anchors_per_s:.0f} anchors/s"
    )
    if report.tau is not None:
        line += f"  held-out tau {report.tau:.3f}  accepted {_percent(report.accept_at)}"
    if report.progress.skipped:
        line += f"  skipped {report.progress.skipped}"
    console.print(line, highlight=False)


def _build_features(features: FeatureStore, console: Console) -> None:
    from rich.progress import Progress, TimeRemainingColumn

    with Progress(*Progress.get_default_columns()[:3], TimeRemainingColumn(),
                  console=console) as progress:  # fmt: skip
        bar = progress.add_task("features", total=features.plan.rows)
        features.build(lambda rows: progress.update(bar, completed=rows))


def _measure(
    session: Session, recipe: Recipe, package: HeadPackage, paths: list[Path]
) -> list[dict[str, object]]:
    from drafthead.evaluation.prompts import read_prompts
    from drafthead.training.evaluate import measure
    from drafthead.training.prompts import choose

    everything = (row for path in paths for row in read_prompts(path))
    rows, _ = choose(everything, [], recipe.measure.per_task, recipe.train.seed)
    return measure(session, package, rows, recipe.measure)


def run(args: argparse.Namespace) -> int:
    """Train, export and measure a head."""
    try:
        from drafthead.training import pipeline
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise TrainingError(
            "Training needs torch, which is not installed: `pip install 'drafthead[train]'`."
        ) from error
    from drafthead.evaluation.report import markdown_table
    from drafthead.session import load
    from drafthead.training.recipe import load_recipe

    console = output.console()
    recipe = load_recipe(args.recipe)
    name = args.backbone or recipe.head.backbone
    session = load(name, head="none", drafter="none", threads=args.threads)
    backbone = session.backbone
    inputs = pipeline.read_inputs(recipe, args.answers, backbone, session.tokenizer.eos_ids)
    folder = args.features or args.run_folder / "features"
    features = pipeline.feature_store(recipe, backbone, inputs, folder)
    plan = features.plan
    coverage = inputs.vocabulary.coverage(inputs.heldout or inputs.train)
    result: dict[str, object] = {
        "answers": len(inputs.train), "heldout": len(inputs.heldout), "anchors": plan.anchors,
        "feature_bytes": plan.nbytes, "coverage": coverage,
    }  # fmt: skip
    console.print(
        f"{len(inputs.train)} answers to train on, {len(inputs.heldout)} held out, {plan.anchors} "
        f"anchors, features {plan.nbytes / 1e9:.2f} GB, draft vocabulary {len(inputs.vocabulary)} "
        f"covers {coverage:.1%} of held-out tokens",
        highlight=False,
    )
    plan.check(int(args.max_disk * 1e9))
    if not args.plan:
        _build_features(features, console)
        package = pipeline.train(
            recipe, backbone, inputs, features, args.run_folder, args.out,
            lambda report: show(console, report),
        )  # fmt: skip
        result |= {"head": str(args.out), "training": dict(package.config.training)}
        if args.prompts:
            result["arms"] = arms = _measure(session, recipe, package, args.prompts)
            console.print(markdown_table(arms))
    if args.json:
        output.print_json(result)
    return 0
