"""Train one head on the backbone's own answers and one on the data's, and compare them.

    python benchmarks/regenerated_vs_original.py --prompts FILE.jsonl.gz --work DIR [--limit N]

Of the prompt files the rows count that carry an answer by somebody else, `answer` or `reference`.
The backbone answers their prompts too, so that there are two sets of answers to the same prompts,
cut at the same length. One recipe trains a head on each, in the same number of steps; each draft
vocabulary follows from its own answers, as it would. Then both draft the held-out prompts in the
runtime, in drafts of full length: what the backbone says there is what a head is for. Called again,
it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from head_study import drafted
from tables import markdown

from drafthead.decoding.stats import accept_at, tau
from drafthead.evaluation.machine import describe
from drafthead.evaluation.prompts import PromptRow, parse_row
from drafthead.session import Session, load
from drafthead.training.answers import Answer, AnswerStore
from drafthead.training.prompts import choose
from drafthead.training.recipe import Recipe, load_recipe
from drafthead.training.regen import RegenSettings, regenerate, session_regenerator

RECIPE = Path(__file__).with_suffix(".toml")
REFERENCES = ("answer", "reference")
ARMS = ("regenerated", "original")


def read_pairs(lines: Iterable[str]) -> tuple[list[PromptRow], dict[str, str]]:
    """Prompts that somebody has answered, and the answers by the prompts' ids."""
    rows, answers = [], {}
    for number, line in enumerate(lines, 1):
        content = json.loads(line)
        text = next((content[key] for key in REFERENCES if content.get(key)), None)
        if isinstance(text, str):
            row = parse_row(content, f"line {number}")
            rows.append(row)
            answers[row.id] = text
    return rows, answers


def original_answers(
    own: Sequence[Answer], texts: Mapping[str, str], session: Session, max_tokens: int
) -> list[Answer]:
    """The data's answers to the prompts that the backbone answered, in its way of ending one."""
    ends = Counter(answer.answer[-1] for answer in own if answer.finish == "stop")
    end = ends.most_common(1)[0][0] if ends else min(session.tokenizer.eos_ids)
    space = "" if session.template.exists else " "  # where a base model's answers begin
    made = []
    for answer in own:
        tokens = (*session.tokenizer.encode(space + texts[answer.id].strip()), end)
        finish = "stop" if len(tokens) <= max_tokens else "length"
        made.append(
            Answer(answer.id, answer.task, answer.prompt_tokens, tokens[:max_tokens], finish)
        )
    return made


def prepare(args: argparse.Namespace, recipe: Recipe, session: Session) -> None:
    """Fill the two folders of answers."""
    rows, texts = [], {}
    for path in args.prompts:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        found, answers = read_pairs(text.strip().split("\n"))
        rows += found
        texts |= answers
    prompts, _ = choose(rows, (), args.limit, recipe.train.seed)
    settings = RegenSettings(max_tokens=recipe.answers.max_tokens, seed=recipe.train.seed)
    regenerated, original = (args.work / arm for arm in ARMS)
    worker = session_regenerator(session, settings)
    manifest = regenerate(worker, prompts, regenerated, settings)
    own = list(AnswerStore(regenerated).rows())
    store = AnswerStore(original)
    if store.manifest() is None:
        store.write_manifest({**manifest, "answers_of": "the data"})
        for answer in original_answers(own, texts, session, settings.max_tokens):
            store.append(answer)
        store.finish([answer.id for answer in own])


def train_arm(arm: str, recipe: Recipe, session: Session, work: Path) -> dict[str, Any]:
    """Train on one set of answers, and draft the held-out prompts."""
    from drafthead.training import pipeline
    from drafthead.training.inputs import read_inputs

    inputs = read_inputs(recipe, work / arm, session)
    heldout = read_inputs(recipe, work / ARMS[0], session).heldout
    features = pipeline.feature_store(recipe, session.backbone, inputs, work / f"{arm}-features")
    features.build()
    outcome = pipeline.train(
        recipe, session, inputs, features, work / f"{arm}-run", work / f"{arm}-head"
    )
    training = outcome.package.config.training
    stats = drafted(session, outcome.package, heldout)
    return {
        "arm": arm, "answers": training["answers"], "answer_tokens": training["answer_tokens"],
        "steps": training["steps"], "anchors": training["anchors"],
        "coverage": inputs.vocabulary.coverage(heldout, recipe.head.prompt_tokens),
        "heldout_prompts": len(heldout), "accept_at": accept_at(stats), "tau": tau(stats),
    }  # fmt: skip


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """The comparison, in Markdown."""
    lines = []
    for result in results:
        shares = [f"{share or 0.0:.2f}".removeprefix("0") for share in result["accept_at"][:3]]
        lines.append([
            result["arm"], str(result["answers"]), str(result["answer_tokens"]),
            f"{result['coverage']:.1%}", "/".join(shares), f"{result['tau']:.2f}",
        ])  # fmt: skip
    header = ["trained on", "answers", "tokens", "held-out tokens covered", "@1/@2/@3", "tau"]
    return markdown(header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", nargs="+", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder; a call goes on in it")
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--limit", type=int, default=None, help="prompts of each task")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None, help="of the figures, as JSON")
    args = parser.parse_args()
    recipe = load_recipe(args.recipe)
    session = load(recipe.head.backbone, head="none", drafter="none", threads=args.threads)
    prepare(args, recipe, session)
    results = [train_arm(arm, recipe, session, args.work) for arm in ARMS]
    print(table(results))
    if args.out is not None:
        content = {"machine": describe(args.threads), "recipe_digest": recipe.digest}
        args.out.write_text(json.dumps(content | {"arms": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
