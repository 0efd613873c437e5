"""`drafthead generate`: answer a prompt, streaming on a terminal."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from drafthead.cli import output
from drafthead.cli.decode_flags import add_decode_flags, decode_options, idle_flags, scored_json
from drafthead.errors import RequestError

if TYPE_CHECKING:
    from drafthead.session import Session
    from drafthead.stream import Result, Stream


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser("generate", help="answer a prompt")
    parser.add_argument("prompt", nargs="?", help="text; - or a pipe reads it from stdin")
    output.add_model_flags(parser)
    parser.add_argument(
        "--drafter",
        default="mtp",
        help="mtp, standalone, ngram, ngram+mtp, jacobi, or none for plain decoding",
    )
    parser.add_argument(
        "--draft-model", default=None, help="of --drafter standalone: known name, or a .gguf"
    )
    parser.add_argument(
        "--max-draft", type=output.count, default=None, help="longest draft, in tokens"
    )
    output.add_policy_flag(parser)
    parser.add_argument(
        "--max-tokens", type=output.count, default=256, help="longest answer, in tokens"
    )
    add_decode_flags(parser)
    parser.add_argument("--system", default=None, help="system message")
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument("--ignore-eos", action="store_true", help="go on after end-of-sequence")
    parser.add_argument(
        "--mark", action="store_true", help="mark drafted tokens without a terminal"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer, and say on stderr how it went."""
    from drafthead.session import load
    from drafthead.stream import finish

    options = decode_options(args)
    if args.draft_model is not None and args.drafter != "standalone":
        raise RequestError("--draft-model is the model of --drafter standalone: give that too.")
    output.check_head(args.head, [args.drafter])
    prompt = read_prompt(args.prompt)
    if idle := idle_flags(options):
        output.warn(f"At temperature 0 nothing is drawn: give --temperature, or leave out {idle}.")
    session = load(
        args.backbone, args.head, args.drafter, args.threads, args.max_draft, kv=args.kv,
        draft_model=args.draft_model, policy=args.policy,
    )  # fmt: skip
    stream = session.stream(
        prompt,
        max_tokens=args.max_tokens,
        raw=args.raw,
        system=args.system,
        ignore_eos=args.ignore_eos,
        **options,
    )
    if args.json:
        output.print_json(report(session, finish(stream)))
        return 0
    show(stream, style=output_style(args.mark))
    seed = "" if stream.seed is None else f"; seed {stream.seed}"
    output.warn(output.stats_line(stream.drafter, stream.stats) + seed)
    if stream.drafter.warning is not None:
        output.warn(stream.drafter.warning)
    return 0


def read_prompt(word: str | None) -> str:
    """The prompt itself, or what stdin holds.

    Raises:
        RequestError: there is no text, or stdin is not UTF-8.
    """
    prompt = word
    if word == "-" or (word is None and not sys.stdin.isatty()):
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise RequestError(f"The prompt on stdin is not UTF-8 text: {error}.") from error
    if prompt is None or not prompt.strip():
        raise RequestError("The prompt is empty: give some text, or pipe it in.")
    return prompt


def output_style(mark: bool) -> str:
    """Colour on a terminal, marks where they are asked for, else plain text."""
    if mark:
        return "marks"
    return "colour" if output.colourful(sys.stdout) else "none"


def show(stream: Stream, style: str) -> None:
    """Write the answer as it comes."""
    marker = output.Marker(style)
    try:
        for event in stream:
            sys.stdout.write(marker.piece(event))
            sys.stdout.flush()
    finally:
        sys.stdout.write(marker.end() + "\n")
        sys.stdout.flush()


def report(session: Session, result: Result) -> dict[str, Any]:
    """The object of `generate --json`."""
    from drafthead.decoding.stats import accept_at, decode_tok_s, tau
    from drafthead.types import ScoredToken

    stats = result.stats
    scored = [ScoredToken(event.token, event.logprob, event.top) for event in result.events]
    told = scored[0].logprob is not None
    return {
        "text": result.text,
        "tokens": list(result.tokens),
        "prompt_tokens": result.prompt_tokens,
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "logprobs": [scored_json(one) for one in scored] if told else None,
        "prompt_logprobs": [scored_json(one) for one in result.prompt_logprobs] or None,
        "backbone": output.backbone_json(session),
        "drafter": output.drafter_json(result.drafter),
        "stats": {
            "passes": stats.passes,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "committed": stats.committed,
            "dropped": stats.dropped,
            "cut": stats.cut,
            "rested": stats.rested,
            "cached_tokens": stats.cached_tokens,
            "tau": tau(stats),
            "accept_at": accept_at(stats),
            "sources": {name: asdict(counts) for name, counts in stats.sources.items()},
            "prefill_ms": stats.prefill_ms,
            "decode_ms": stats.decode_ms,
            "tok_s": decode_tok_s(stats),
        },
    }
