"""From a drafter's name to one that works on a backbone, or the reason why it does not.

A drafter is added here and nowhere else: its name in DRAFTERS, what it needs of the user in Asked,
and how it is made in DrafterMaker.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from drafthead._native import MtpHead
from drafthead.backbone.handle import Backbone
from drafthead.drafters import jacobi, ngram
from drafthead.drafters.base import Drafter, NoDrafter
from drafthead.drafters.jacobi import JacobiDrafter
from drafthead.drafters.mtp import MAX_DRAFT_TOKENS, MtpDrafter
from drafthead.drafters.ngram import NgramDrafter
from drafthead.drafters.ngram_mtp import NgramMtpDrafter
from drafthead.drafters.standalone import StandaloneDrafter, model_confidence, open_draft_model
from drafthead.errors import HeadError, RequestError
from drafthead.heads.package import HeadPackage
from drafthead.heads.store import find_head

DRAFTERS = ("mtp", "standalone", "ngram", "ngram+mtp", "jacobi", "none")
POLICIES = ("auto", "threshold", "fixed")
NEED_HEAD = ("mtp", "ngram+mtp")
UNLIKELY = 0.02  # a copy that is less likely than this to be accepted never gains
PLAIN_WANTED = "plain decoding was asked for"


@dataclass(frozen=True)
class DrafterState:
    """Which drafter was asked for, whether it drafts, and why not where it does not.

    warning: what its user should know, although it drafts.
    """

    name: str
    active: bool
    reason: str | None = None
    warning: str | None = None


@dataclass(frozen=True)
class Asked:
    """What a user may ask for beside a drafter's name.

    head: "auto" takes the shipped head of the backbone, "none" takes none, a path is the folder of
    a head package.  max_draft: longest draft, the drafter's own where None.  draft_model: of a
    standalone drafter, named as a backbone is.  policy: when and how much to draft.
    """

    head: str | os.PathLike[str] = "auto"
    max_draft: int | None = None
    draft_model: str | os.PathLike[str] | None = None
    policy: str = "auto"


class Made(NamedTuple):
    """A drafter, its state, and the head package that it drafts with, if any."""

    drafting: Drafter
    state: DrafterState
    head: HeadPackage | None


class DrafterMaker:
    """Makes the drafters of one backbone by name; what several of them need is loaded once."""

    def __init__(self, backbone: Backbone, asked: Asked | None = None) -> None:
        """asked: the defaults where None."""
        self.backbone = backbone
        self.asked = asked or Asked()

    def make(self, name: str) -> Made:
        """The drafter of this name, or one that never drafts and a state that says why.

        Raises:
            RequestError: there is no such drafter.
            HeadError: a head was named by its path and cannot be used.
            DraftheadError: as for `standalone`.
        """
        makers: dict[str, Callable[[], Drafter | str]] = {
            "mtp": self._mtp,
            "standalone": self.standalone,
            "ngram": self._ngram,
            "ngram+mtp": self._ngram_mtp,
            "jacobi": self._jacobi,
            "none": self._none,
        }
        made = makers[check_name(name)]()
        if isinstance(made, str):
            return Made(NoDrafter(), DrafterState(name, False, made), None)
        package = self._head[0] if name in NEED_HEAD and not isinstance(self._head, str) else None
        return Made(made, DrafterState(name, True), package)

    def _none(self) -> str:
        return PLAIN_WANTED

    def _mtp(self) -> MtpDrafter | str:
        if isinstance(self._head, str):
            return self._head
        package, head = self._head
        longest = self.asked.max_draft or MAX_DRAFT_TOKENS
        return MtpDrafter(
            head,
            longest,
            self._threshold(package.config.min_confidence),
            package.config.calibration,
        )

    def _ngram(self) -> NgramDrafter:
        longest = self.asked.max_draft or ngram.MAX_DRAFT_TOKENS
        return NgramDrafter(longest, min_confidence=self._threshold(ngram.MIN_CONFIDENCE))

    def _ngram_mtp(self) -> NgramMtpDrafter | str:
        head = self._mtp()
        if isinstance(head, str):
            return head
        # The choice is made by what a draft gains, so the text may propose what is hardly likely.
        longest = self.asked.max_draft or ngram.MAX_DRAFT_TOKENS
        return NgramMtpDrafter(NgramDrafter(longest, 1, UNLIKELY), head)

    def _jacobi(self) -> JacobiDrafter:
        return JacobiDrafter(self.asked.max_draft or jacobi.MAX_DRAFT_TOKENS)

    def standalone(self, model: str | os.PathLike[str] | None = None) -> StandaloneDrafter:
        """A drafter with this model, or with the one that was asked for.

        Raises:
            RequestError: none is named, or it has another vocabulary.
            BackboneMissingError, FileError: it cannot be opened.
        """
        model = model or self.asked.draft_model
        if model is None:
            raise RequestError(
                "The drafter standalone needs a model of its own: name it with --draft-model, or "
                "draft_model= from Python."
            )
        opened = open_draft_model(self.backbone, model)
        longest = self.asked.max_draft or MAX_DRAFT_TOKENS
        return StandaloneDrafter(opened, longest, self._threshold(model_confidence(opened)))

    def _threshold(self, own: float) -> float:
        """Where a draft ends that no policy ends: nowhere, if its length is fixed."""
        return 0.0 if self.asked.policy == "fixed" else own

    @cached_property
    def _head(self) -> tuple[HeadPackage, MtpHead] | str:
        """The head and its package, or why there is none."""
        found = choose_head(self.backbone, self.asked.head)
        return found if isinstance(found, str) else (found, found.build(self.backbone))


def check_name(name: str) -> str:
    """The name itself; RequestError where no drafter has it."""
    if name not in DRAFTERS:
        raise RequestError(f"There is no drafter {name!r}; choose from {', '.join(DRAFTERS)}.")
    return name


def check_policy(name: str) -> None:
    """RequestError where there is no such policy."""
    if name not in POLICIES:
        raise RequestError(f"There is no policy {name!r}; choose from {', '.join(POLICIES)}.")


def choose_head(backbone: Backbone, head: str | os.PathLike[str]) -> HeadPackage | str:
    """The head to draft with, or why there is none.

    Raises:
        HeadError: a head was named by its path and cannot be used.
    """
    if head == "none":
        return "no head was asked for"
    if head != "auto":
        package = HeadPackage.load(Path(head))
        package.check_target(backbone)
        return package
    found = find_head(backbone)
    if found is None:
        return f"no head for {backbone.name} comes with this version"
    try:
        return HeadPackage.load(found)
    except HeadError as error:
        return str(error)
