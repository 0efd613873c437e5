"""`drafthead bench`: drafters against plain decoding, interleaved in one run."""

from __future__ import annotations

import argparse
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafthead.cli import output
from drafthead.errors import RequestError

if TYPE_CHECKING:
    from drafthead.evaluation.metrics import Answer
    from drafthead.evaluation.peer_drafting import PeerDrafter
    from drafthead.evaluation.peers import LlamaCpp
    from drafthead.evaluation.prompts import PromptRow
    from drafthead.session import Session

    Peers = list[tuple[LlamaCpp, list[PeerDrafter]]]

DEFAULT_ARMS = ("plain", "mtp")
BUILT_IN_PROMPTS = 20
COST_ROWS = (1, 2, 3, 4, 6, 8)


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser("bench", help="measure drafters against plain decoding")
    output.add_model_flags(parser)
    parser.add_argument(
        "--drafters",
        type=output.names,
        default=None,
        help="arms: plain, mtp, standalone, ngram, ngram+mtp, jacobi; without it plain and mtp, or "
        "plain alone where there is no head",
    )
    parser.add_argument(
        "--draft-model",
        type=output.names,
        default=[],
        metavar="[NAME=]MODEL,...",
        help="an arm for each, called NAME, where standalone is one of the drafters",
    )
    parser.add_argument(
        "--prompts",
        nargs="+",
        type=Path,
        default=[],
        help="JSON lines, plain or .gz; else built in",
    )
    parser.add_argument("--tasks", type=output.names, default=[], help="only these, with commas")
    parser.add_argument("--limit", type=output.count, default=None, help="prompts a task")
    parser.add_argument(
        "--max-tokens", type=output.count, default=128, help="longest answer, in tokens"
    )
    parser.add_argument(
        "--max-draft", type=output.count, default=None, help="longest draft, in tokens"
    )
    output.add_policy_flag(parser)
    parser.add_argument("--repeat", type=output.count, default=1, help="times everything is done")
    parser.add_argument("--keep-loops", action="store_true", help="do not cut repeating answers")
    parser.add_argument("--peers", type=output.names, default=[], help="other engines: llama.cpp")
    parser.add_argument(
        "--peer-draft-model",
        type=Path,
        default=None,
        help="GGUF that drafts in llama.cpp; without it that of the arm standalone, if any",
    )
    parser.add_argument(
        "--report", type=Path, default=None, help="folder for bench.html, bench.md and bench.json"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write the report."""
    from drafthead.evaluation.report.files import write_report
    from drafthead.evaluation.report.table import (
        COLUMNS,
        all_arms,
        arm_rows,
        choice_lines,
        language_rows,
        peer_line,
    )

    check(args)
    rows = read_rows(args)
    arms = open_arms(args)
    report = measure(args, arms, open_peers(args, arms, rows), rows)
    if args.report is not None:
        write_report(report, args.report)
    if args.json:
        output.print_json(report)
        return 0
    titles = [title for _, title in COLUMNS]
    print(output.aligned(titles, arm_rows(all_arms(report)), left=2))
    if report["languages"]:
        print(output.aligned(["language", *titles[1:]], language_rows(report), left=2))
    for line in choice_lines(report):
        print(line)
    for peer in report["peers"]:
        print(peer_line(peer))
    return 0


def check(args: argparse.Namespace) -> None:
    """Refuse unknown arms and peers, a peer that is not installed, a report without a place."""
    from drafthead.drafting import DRAFTERS

    arms = ("plain", *(name for name in DRAFTERS if name != "none"))
    wanted = DEFAULT_ARMS if args.drafters is None else args.drafters
    unknown = [name for name in wanted if name not in arms]
    if unknown or not wanted:
        which = f"There is no arm {', '.join(unknown)}" if unknown else "No arm was named"
        raise RequestError(f"{which}; the arms are {', '.join(arms)}.")
    if args.peers:
        from drafthead.evaluation.peers import PEERS, llama_cpp

        strangers = [name for name in args.peers if name not in PEERS]
        if strangers:
            raise RequestError(
                f"There is no peer {', '.join(strangers)}; the peers are {', '.join(PEERS)}."
            )
        llama_cpp()
    if args.draft_model and "standalone" not in wanted:
        raise RequestError("--draft-model names the models of the arm standalone: measure it too.")
    output.check_head(args.head, wanted)
    if args.peer_draft_model is not None and not args.peers:
        raise RequestError("--peer-draft-model drafts in llama.cpp: add --peers llama.cpp.")
    if args.report is not None:
        from drafthead.evaluation.report.drawing import check_matplotlib

        check_matplotlib()
        output.check_folder("--report", args.report)
        args.report.mkdir(parents=True, exist_ok=True)


def read_rows(args: argparse.Namespace) -> list[PromptRow]:
    """The prompts: from files, or the built-in sets."""
    from drafthead.evaluation.prompts import parse_row, read_prompts, select
    from drafthead.tasks import TASKS, prompt_set

    if args.prompts:
        return select(chain.from_iterable(map(read_prompts, args.prompts)), args.tasks, args.limit)
    count = args.limit or BUILT_IN_PROMPTS
    built_in = [parse_row(row, row["id"]) for name in TASKS for row in prompt_set(name, count)]
    return select(built_in, args.tasks)


def open_arms(args: argparse.Namespace) -> dict[str, Session]:
    """A session for each arm, all on one backbone.

    Raises:
        RequestError: an arm was asked for that cannot draft, for want of a head or a model.
    """
    from drafthead.session import load, make_policy

    session = load(
        args.backbone, args.head, "none", args.threads, args.max_draft, kv=args.kv,
        policy=args.policy,
    )  # fmt: skip
    arms: dict[str, Session] = {}
    for name in args.drafters or DEFAULT_ARMS:
        if name == "standalone":
            for called, model in named_models(args.draft_model).items():
                arms[called] = session.using(
                    session.maker.standalone(model), make_policy(session.maker.asked)
                )
        else:
            arms[name] = session.with_drafter("none" if name == "plain" else name)
    idle = {name: arm for name, arm in arms.items() if name != "plain" and not arm.drafter.active}
    if idle and args.drafters is None and args.head == "auto":
        output.warn(f"Measuring plain decoding alone: {arms['mtp'].drafter.reason}.")
        return {"plain": arms["plain"]}
    if idle:
        raise RequestError(idle_sentence(*next(iter(idle.items()))))
    return arms


def named_models(flags: list[str]) -> dict[str, str | None]:
    """The draft models by the names of their arms.

    One alone is called standalone where it is not named; several are called by their files.

    Raises:
        RequestError: two arms have one name.
    """
    from drafthead.drafting import DRAFTERS

    if not flags:
        return {"standalone": None}
    models: dict[str, str | None] = {}
    for flag in flags:
        name, named, model = flag.rpartition("=")
        if named and not name:
            raise RequestError(f"--draft-model {flag}: the arm has no name; give NAME={model}.")
        if not named:
            name = "standalone" if len(flags) == 1 else f"standalone:{Path(model).stem}"
        if name in models or (name in ("plain", *DRAFTERS) and name != "standalone"):
            raise RequestError(f"Two arms are called {name}: give --draft-model NAME={model}.")
        models[name] = model
    return models


def idle_sentence(name: str, arm: Session) -> str:
    """Why an arm cannot be measured, and what to do."""
    from drafthead.drafting import NEED_HEAD

    if name in NEED_HEAD:
        return (
            f"The arm {name} needs a head: {arm.drafter.reason}; give one with --head, or measure "
            "--drafters plain."
        )
    return f"The arm {name} cannot draft: {arm.drafter.reason}."


def open_peers(args: argparse.Namespace, arms: dict[str, Session], rows: list[PromptRow]) -> Peers:
    """Each peer on the same file, with the same threads and room for the longest answer."""
    if not args.peers:
        return []
    from drafthead.evaluation.peer_drafting import DraftModel, PromptLookup
    from drafthead.evaluation.peers import LlamaCpp
    from drafthead.evaluation.prompts import prompt_ids

    session = next(iter(arms.values()))
    longest = max(
        len(prompt_ids(session, row))
        + len(row.later) * args.max_tokens
        + len(session.encode(" ".join(row.later), raw=True))
        for row in rows
    )
    context = min(longest + args.max_tokens, session.context)
    peer = LlamaCpp(session.backbone.path, session.backbone.threads, context)
    drafters: list[PeerDrafter] = [PromptLookup()]
    model = args.peer_draft_model or draft_model_path(arms)
    if model is not None:
        drafters.append(DraftModel(model, peer))
    return [(peer, drafters)]


def draft_model_path(arms: dict[str, Session]) -> Path | None:
    """The file of the first arm that drafts with a model of its own."""
    from drafthead.drafters.standalone import StandaloneDrafter

    drafting = (arm.drafting for arm in arms.values())
    return next((d.model.path for d in drafting if isinstance(d, StandaloneDrafter)), None)


def measure(
    args: argparse.Namespace, arms: dict[str, Session], peers: Peers, rows: list[PromptRow]
) -> dict[str, Any]:
    """Answer every prompt with every arm, then time single passes; the object of `bench --json`."""
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    from drafthead.evaluation.peer_answers import answer_with_peer, arm_name
    from drafthead.evaluation.runner import run_arms

    session = next(iter(arms.values()))
    others = {
        arm_name(peer, drafter): partial(answer_with_peer, peer, drafter, session)
        for peer, drafters in peers
        for drafter in (None, *drafters)
    }
    bar = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with output.progress("answers", *bar) as progress:
        total = len(rows) * (len(arms) + len(others)) * args.repeat
        task = progress.add_task("answers", total=total)

        def on_answer(_answer: Answer) -> None:
            progress.advance(task)

        answers = run_arms(
            arms, rows, args.max_tokens, args.repeat, not args.keep_loops, on_answer, others
        )
    return summed_up(args, arms, peers, rows, answers)


def summed_up(
    args: argparse.Namespace,
    arms: dict[str, Session],
    peers: Peers,
    rows: list[PromptRow],
    answers: list[Answer],
) -> dict[str, Any]:
    """The report of the answers, with the cost of passes, timed now, and the memory."""
    from drafthead import __version__
    from drafthead.drafters.ngram_mtp import NgramMtpDrafter
    from drafthead.evaluation.cost import draft_steps_ms, measure_cost
    from drafthead.evaluation.energy import EnergyMeter
    from drafthead.evaluation.machine import describe
    from drafthead.evaluation.memory import memory_section
    from drafthead.evaluation.metrics import arm_lines, language_lines, task_means
    from drafthead.evaluation.peer_answers import peer_section
    from drafthead.evaluation.samples import sample_section

    session = next(iter(arms.values()))
    drafting = arms.get("mtp", session)
    lines, costs = arm_lines(answers), measure_cost(drafting, COST_ROWS)
    return {
        "drafthead": __version__,
        "machine": describe(session.backbone.threads),
        # The name alone: where the file lies says nothing to whoever reads the report.
        "backbone": output.backbone_json(session) | {"file": session.backbone.path.name},
        "settings": {
            "max_tokens": args.max_tokens,
            "repeat": args.repeat,
            "keep_loops": args.keep_loops,
            "raw": not session.template.exists,
            "policy": args.policy,
            "max_draft": getattr(drafting.drafting, "max_draft_tokens", None),
        },
        "cost": {
            "rows_ms": costs["rows_ms"],
            "draft_step_ms": draft_steps_ms(arms, drafting, costs["draft_step_ms"]),
            "break_even": costs["break_even"],
            "best_draft": costs["best_draft"],
            "bytes_per_token": session.backbone.pass_bytes,
        },
        "choices": {
            name: arm.drafting.explain()
            for name, arm in arms.items()
            if isinstance(arm.drafting, NgramMtpDrafter)
        },
        "arms": [line for line in lines if line["drafter"] in arms],
        "task_means": task_means(answers),
        "languages": language_lines(
            [a for a in answers if a.drafter in arms],
            {(row.task, row.id): row.lang for row in rows},
        ),
        "peers": [peer_section(peer, drafters, lines, answers) for peer, drafters in peers],
        "energy": EnergyMeter().section(),
        "memory": memory_section(arms),
    } | ({"samples": sample_section(answers, rows)} if args.report else {})
