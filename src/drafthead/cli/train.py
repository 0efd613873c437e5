"""`drafthead train`: a head from a recipe and the backbone's own answers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafthead.cli import output
from drafthead.cli.flag_types import gigabytes
from drafthead.errors import TrainingError

if TYPE_CHECKING:
    from drafthead.cli.train_head import Command


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    from drafthead.cli.train_standalone import add_flags

    parser = subparsers.add_parser("train", help="train a head from a recipe")
    parser.add_argument("recipe", help="TOML file, or the name of a recipe in the package")
    folders = (
        ("--answers", "answers", "made by regen (default: RUN/answers, of built-in prompts)"),
        ("--run", "run_folder", "of checkpoints; resumes (default: runs/RECIPE)"),
        ("--out", "out", "of the head package (default: RUN/head)"),
        ("--features", "features", "of what the backbone shows (default: RUN/features)"),
    )
    for flag, name, what in folders:
        parser.add_argument(flag, dest=name, type=Path, default=argparse.SUPPRESS, metavar="FOLDER",
                            help=f"folder {what}")  # fmt: skip
    parser.add_argument("--prompts", nargs="*", type=Path, default=[],
                        help="files to measure the head on at the end; else built in")  # fmt: skip
    parser.add_argument("--backbone", default=None, help="default: the recipe's")
    parser.add_argument("--max-disk", type=gigabytes, default=8.0, help="GB that features may take")
    parser.add_argument("--host", choices=("engine", "torch"), default="engine",
                        help="what computes features that are missing")  # fmt: skip
    parser.add_argument("--device", default="cpu",
                        help="of training and of --host torch: cpu, cuda, ...")  # fmt: skip
    parser.add_argument("--weights", type=Path, default=None, metavar="FOLDER",
                        help="of --host torch: the model's own safetensors (default: the "
                        "backbone's, dequantised)")  # fmt: skip
    parser.add_argument("--start-from", default=None, metavar="HEAD",
                        help="go on from this head, of the recipe's shape: the folder of a "
                        "package, or the name of a shipped one; a standalone drafter from a .gguf "
                        "file of its shape (default: as the recipe says)")  # fmt: skip
    parser.add_argument("--plan", action="store_true", help="say what it will take, and stop")
    add_flags(parser)
    output.add_threads_flag(parser)
    output.add_json_flag(parser)
    parser.set_defaults(run=run)


def report(command: Command, result: dict[str, Any]) -> None:
    """For people: the table of both arms, and how to use the head."""
    from drafthead.evaluation.report.table import COLUMNS, arm_rows

    if "arms" in result:
        print(output.aligned([title for _, title in COLUMNS], arm_rows(result["arms"]), left=2))
        print(
            f'\nUse it: drafthead generate --backbone {command.name} {command.usage} "your prompt"'
        )


def run(args: argparse.Namespace) -> int:
    """Train, export and measure a head, or a standalone drafter."""
    from drafthead.cli.train_head import Command
    from drafthead.cli.train_standalone import StandaloneCommand, check

    check(args)
    try:
        from drafthead.training.device import device_here
        from drafthead.training.parallel import joined
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise TrainingError(
            "Training needs torch, which is not installed: `pip install 'drafthead[train]'`."
        ) from error
    with joined(device_here(args.device)) as workers:
        standalone = args.drafter == "standalone"
        command = (StandaloneCommand if standalone else Command)(args, workers)
        command.check()
        result = command.run()
        if not workers.first:
            return 0
        if args.json:
            output.print_json(result)
        else:
            report(command, result)
    return 0
