"""`drafthead train`, of a head: answers, features, training, measurement, told as they go."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafthead.cli import output
from drafthead.errors import TrainingError

if TYPE_CHECKING:
    from rich.console import Console

    from drafthead.evaluation.prompts import PromptRow
    from drafthead.session import Session
    from drafthead.training.answers import Answer
    from drafthead.training.features import FeatureStore
    from drafthead.training.host import TorchFeatures
    from drafthead.training.inputs import Inputs
    from drafthead.training.parallel import Workers
    from drafthead.training.recipe import Recipe
    from drafthead.training.regen import RegenCounts
    from drafthead.training.start_head import StartHead
    from drafthead.training.trainer import Report


def short_shares(shares: list[float | None]) -> str:
    """Shares of 0 to 1 without the leading zero."""
    return "/".join("-" if share is None else f"{share:.2f}".removeprefix("0") for share in shares)


def show(console: Console, report: Report) -> None:
    """One line of progress."""
    loss = "-" if report.loss is None else f"{report.loss:.3f}"
    line = (
        f"{report.share:6.1%}  step {report.progress.step:5d}  loss {loss}  "
        f"top-1 {short_shares(report.accuracy)}  {report.anchors_per_s:.0f} anchors/s"
    )
    if report.tau is not None:
        line += (
            f"  held-out tau {report.tau:.3f}  accepted {short_shares(report.accept_at)}  expected "
            f"{report.tok_s:.0f} tok/s, {report.speedup:.2f} x plain"
        )
        line += "  best" if report.progress.best_step == report.progress.step else ""
    if report.progress.skipped:
        line += f"  skipped {report.progress.skipped}"
    console.print(line, soft_wrap=True)


class Command:
    """One call of `drafthead train`, in one of its processes."""

    def __init__(self, args: argparse.Namespace, workers: Workers) -> None:
        from drafthead.backbone.handle import default_threads
        from drafthead.session import load
        from drafthead.training.parallel import processes_here
        from drafthead.training.recipe import find_recipe, load_recipe

        self.args, self.workers = args, workers
        self.console = output.console()
        self.console.quiet = not workers.first
        path = find_recipe(args.recipe)
        self.recipe: Recipe = load_recipe(path)
        self.folder: Path = getattr(args, "run_folder", Path("runs") / path.stem)
        self.answers: Path = getattr(args, "answers", self.folder / "answers")
        kept = "features" if args.host == "engine" else "features-torch"
        self.features: Path = getattr(args, "features", self.folder / kept)
        self.out: Path = getattr(args, "out", self.folder / "head")
        self.name: str = args.backbone or self.recipe.head.backbone
        threads = args.threads or max(1, default_threads() // processes_here())
        self.session: Session = load(self.name, head="none", drafter="none", threads=threads)
        self.rows = self._read_prompts()
        self.source = self._source()
        self.start = self._start()

    def check(self) -> None:
        """Refuse a head that cannot be, and where results cannot go, before hours of training."""
        from drafthead.training.export import check_place
        from drafthead.training.head_shape import head_sizes

        head_sizes(self.recipe, self.session.backbone, self.recipe.head.draft_vocab)
        output.check_folder("--run", self.folder)
        check_place(self.out)

    def _start(self) -> StartHead | None:
        if self.args.start_from is None:
            return None
        from drafthead.training.start_head import StartHead

        return StartHead.open(self.args.start_from, self.recipe, self.session.backbone)

    def _source(self) -> TorchFeatures | None:
        args = self.args
        if args.host == "engine":
            if args.weights:
                raise TrainingError("--weights belongs to --host torch; give that too.")
            return None
        from drafthead.training.host import TorchFeatures

        return TorchFeatures(self.session.backbone, str(self.workers.device), args.weights)

    @property
    def usage(self) -> str:
        """The flags that decode with what was trained."""
        return f"--head {self.out}"

    def run(self) -> dict[str, object]:
        """All of it, or the plan; the object of `--json`."""
        args = self.args
        if not hasattr(args, "answers") and not self._answer():
            return {"prompts": self.recipe.answers.prompts}
        from drafthead.training.inputs import read_inputs

        inputs = read_inputs(self.recipe, self.answers, self.session, self.start)
        result = self._plan(inputs, self._store(inputs))
        if not args.plan:
            with self.alone(self.folder, self.features):
                features = self._build(self._store(inputs), inputs)
                result |= self._compare(features, inputs)
                result |= self._train(inputs, features)
        return result

    def alone(self, *folders: Path) -> AbstractContextManager[None]:
        """Hold folders that the first process of this training writes in."""
        from drafthead.training.alone import alone_in

        return alone_in(*folders if self.workers.first else ())

    def _answer(self) -> bool:
        """Let the backbone answer the built-in prompts first; False where only a plan is wanted."""
        from drafthead.training.own_answers import answer_prompts, built_in_prompts, complete

        recipe = self.recipe
        new = not complete(self.answers)
        prompts = built_in_prompts(recipe.answers.prompts, recipe.train.seed)
        if new:
            self.console.print(f"{self.name} answers {len(prompts)} built-in prompts first")
        if new and self.args.plan:
            return False
        if new and self.workers.first:
            with output.progress(*_columns()) as progress:
                bar = progress.add_task("answers", total=len(prompts))

                def on_answer(_answer: Answer, counts: RegenCounts) -> None:
                    done = counts.resumed + counts.answers + counts.skipped
                    progress.update(bar, completed=done)

                with self.alone(self.answers, self.features):
                    answer_prompts(
                        self.session, recipe, prompts, self.answers, self.features, on_answer
                    )
        self.workers.wait()
        return True

    def _plan(self, inputs: Inputs, features: FeatureStore) -> dict[str, object]:
        plan = features.plan
        coverage = inputs.vocabulary.coverage(
            inputs.heldout or inputs.train, self.recipe.head.prompt_tokens
        )
        of = "held-out" if inputs.heldout else "their"
        self.console.print(
            f"{len(inputs.train)} answers to train on, {len(inputs.heldout)} held out, "
            f"{plan.anchors} anchors, features {plan.nbytes / 1e9:.2f} GB, draft vocabulary "
            f"{len(inputs.vocabulary)} covers {coverage:.1%} of {of} tokens",
            soft_wrap=True,
        )
        plan.check(int(self.args.max_disk * 1e9))
        return {
            "answers": len(inputs.train), "heldout": len(inputs.heldout), "anchors": plan.anchors,
            "feature_bytes": plan.nbytes, "coverage": coverage,
        }  # fmt: skip

    def _build(self, features: FeatureStore, inputs: Inputs) -> FeatureStore:
        """Compute what is missing in the first process; the others read what it wrote."""
        if self.workers.first:
            with output.progress(*_columns()) as progress:
                bar = progress.add_task("features", total=features.plan.missing_rows)
                features.build(lambda rows: progress.update(bar, completed=rows))
        self.workers.wait()
        if not self.workers.first:
            features = self._store(inputs)
            features.build()
        return features

    def _store(self, inputs: Inputs) -> FeatureStore:
        from drafthead.training import pipeline

        backbone = self.session.backbone
        return pipeline.feature_store(self.recipe, backbone, inputs, self.features, self.source)

    def _compare(self, features: FeatureStore, inputs: Inputs) -> dict[str, object]:
        """Say how far the features of another host are from what will verify."""
        if self.source is None or not self.workers.first:
            return {}
        from drafthead.training.host_check import compare_with_engine

        found = compare_with_engine(
            self.session.backbone, features, inputs.answers, self.recipe.head.read_layers,
            inputs.vocabulary.token_ids, self.folder,
        )  # fmt: skip
        self.console.print(found.text(), soft_wrap=True)
        return {"host": found.content()}

    def _train(self, inputs: Inputs, features: FeatureStore) -> dict[str, object]:
        from drafthead.training import pipeline
        from drafthead.training.evaluate import measure

        outcome = pipeline.train(
            self.recipe, self.session, inputs, features, self.folder, self.out,
            lambda report: show(self.console, report), self.workers,
        )  # fmt: skip
        if outcome is None:
            return {}
        for name, found in (outcome.acceptance or {}).items():
            self.console.print(
                f"held-out answers, drafts of full length, {name}: tau {found['tau']:.3f}, "
                f"accepted {short_shares(found['accept_at'])}"
            )
        rows = self._prompts(inputs)
        arms = measure(self.session, outcome.package, rows, self.recipe.measure)
        return {
            "head": str(self.out), "training": dict(outcome.package.config.training),
            "acceptance": outcome.acceptance, "arms": arms,
        }  # fmt: skip

    def _prompts(self, inputs: Inputs) -> list[PromptRow]:
        """What the head is measured on: the named files, or built-in prompts never answered."""
        from drafthead.training.own_answers import unseen_prompts

        if self.rows is not None:
            return self.rows
        per_task, seed = self.recipe.measure.per_task, self.recipe.train.seed
        return unseen_prompts(self.session, per_task, seed + 1, inputs.answers)

    def _read_prompts(self) -> list[PromptRow] | None:
        """Some of each task of the files that --prompts names, if any."""
        from drafthead.evaluation.prompts import read_prompts
        from drafthead.training.prompts import choose

        if not self.args.prompts:
            return None
        everything = (row for path in self.args.prompts for row in read_prompts(path))
        return choose(everything, [], self.recipe.measure.per_task, self.recipe.train.seed)[0]


def _columns() -> tuple[Any, ...]:
    from rich.progress import Progress, TimeRemainingColumn

    return (*Progress.get_default_columns()[:3], TimeRemainingColumn())
