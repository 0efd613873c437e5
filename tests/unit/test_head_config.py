"""Laws of a head's config: it survives the trip through JSON, and a wrong field is named."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest

from drafthead.errors import HeadError
from drafthead.heads.config import HeadConfig, TargetId

CONFIG = HeadConfig(
    d_model=64, d_ff=96, n_heads=4, n_kv_heads=2, head_dim=16, vocab_size=320, draft_vocab_size=48,
    kv_layers=(5, 2), rms_eps=1e-5, rope_base=1e5, trained_steps=3,
    target=TargetId("tiny", "llama", "f" * 64, "t" * 64), training={"steps": 7},
)  # fmt: skip


def test_a_config_survives_json():
    assert HeadConfig.from_json(json.loads(json.dumps(CONFIG.to_json()))) == CONFIG


def test_the_names_of_the_published_checkpoints_are_kept():
    content = CONFIG.to_json()
    for name in ("backbone_hidden_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                 "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
                 "rms_norm_eps", "rope_theta", "tie_word_embeddings"):  # fmt: skip
        assert name in content
    block = content["frozen_mtp"]
    assert (block["format_version"], block["hidden_tap"]) == (1, "post_final_norm")
    assert (block["draft_position"], block["kv_layers"]) == ("bonus", [5, 2])


VARIANT = dataclasses.replace(CONFIG, kv_layers=(-1, 4), markov_rank=64, taps=(3, 9), positions=4,
                              prompt_tokens=True, min_confidence=0.25,
                              calibration=((1.5, 0.25), (0.9, -1.0)))  # fmt: skip


def test_a_variant_survives_json_and_has_its_tensors():
    assert HeadConfig.from_json(json.loads(json.dumps(VARIANT.to_json()))) == VARIANT
    matrices, vectors = VARIANT.matrices(), VARIANT.vectors()
    assert VARIANT.read_layers == (4,)
    assert matrices["pre_projection.weight"] == (64, 4 * 64)
    assert matrices["markov.previous.weight"] == matrices["markov.next.weight"] == (48, 64)
    assert {"model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"} <= set(
        matrices
    )
    assert not any(name.startswith("model.layers.0.self_attn") for name in matrices)
    assert "model.layers.0.input_layernorm.weight" not in vectors
    assert {"tap_norms.1.weight", "position_embeddings.2"} <= set(vectors)
    assert "position_embeddings.3" not in vectors


def test_a_config_of_before_the_variants_is_a_plain_head():
    content = CONFIG.to_json()
    for name in ("taps", "positions", "markov_rank", "draft_prompt_tokens", "min_confidence",
                 "calibration"):  # fmt: skip
        del content["frozen_mtp"][name]
    assert HeadConfig.from_json(content) == CONFIG


@pytest.mark.parametrize(
    ("field", "value"),
    [("min_confidence", 1.5), ("min_confidence", True), ("draft_prompt_tokens", 1),
     ("draft_prompt_tokens", "no"),
     ("calibration", 1.0), ("calibration", [1.0]), ("calibration", [[1.0]]),
     ("calibration", [[0.0, 1.0]]), ("calibration", [[1.0, 21]]), ("calibration", [[1.0, True]]),
     ("calibration", [[1.0, "0"]]), ("calibration", {"1": 2}),
     ("taps", [-1]), ("taps", 3), ("positions", 0), ("positions", 17), ("positions", True),
     ("markov_rank", -32), ("markov_rank", 288), ("markov_rank", 40), ("markov_rank", "64")],
)  # fmt: skip
def test_a_wrong_variant_is_named(field, value):
    content = json.loads(json.dumps(VARIANT.to_json()))
    content["frozen_mtp"][field] = value
    with pytest.raises(HeadError, match=field):
        HeadConfig.from_json(content)


def test_matrices_and_norms_are_those_of_the_layers():
    shapes = CONFIG.matrices()
    assert shapes["pre_projection.weight"] == (64, 128)
    assert shapes["model.layers.1.self_attn.q_proj.weight"] == (64, 64)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (64, 96)
    assert len(shapes) == 1 + 2 * 5 and len(CONFIG.vectors()) == 3 + 2 * 2
    assert not any("k_proj" in name or "v_proj" in name for name in shapes)


WRONG = [
    ("model_type", "gemma4_assistant"),
    ("hidden_size", "64"),
    ("hidden_size", True),
    ("hidden_size", 0),
    ("intermediate_size", 1 << 40),
    ("num_attention_heads", None),
    ("rms_norm_eps", -1.0),
    ("rms_norm_eps", float("nan")),
    ("rope_theta", "1e5"),
    ("num_hidden_layers", 3),
    ("backbone_hidden_size", 65),
    ("frozen_mtp", []),
    ("frozen_mtp.format_version", 2),
    ("frozen_mtp.format_version", True),
    ("frozen_mtp.hidden_tap", "pre_final_norm"),
    ("frozen_mtp.draft_position", "last_kv"),
    ("frozen_mtp.quantization", "int4"),
    ("frozen_mtp.kv_layers", []),
    ("frozen_mtp.kv_layers", [1, -2]),
    ("frozen_mtp.kv_layers", [1, True]),
    ("frozen_mtp.draft_vocab_size", 40),
    ("frozen_mtp.draft_vocab_size", 336),
    ("frozen_mtp.trained_steps", 2.5),
    ("frozen_mtp.target", None),
    ("frozen_mtp.target.fingerprint", 5),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_field_is_named(field, value):
    content = copy.deepcopy(json.loads(json.dumps(CONFIG.to_json())))
    *path, last = field.split(".")
    place = content
    for name in path:
        place = place[name]
    place[last] = value
    with pytest.raises(HeadError, match=last):
        HeadConfig.from_json(content)
    del place[last]
    with pytest.raises(HeadError, match=last):
        HeadConfig.from_json(content)


@pytest.mark.parametrize("content", [None, [], "x", 3])
def test_anything_but_an_object_is_refused(content):
    with pytest.raises(HeadError, match="JSON object"):
        HeadConfig.from_json(content)
