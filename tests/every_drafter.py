"""Every kind of drafter on one small model, each right often and wrong often.

The model is that of own_head.py: two layers, one with a window. The standalone drafter's model has
the same weights and a little noise in its output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from drafthead.backbone.handle import Backbone, KvType
from drafthead.drafters.base import NoDrafter
from drafthead.drafters.jacobi import JacobiDrafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.drafters.ngram import NgramDrafter
from drafthead.drafters.ngram_mtp import NgramMtpDrafter
from drafthead.drafters.standalone import StandaloneDrafter
from drafthead.drafting import DrafterState
from drafthead.session import Session
from tests import fakes
from tests.own_head import MODEL, own_head, own_weights
from tests.windowed import build

K = 4
V = MODEL.vocab_size
REAL = ["mtp", "standalone", "ngram", "ngram+mtp", "jacobi"]
DOUBLES = ["RANDOM", "ORACLE", "ORACLE-0", "ORACLE-2", "SKIPPING", "NaN"]


@lru_cache
def model(kv: KvType = "f16") -> Backbone:
    """The backbone, with caches of this type."""
    backbone = build(MODEL, own_weights(), threads=1)
    backbone.kv = kv
    backbone.__dict__["fingerprint"] = backbone.__dict__["tokenizer_fingerprint"] = "f" * 64
    return backbone


@lru_cache
def draft_model(kv: KvType = "f16") -> Backbone:
    """One that often chooses as the backbone does."""
    weights = own_weights()
    noise = np.random.default_rng(2).normal(0, 0.05, weights["output"].shape)
    backbone = build(MODEL, weights | {"output": weights["output"] + noise}, threads=1)
    backbone.kv = kv
    return backbone


@lru_cache
def head(kv: KvType = "f16") -> Any:
    """The backbone's head."""
    return own_head(model(kv))


def mtp(kv: KvType = "f16", k: int = K) -> MtpDrafter:
    """Drafts in spite of its doubts."""
    return MtpDrafter(head(kv), k, min_confidence=0.0)


def make(
    name: str, kv: KvType = "f16", answer: Sequence[int] = (), prompt: int = 0, k: int = K
) -> Any:
    """A new drafter; the answer, and the size of the prompt, are for those that know it."""
    at = {"answer": answer, "prompt_tokens": prompt, "k": k, "vocab_size": V, "check_hidden": False}
    makers: dict[str, Callable[[], Any]] = {
        "none": NoDrafter,
        "mtp": lambda: mtp(kv, k),
        "standalone": lambda: StandaloneDrafter(draft_model(kv), k, 0.0),
        "ngram": lambda: NgramDrafter(k, 1, 0.01),
        "ngram+mtp": lambda: NgramMtpDrafter(NgramDrafter(k, 1, 0.01), mtp(kv, k)),
        "jacobi": lambda: JacobiDrafter(k),
        "RANDOM": lambda: fakes.RandomDrafter(k=k, vocab_size=V, check_hidden=False),
        "ORACLE": lambda: fakes.OracleDrafter(**at),
        "ORACLE-0": lambda: fakes.OracleDrafter(right=0, **at),
        "ORACLE-2": lambda: fakes.OracleDrafter(right=2, **at),
        "SKIPPING": lambda: fakes.SkippingDrafter(**at),
        "NaN": lambda: fakes.NanDrafter(**at),
    }
    return makers[name]()


def session(drafter: Any = None, kv: KvType = "f16", context: int | None = None) -> Session:
    """A cold session on the model, whose tokens are bytes and some more."""
    drafter = drafter or NoDrafter()
    tokenizer = fakes.ByteTokenizer((), V)
    state = DrafterState(drafter.name, True)
    return Session(model(kv), tokenizer, fakes.PlainTemplate(), drafter, state, context=context)
