"""Which heads a backbone can have: the others are refused before anything is computed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from drafthead.errors import TrainingError
from drafthead.gguf.model import Layer, Rope
from drafthead.training.data import DraftVocabulary
from drafthead.training.head_shape import head_config
from drafthead.training.inputs import Inputs
from drafthead.training.recipe import parse_recipe
from tests.own_head import MODEL

FULL = replace(MODEL, layers=(Layer(0, 0), Layer(0, 0)))


def config_of(spec, kv_layers, **head):
    keys = {"name": "h", "backbone": "b", "d_ff": 64, "draft_vocab": 32} | head
    lines = [f"{key} = {value!r}" for key, value in keys.items()]
    recipe = parse_recipe(
        "\n".join(["[head]", f"kv_layers = {kv_layers}", *lines, "[train]", "steps = 1"])
    )
    backbone = SimpleNamespace(
        name="b", spec=spec, fingerprint="f" * 64, tokenizer_fingerprint="t" * 64
    )
    return head_config(recipe, backbone, Inputs([], [], DraftVocabulary(np.arange(32), 96), "d"))


def test_a_head_takes_its_sizes_from_the_backbone_and_the_rotary_base_from_the_layers_it_reads():
    spec = replace(
        FULL, qkv_bias=True, qk_norm=True, ropes=(Rope(1e4, 1.0), Rope(1e6, 1.0)),
        layers=(Layer(16, 0), Layer(0, 1)),
    )  # fmt: skip
    config = config_of(spec, [1])
    assert (config.d_model, config.head_dim) == (spec.d_model, spec.head_dim)
    assert config.attention_bias and config.qk_norm and config.rope_base == 1e6


@pytest.mark.parametrize(
    ("change", "kv_layers", "reason"),
    [
        ({"layers": (Layer(16, 0), Layer(0, 0))}, [0], r"sliding window.*\[1\]"),
        ({"layers": (Layer(0, -1), Layer(0, 0))}, [0], "same rotary"),
        (
            {"ropes": (Rope(1e4, 1.0), Rope(1e6, 1.0)), "layers": (Layer(0, 0), Layer(0, 1))},
            [0, 1],
            "same rotary",
        ),
        ({"ropes": (Rope(1e4, 0.5),)}, [1], "scaled positions"),
        ({"rope_factors": True}, [1], "rope factors"),
        ({"attention_softcap": 50.0}, [1], "soft cap"),
        ({"attention_scale": 0.5}, [1], "attention scale"),
        ({}, [2], r"layers 0 \.\. 1"),
    ],
)
def test_a_head_that_torch_would_train_on_other_attention_than_the_core_has_is_refused(
    change, kv_layers, reason
):
    with pytest.raises(TrainingError, match=reason):
        config_of(replace(FULL, **change), kv_layers)


def test_a_head_without_attention_fits_any_of_them():
    odd = replace(FULL, rope_factors=True, attention_softcap=50.0, attention_scale=0.5)
    assert config_of(odd, [-1]).kv_layers == (-1,)


def test_sizes_that_are_no_whole_blocks_are_named():
    with pytest.raises(TrainingError, match="d_ff must be a multiple of 32"):
        config_of(FULL, [1], d_ff=40)
