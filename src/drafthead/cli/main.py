"""The entry point: find the command, import that one alone, turn errors into one sentence.

A command is a module `drafthead.cli.<name>` with

    add_parser(subparsers) -> None           adds the command and its flags, with
                                             `set_defaults(run=run)`; imports nothing heavy
    run(args: argparse.Namespace) -> int     does it; returns the exit code

and one line in COMMANDS. `--debug` is added here for all of them.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from drafthead.errors import DraftheadError

COMMANDS = {
    "pull": "fetch a backbone into the cache, checked",
    "generate": "answer a prompt",
    "demo": "three on-device tasks, with and without the head",
    "selftest": "does this machine give the same bits whatever shares a pass?",
    "bench": "measure drafters against plain decoding, in one run",
    "cost": "time of a pass, of a draft step, and the break-even acceptance",
    "regen": "let the backbone answer prompts, for training",
    "train": "train a head from a recipe",
}
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


class OneSentenceParser(argparse.ArgumentParser):
    """An argparse parser whose complaint is one sentence, and which knows no abbreviations."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.ArgumentDefaultsHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where help is, and leave with exit code 2."""
        sys.stderr.write(f"{self.prog}: {message.rstrip('.')} (see `{self.prog} --help`).\n")
        raise SystemExit(EXIT_USAGE)


def top_level_help() -> str:
    """The text of `drafthead --help`: the commands, one line each."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: drafthead COMMAND [OPTIONS]",
            "",
            "A frozen language model decodes faster because a small trained head drafts and the",
            "model itself verifies, with the very same bits out.",
            "",
            "commands:",
            *lines,
            "",
            "`drafthead COMMAND --help` tells the options; every command takes --json and --debug.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, map what it raises to an exit code, and return that."""
    prepare_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = dispatch(words)
        sys.stdout.flush()  # a full disk shows here at the latest
        return code
    except BrokenPipeError:
        drop_unwritten()  # the reader of our output has gone: nobody to tell
        return EXIT_FAILED
    except (DraftheadError, OSError, MemoryError, KeyboardInterrupt) as error:
        if "--debug" in words:
            raise
        drop_unwritten()
        sys.stderr.write(f"{command_name(words)}: {sentence(error)}\n")
        return EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_FAILED


def prepare_streams() -> None:
    """Stand in for standard streams that were closed, and let no character end an answer."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            opened = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - stays open
            setattr(sys, name, opened)
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a narrow terminal


def drop_unwritten() -> None:
    """Keep Python from writing again at exit what could not be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def command_name(words: Sequence[str]) -> str:
    """What an error sentence begins with."""
    return f"drafthead {words[0]}" if words and words[0] in COMMANDS else "drafthead"


def sentence(error: BaseException) -> str:
    """What is told of an error."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped."
    if isinstance(error, MemoryError):
        return "there is not enough memory: free some, or take a smaller backbone or context."
    if not isinstance(error, OSError):
        return str(error)
    what = error.strerror or str(error)
    return f"{what}: {error.filename}." if error.filename else f"{what}."


def dispatch(words: list[str]) -> int:
    """Answer `--help` and `--version`, or run the command that the words begin with."""
    if not words or words[0] in ("-h", "--help"):
        print(top_level_help())
        return 0
    if words[0] == "--version":
        from drafthead import __version__

        print(f"drafthead {__version__}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        sys.stderr.write(f"drafthead: no command {name!r}; the commands are {known}.\n")
        return EXIT_USAGE
    return run_command(name, words[1:])


def run_command(name: str, words: Sequence[str]) -> int:
    """Parse the words of one command and run it."""
    module = importlib.import_module(f"drafthead.cli.{name}")
    parser = OneSentenceParser(prog="drafthead")
    subparsers = parser.add_subparsers()
    module.add_parser(subparsers)
    command = subparsers.choices[name]
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    try:
        args = command.parse_args(words)
    except SystemExit as leave:
        return int(leave.code or 0)
    return int(args.run(args))


if __name__ == "__main__":
    raise SystemExit(main())
