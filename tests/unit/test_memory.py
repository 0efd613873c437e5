"""Laws of the bytes: what each drafter holds, and what a head would hold if it stood alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from drafthead.drafters.base import NoDrafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.drafters.ngram import NgramDrafter
from drafthead.drafters.ngram_mtp import NgramMtpDrafter
from drafthead.drafters.standalone import StandaloneDrafter
from drafthead.evaluation.memory import head_saves, memory_section

WIDTH, VOCAB, LAYERS, CELL = 64, 1000, 4, 2 * 2 * 2 * 32  # k and v, f16, two heads of 32
TABLE = VOCAB * WIDTH * 34 // 32  # 8 bits a weight, and 2 bytes a block of 32


def backbone(table=TABLE, weights=500_000, windows=(0,) * LAYERS):
    return SimpleNamespace(
        weight_bytes=weights,
        kv_bytes_per_token=CELL * len(windows),
        gguf=SimpleNamespace(tensors={"token_embd.weight": SimpleNamespace(nbytes=table)}),
        spec=SimpleNamespace(
            d_model=WIDTH,
            n_layers=len(windows),
            layers=[SimpleNamespace(window=window) for window in windows],
        ),
    )


def session(drafting, head=None, context=100):
    return SimpleNamespace(backbone=backbone(), drafting=drafting, head=head, context=context)


def head(layers=1, width=WIDTH):
    config = SimpleNamespace(d_model=width, n_layers=layers)
    return SimpleNamespace(config=config, tensors={"a": np.zeros(300, np.int8)})


def standalone():
    drafting = StandaloneDrafter(backbone(table=7000, weights=20_000, windows=(0,)))
    drafting._cache = SimpleNamespace(nbytes=5000)
    return drafting


def test_a_head_shares_what_a_model_of_its_own_holds_again():
    arms = {
        "plain": session(NoDrafter()),
        "mtp": session(MtpDrafter(SimpleNamespace(nbytes=450)), head()),
        "ngram+mtp": session(text_and_head(), head()),
        "standalone": session(standalone()),
    }
    section = memory_section(arms)
    assert section["drafters"] == {
        "plain": use(0, 0, 0, 0),
        "mtp": use(300, 0, 0, 450),
        "ngram+mtp": use(300, 0, 0, 450),
        "standalone": use(20_000, 7000, CELL, 25_000),
    }
    assert (section["embedding_bytes"], section["context_tokens"]) == (TABLE, 100)
    assert section["head_saves"]["standalone_bytes"] == TABLE + CELL * 100


def text_and_head():
    return NgramMtpDrafter(NgramDrafter(8), MtpDrafter(SimpleNamespace(nbytes=450)))


def test_a_head_that_drafts_beside_the_text_saves_the_same():
    arms = {"ngram+mtp": session(text_and_head(), head())}
    assert memory_section(arms)["head_saves"]["standalone_bytes"] == TABLE + CELL * 100


def use(weights, embedding, per_token, peak):
    return {
        "weights_bytes": weights,
        "embedding_bytes": embedding,
        "kv_bytes_per_token": per_token,
        "peak_bytes": peak,
    }


def test_without_a_head_nothing_is_said_to_be_saved():
    assert "head_saves" not in memory_section({"plain": session(NoDrafter(), head())})


@pytest.mark.parametrize(("layers", "width", "context"), [(1, 64, 10), (3, 32, 1000)])
def test_what_a_head_saves_follows_its_shape_and_the_vocabulary(layers, width, context):
    assert head_saves(backbone(), head(layers, width).config, context) == {
        "context_tokens": context,
        "embedding_bytes": TABLE * width // WIDTH,
        "cache_bytes": layers * CELL * context,
        "standalone_bytes": TABLE * width // WIDTH + layers * CELL * context,
        "second_cache_bytes": LAYERS * CELL * context,
    }


def test_a_second_cache_of_windowed_layers_ends_at_their_window():
    windowed = backbone(windows=(0, 128, 128, 128))
    for context, tokens in ((100, 4 * 100), (1000, 1000 + 3 * 128)):
        assert head_saves(windowed, head().config, context)["second_cache_bytes"] == CELL * tokens
