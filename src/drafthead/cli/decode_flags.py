"""The flags that say how tokens are chosen, where the text stops and what is told about it.

Each is a field of `DecodeOptions`, which checks its value.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafthead.decoding.options import DecodeOptions
from drafthead.errors import RequestError

if TYPE_CHECKING:
    from drafthead.types import ScoredToken

# Flag, field, how its text is read, and what it does.
_NUMBERS: tuple[tuple[str, Callable[[str], Any], str], ...] = (
    ("temperature", float, "0 takes the likeliest token; above, tokens are drawn"),
    ("top_k", int, "draw among so many likeliest tokens; 0: all"),
    ("top_p", float, "among the fewest likeliest of this probability together"),
    ("min_p", float, "among those so many times as likely as the likeliest"),
    (
        "typical_p",
        float,
        "among the fewest of most expected surprise, of this probability together",
    ),
    ("seed", int, "of all random numbers; default: a fresh one, which is told"),
    ("repetition_penalty", float, "divides positive logits of what prompt and answer have"),
    ("frequency_penalty", float, "off the logit for each time the answer has a token"),
    ("presence_penalty", float, "off the logit of every token that the answer has"),
    ("logprobs", int, "with --json: log-probabilities, and so many likeliest tokens of each place"),
)
_ONLY_DRAWN = ("top_k", "top_p", "min_p", "typical_p", "seed", "accept")


def _file_text(word: str) -> str:
    try:
        return Path(word).read_text("utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise argparse.ArgumentTypeError(f"{word} cannot be read as text: {why}") from None


def _schema_text(word: str) -> str:
    return word if word.lstrip().startswith("{") else _file_text(word)


_STRUCTURES: tuple[tuple[str, str, Callable[[str], str], str], ...] = (
    ("json_schema", "FILE|TEXT", _schema_text, "answer in JSON of this schema, {...} or its file"),
    ("regex", "TEXT", str, "answer with a text that this regular expression matches as a whole"),
    ("grammar", "FILE", _file_text, "answer with a text of this Lark grammar"),
)


def add_decode_flags(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    for name, read, what in _NUMBERS:
        parser.add_argument(
            _flag(name), type=_checked(name, read), default=getattr(DecodeOptions, name), help=what
        )
    parser.add_argument(
        "--accept",
        choices=("exact", "rejection"),
        default="exact",
        help="of drafts where tokens are drawn: the text of the seed, or rejection sampling",
    )
    parser.add_argument(
        "--logit-bias", type=_bias, action="append", metavar="ID=NUMBER", help="add to a logit"
    )
    parser.add_argument(
        "--stop", type=_checked("stop", str), action="append", help="a text that ends the answer"
    )
    parser.add_argument(
        "--stop-id", type=_stop_id, action="append", metavar="ID", help="a token that ends it"
    )
    parser.add_argument(
        "--prompt-logprobs", action="store_true", help="with --json: of the prompt's tokens too"
    )
    structure = parser.add_mutually_exclusive_group()
    for name, metavar, read_word, what in _STRUCTURES:
        structure.add_argument(
            _flag(name), type=_checked(name, read_word), metavar=metavar, help=what
        )


def decode_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that the flags ask for, for `Session.stream`.

    Raises:
        RequestError: log-probabilities without --json, which alone shows them.
    """
    if (args.logprobs is not None or args.prompt_logprobs) and not args.json:
        raise RequestError("--logprobs and --prompt-logprobs are part of --json: give it too.")
    named = [name for name, _, _ in _NUMBERS] + [name for name, _, _, _ in _STRUCTURES]
    options = {name: getattr(args, name) for name in named}
    return options | {
        "accept": args.accept,
        "logit_bias": dict(args.logit_bias or ()),
        "stop": args.stop or (),
        "stop_ids": args.stop_id or (),
        "prompt_logprobs": args.prompt_logprobs,
    }


def idle_flags(options: dict[str, Any]) -> str:
    """The flags that were given and do nothing because nothing is drawn."""
    if options["temperature"]:
        return ""
    plain = asdict(DecodeOptions())
    return ", ".join(_flag(name) for name in _ONLY_DRAWN if options[name] != plain[name])


def scored_json(scored: ScoredToken) -> dict[str, Any]:
    """A token and its log-probability as part of a report."""
    top = [{"token": other.token, "logprob": other.logprob} for other in scored.top]
    return {"token": scored.token, "logprob": scored.logprob, "top": top}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _checked(name: str, read: Callable[[str], Any]) -> Callable[[str], Any]:
    """How argparse reads and checks the value of an option."""

    def value(text: str) -> Any:
        try:
            return getattr(DecodeOptions(**{name: read(text)}), name)
        except RequestError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    value.__name__ = read.__name__  # what argparse calls a text that cannot be read
    return value


def _bias(text: str) -> tuple[int, float]:
    token, _, number = text.partition("=")
    try:
        bias = {int(token): float(number)}
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a token id and a number such as 42=-1.5, found {text!r}"
        ) from None
    try:
        return next(iter(DecodeOptions(logit_bias=bias).logit_bias.items()))
    except RequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _stop_id(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a token id such as 2, found {text!r}")
    token: int = _checked("stop_ids", lambda word: (int(word),))(text)[0]
    return token
