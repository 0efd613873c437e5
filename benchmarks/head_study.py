"""Train the variants of a study at an equal budget, and say what each is worth and costs.

    python benchmarks/head_study.py train --answers DIR --features DIR --work DIR [--only TEXT]
    python benchmarks/head_study.py table --work DIR --out docs/study.json

`train` goes through benchmarks/head_study.toml: each variant takes the same number of steps on the
same answers, and then drafts the answers that were held out, in the runtime, with drafts of full
length. What is there already is not trained again. `table` then times the draft step of every head
and passes of 1 .. 7 rows, all in one run on a quiet machine, and prints for each variant:
acceptance by step, tau and the expected speed-up tau / (K c + v(K + 1)) for its best draft length
K.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tables import markdown

from drafthead.decoding.stats import accept_at, pool
from drafthead.drafters.mtp import MtpDrafter
from drafthead.evaluation.cost import DRAFT_STEPS, cost_jobs, interleaved_ms
from drafthead.evaluation.machine import describe
from drafthead.evaluation.prompts import end_ids
from drafthead.heads.package import HeadPackage
from drafthead.session import Session, load
from drafthead.training.answers import Answer
from drafthead.types import DecodeStats

STUDY = Path(__file__).with_suffix(".toml")
MAX_DRAFT = 6
TRIALS, TRIAL_TOKENS = 60, 64  # held-out prompts that are decoded, tokens of each
ROUNDS = 15


def variants() -> Iterator[tuple[str, str]]:
    """Name and recipe, as TOML, of each variant."""
    import tomllib

    study = tomllib.loads(STUDY.read_text(encoding="utf-8"))
    changes = study.pop("variants")
    for name, change in changes.items():
        tables = {key: {**table, **change.get(key, {})} for key, table in study.items()}
        tables["head"]["name"] = name
        lines = []
        for table, values in tables.items():
            lines.append(f"[{table}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        yield name, "\n".join(lines)


def train_one(recipe_text: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train one variant and let it draft what was held out of it."""
    from drafthead.training import pipeline
    from drafthead.training.inputs import read_inputs
    from drafthead.training.recipe import parse_recipe

    recipe = parse_recipe(recipe_text)
    session = load(recipe.head.backbone, head="none", drafter="none", threads=args.threads)
    inputs = read_inputs(recipe, args.answers, session)
    # Features without taps would be begun anew for a head with taps.
    where = args.work / "features-taps" if recipe.head.taps else args.features
    features = pipeline.feature_store(recipe, session.backbone, inputs, where)
    features.build()
    last: dict[str, Any] = {}

    def keep(report: Any) -> None:
        last.update(loss=report.loss, top_1=report.accuracy, anchors_per_s=report.anchors_per_s)

    outcome = pipeline.train(
        recipe, session, inputs, features, folder / "run", folder / "head", keep
    )
    training = outcome.package.config.training
    return {
        "steps": training["steps"], "anchors": training["anchors"],
        "minutes": training["minutes"], "answers": training["answers"],
        "coverage": inputs.vocabulary.coverage(inputs.heldout, recipe.head.prompt_tokens), **last,
        "accept_at": accept_at(drafted(session, outcome.package, inputs.heldout[:TRIALS])),
    }  # fmt: skip


def drafted(session: Session, package: HeadPackage, answers: Sequence[Answer]) -> DecodeStats:
    """What drafts of full length do in the runtime, on held-out prompts."""
    drafting = session.using(MtpDrafter(package.build(session.backbone), MAX_DRAFT, 0.0))
    done = []
    for answer in answers:
        drafting.forget()
        stream = drafting.stream_ids(
            answer.prompt_tokens, TRIAL_TOKENS, end_ids(session), cut_loops=True
        )
        for _ in stream:
            pass
        done.append(stream.stats)
    return pool(done)


def train(args: argparse.Namespace) -> None:
    """Train what is missing of the study."""
    for number, (name, text) in enumerate(variants()):
        folder = args.work / f"{number:02d}-{''.join(c if c.isalnum() else '-' for c in name)}"
        if (folder / "result.json").is_file() or args.only not in name:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        result = {"name": name, **train_one(text, args, folder)}
        (folder / "result.json").write_text(json.dumps(result, indent=1))
        print(name, result, flush=True)


def expected(accept: Sequence[float], step: float, v: Sequence[float]) -> dict[str, float]:
    """The draft length with the highest expected speed-up. step: c.  v: of 1, 2, ... rows."""
    best: dict[str, float] = {}
    chain, tau = 1.0, 1.0
    for k, share in enumerate(accept[:MAX_DRAFT], 1):
        chain *= share or 0.0
        tau += chain
        speedup = tau / (k * step + v[k])
        if speedup > best.get("speedup", 0.0):
            best = {"k": k, "tau": tau, "speedup": speedup}
    return best


def table(args: argparse.Namespace) -> None:
    """Measure the costs of all heads in one run; print and write the table."""
    results = []
    jobs: dict[str, Any] = {}
    folders = sorted(path.parent for path in args.work.glob("*/result.json"))
    for folder in folders:
        result = json.loads((folder / "result.json").read_text())
        session = load("smollm2-135m", head=str(folder / "head"), threads=args.threads)
        own = cost_jobs(session, range(1, MAX_DRAFT + 2) if not jobs else [1], context=200)
        jobs[result["name"]] = own.pop("draft")
        jobs |= {name: job for name, job in own.items() if name not in jobs}
        results.append(result)
    times = interleaved_ms(jobs, ROUNDS)
    v = [times[str(rows)] / times["1"] for rows in range(1, MAX_DRAFT + 2)]
    lines = []
    for result in results:
        step_ms = times[result["name"]] / DRAFT_STEPS
        accept = [share or 0.0 for share in result["accept_at"]]
        result |= {"draft_step_ms": step_ms, "c": step_ms / times["1"]}
        result["tau_3"] = 1 + accept[0] * (1 + accept[1] * (1 + accept[2]))
        result["best"] = expected(accept, result["c"], v)
        best = result["best"]
        cells = [result["name"], "/".join(f"{share:.2f}".removeprefix("0") for share in accept[:3])]
        cells += [f"{result['tau_3']:.2f}", f"{result['c']:.3f}", str(best["k"])]
        lines.append([*cells, f"{best['tau']:.2f}", f"{best['speedup']:.2f}"])
    header = ["variant", "accepted @1/@2/@3", "tau (K = 3)", "c", "best K", "tau", "speed-up"]
    print(markdown(header, lines))
    content = {"machine": describe(args.threads), "v": v, "variants": results}
    args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("train")
    one.add_argument("--answers", type=Path, required=True)
    one.add_argument("--features", type=Path, required=True)
    one.add_argument("--only", default="", help="variants whose name holds this")
    one.set_defaults(run=train)
    other = commands.add_parser("table")
    other.add_argument("--out", type=Path, required=True)
    other.set_defaults(run=table)
    for command in (one, other):
        command.add_argument("--work", type=Path, required=True)
        command.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
