"""What a backbone and its drafters hold in memory, from the core's own counts."""

from __future__ import annotations

from collections.abc import Mapping

from drafthead.drafters.mtp import MtpDrafter
from drafthead.drafters.ngram_mtp import NgramMtpDrafter
from drafthead.drafters.standalone import StandaloneDrafter
from drafthead.gguf.model import EMBEDDING
from drafthead.session import Session


def memory_section(arms: Mapping[str, Session]) -> dict[str, object]:
    """The `memory` section of a report.

    A head's `peak_bytes` are its weights and scratch, after drafting; it keeps no keys or values,
    so its bytes for a token of context are 0, and no embedding table. A standalone drafter's are
    its weights, table included, and its cache. Plain decoding holds nothing beside the backbone.
    """
    backbone = next(iter(arms.values())).backbone
    return {
        "backbone_bytes": backbone.weight_bytes,
        "kv_bytes_per_token": backbone.kv_bytes_per_token,
        "drafters": {name: drafter_bytes(session) for name, session in arms.items()},
    }


def drafter_bytes(session: Session) -> dict[str, int]:
    """Bytes of one drafter."""
    drafting = session.drafting
    if isinstance(drafting, NgramMtpDrafter):
        drafting = drafting.head
    if isinstance(drafting, StandaloneDrafter):
        model = drafting.model
        return {
            "weights_bytes": model.weight_bytes,
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "embedding_bytes": model.gguf.tensors[EMBEDDING].nbytes,
            "peak_bytes": model.weight_bytes + drafting.cache_bytes,
        }
    weights = peak = 0
    if isinstance(drafting, MtpDrafter) and session.head is not None:
        weights = sum(int(tensor.nbytes) for tensor in session.head.tensors.values())
        peak = drafting.head.nbytes
    return {
        "weights_bytes": weights,
        "kv_bytes_per_token": 0,
        "embedding_bytes": 0,
        "peak_bytes": peak,
    }
