"""What a backbone and its drafters hold in memory, and what a head saves: the core's own counts.

Bytes of weights, of embedding tables, of keys and values for a token of context, and the peak.
"""

from __future__ import annotations

from collections.abc import Mapping

from drafthead.backbone.handle import Backbone
from drafthead.drafters.base import Drafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.drafters.ngram_mtp import NgramMtpDrafter
from drafthead.drafters.standalone import StandaloneDrafter
from drafthead.gguf.model import EMBEDDING
from drafthead.heads.config import HeadConfig
from drafthead.session import Session


def memory_section(arms: Mapping[str, Session]) -> dict[str, object]:
    """The `memory` section of a report.

    A head's `peak_bytes` are its weights and scratch, after drafting; it keeps no keys or values
    and reads the backbone's embedding table, so these bytes are 0. A drafter with a model of its
    own holds all of that again, and its peak has the cache of the longest answer so far. Plain
    decoding holds nothing beside the backbone. `head_saves` is there where an arm drafts with a
    head.
    """
    session = next(iter(arms.values()))
    backbone = session.backbone
    section: dict[str, object] = {
        "backbone_bytes": backbone.weight_bytes,
        "kv_bytes_per_token": backbone.kv_bytes_per_token,
        "embedding_bytes": embedding_bytes(backbone),
        "context_tokens": session.context,
        "drafters": {name: drafter_bytes(session) for name, session in arms.items()},
    }
    heads = [
        arm.head.config
        for arm in arms.values()
        if arm.head is not None and isinstance(own_drafter(arm), MtpDrafter)
    ]
    if heads:
        section["head_saves"] = head_saves(backbone, heads[0], session.context)
    return section


def drafter_bytes(session: Session) -> dict[str, int]:
    """Bytes of one drafter: of its head, of its own model, or none."""
    drafting = own_drafter(session)
    weights = embedding = per_token = peak = 0
    if isinstance(drafting, MtpDrafter) and session.head is not None:
        weights = sum(int(tensor.nbytes) for tensor in session.head.tensors.values())
        peak = drafting.head.nbytes
    elif isinstance(drafting, StandaloneDrafter):
        own = drafting.model
        weights, per_token = own.weight_bytes, own.kv_bytes_per_token
        embedding = embedding_bytes(own)
        peak = weights + drafting.cache_bytes
    return {
        "weights_bytes": weights,
        "embedding_bytes": embedding,
        "kv_bytes_per_token": per_token,
        "peak_bytes": peak,
    }


def own_drafter(session: Session) -> Drafter:
    """What a session drafts with; of text and head, the head, for the text holds no weights."""
    drafting = session.drafting
    return drafting.head if isinstance(drafting, NgramMtpDrafter) else drafting


def embedding_bytes(backbone: Backbone) -> int:
    """Bytes of the embedding table in the file's own number format; part of the weights."""
    tensor = backbone.gguf.tensors.get(EMBEDDING)
    return 0 if tensor is None else tensor.nbytes


def head_saves(backbone: Backbone, head: HeadConfig, context: int) -> dict[str, int]:
    """What the head would hold beside its weights if it stood alone, at a full context.

    Args:
        backbone: whose vocabulary and number formats are meant.
        head: its width and layers.
        context: tokens.

    Returns:
        `embedding_bytes`: a table of the head's width for this vocabulary, in the format of the
        backbone's. `cache_bytes`: keys and values of its own for each of its layers.
        `standalone_bytes`: both. `second_cache_bytes`: a copy of the whole backbone's cache, which
        is what a drafter that does not share it would have to be given; a layer with a window
        keeps its window alone.
    """
    spec = backbone.spec
    table = embedding_bytes(backbone) * head.d_model // spec.d_model
    layer = backbone.kv_bytes_per_token // spec.n_layers
    cache = layer * head.n_layers * context
    windows = (min(context, each.window) if each.window else context for each in spec.layers)
    return {
        "context_tokens": context,
        "embedding_bytes": table,
        "cache_bytes": cache,
        "standalone_bytes": table + cache,
        "second_cache_bytes": layer * sum(windows),
    }
