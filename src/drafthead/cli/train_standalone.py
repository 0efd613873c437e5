"""`drafthead train --drafter standalone`: a small model of its own, as large as a head."""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from drafthead.cli import output
from drafthead.cli.train_head import Command, show
from drafthead.errors import TrainingError

if TYPE_CHECKING:
    from drafthead.heads.config import HeadConfig
    from drafthead.training.draft_shape import DraftShape
    from drafthead.training.inputs import Inputs
    from drafthead.training.parallel import Workers


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of a standalone drafter."""
    parser.add_argument("--drafter", choices=("mtp", "standalone"), default="mtp",
                        help="what is trained: a head, or a small model of its own")  # fmt: skip
    parser.add_argument("--size", choices=("body", "bytes"), default=None,
                        help="of a standalone drafter: the head's parameters (and an embedding "
                        "table), or the head's bytes (with it)")  # fmt: skip
    parser.add_argument("--like", type=Path, default=None, metavar="FOLDER",
                        help="head package whose size that is (default: the recipe's)")  # fmt: skip
    parser.add_argument("--tasks", type=output.names, default=[],
                        help="of a standalone drafter: learn these alone")  # fmt: skip


def check(args: argparse.Namespace) -> None:
    """Refuse flags of the other drafter."""
    if args.drafter == "mtp" and (args.size or args.like or args.tasks):
        raise TrainingError("--size, --like and --tasks belong to --drafter standalone.")
    if args.drafter == "standalone" and args.host != "engine":
        raise TrainingError("A standalone drafter reads no features: leave out --host.")


class StandaloneCommand(Command):
    """One call, in one of its processes; the answers are those of the head of the same recipe."""

    def __init__(self, args: argparse.Namespace, workers: Workers) -> None:
        super().__init__(args, workers)
        own = self.recipe.standalone
        own = replace(own, size=args.size or own.size)
        kind = "-".join(["standalone", own.size, *args.tasks])
        # A run of another size, of other tasks or from another file is another run.
        digest = " ".join([self.recipe.digest, kind, *self._start_digest()])
        self.recipe = replace(self.recipe, standalone=own, digest=digest)
        self.folder = getattr(args, "run_folder", self.folder / kind)
        self.out = getattr(args, "out", self.folder / "draft.gguf")

    def check(self) -> None:
        """Refuse where results cannot go, before hours of training."""
        output.check_folder("--run", self.folder)
        if self.out.is_dir():
            raise TrainingError(f"--out: {self.out} is a folder; name a .gguf file.")

    @property
    def usage(self) -> str:
        """The flags that decode with what was trained."""
        return f"--drafter standalone --draft-model {self.out}"

    def run(self) -> dict[str, object]:
        """All of it, or the plan; the object of `--json`."""
        args = self.args
        if not hasattr(args, "answers") and not self._answer():
            return {"prompts": self.recipe.answers.prompts}
        from drafthead.training.draft_shape import draft_shape
        from drafthead.training.inputs import read_inputs
        from drafthead.training.standalone import for_tasks

        inputs = for_tasks(read_inputs(self.recipe, self.answers, self.session), args.tasks)
        shape = draft_shape(self.recipe.standalone, self._head())
        result = self._tell(inputs, shape)
        return result if args.plan else result | self._teach(inputs, shape)

    def _start(self) -> None:
        """A head to go on from: there is none."""

    @property
    def start_file(self) -> Path | None:
        """The model to go on from."""
        return Path(self.args.start_from) if self.args.start_from is not None else None

    def _start_digest(self) -> list[str]:
        if self.start_file is None:
            return []
        try:
            return [hashlib.sha256(self.start_file.read_bytes()).hexdigest()]
        except OSError as error:
            raise TrainingError(
                f"--start-from {self.start_file}: {error.strerror}; name a .gguf file that "
                "train --drafter standalone wrote."
            ) from error

    def _head(self) -> HeadConfig:
        """The head whose size is wanted."""
        if self.args.like is not None:
            from drafthead.heads.package import HeadPackage

            package = HeadPackage.load(self.args.like)
            package.check_target(self.session.backbone)
            return package.config
        from drafthead.training.head_shape import head_sizes

        return head_sizes(self.recipe, self.session.backbone, self.recipe.head.draft_vocab)

    def _tell(self, inputs: Inputs, shape: DraftShape) -> dict[str, object]:
        self.console.print(
            f"{len(inputs.train)} answers to train on, {len(inputs.heldout)} held out; a model of "
            f"width {shape.width}, {shape.layers} layers, {shape.body_parameters / 1e6:.2f}M "
            f"parameters and {shape.embedding_parameters / 1e6:.2f}M of embeddings, "
            f"{shape.nbytes / 1e6:.1f} MB",
            soft_wrap=True,
        )
        return {
            "answers": len(inputs.train), "heldout": len(inputs.heldout),
            "width": shape.width, "layers": shape.layers, "d_ff": shape.d_ff,
            "body_parameters": shape.body_parameters, "weights_bytes": shape.nbytes,
        }  # fmt: skip

    def _teach(self, inputs: Inputs, shape: DraftShape) -> dict[str, object]:
        from drafthead.drafting import Asked, DrafterMaker
        from drafthead.training.evaluate import compare
        from drafthead.training.standalone import new_model, train_standalone

        model = new_model(self.recipe, shape, self.session.backbone, inputs, self.start_file)
        with self.alone(self.folder):
            trained = train_standalone(
                self.recipe, self.session, inputs, model, self.folder, self.out,
                lambda report: show(self.console, report), self.workers,
            )  # fmt: skip
        if trained is None:
            return {}
        asked = Asked(max_draft=self.recipe.measure.max_draft, draft_model=trained.path)
        drafter = DrafterMaker(self.session.backbone, asked).standalone()
        tasks = self.args.tasks
        rows = [row for row in self._prompts(inputs) if not tasks or row.task in tasks]
        arms = compare(self.session, drafter, rows, self.recipe.measure)
        return {
            "draft_model": str(trained.path), "training": trained.training,
            "acceptance": trained.acceptance, "arms": arms,
        }  # fmt: skip
