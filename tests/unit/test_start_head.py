"""Laws of going on from a head: its own shape and vocabulary, its backbone or a fine-tune of it."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from drafthead.backbone.handle import Backbone
from drafthead.errors import HeadError, TrainingError
from drafthead.heads.package import CONFIG
from drafthead.training.head_shape import full_layers, head_sizes
from drafthead.training.inputs import read_inputs
from drafthead.training.modules import Batch, FrozenMtpHead, SequenceKv
from drafthead.training.pipeline import check_run
from drafthead.training.quantize import dequantize
from drafthead.training.recipe import parse_recipe
from drafthead.training.start_head import StartHead
from tests.random_head import config_for, write_random_head
from tests.unit.test_run_folder import session_of, write_answers


@pytest.fixture(scope="module")
def backbone(tiny_path):
    return Backbone.open(tiny_path, threads=1)


@pytest.fixture(scope="module")
def package(backbone, tmp_path_factory):
    return write_random_head(tmp_path_factory.mktemp("heads") / "old", backbone)


def recipe_of(backbone, **head):
    config = config_for(backbone)
    keys = {"name": "h", "backbone": "b", "kv_layers": list(config.kv_layers),
            "d_ff": config.d_ff, "draft_vocab": config.draft_vocab_size} | head  # fmt: skip
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return parse_recipe("\n".join(["[head]", *lines, "[train]", "steps = 1"]))


def fine_tuned(backbone, **change):
    """The backbone with other weights, and perhaps another tokenizer or other numbers."""
    names = {"name": "tuned", "fingerprint": "0" * 64, "spec": backbone.spec,
             "tokenizer_fingerprint": backbone.tokenizer_fingerprint}  # fmt: skip
    return SimpleNamespace(**(names | change))


def test_the_weights_are_what_the_int8_stand_for(backbone, package):
    recipe = recipe_of(backbone)
    start = StartHead.open(str(package), recipe, backbone)
    head = FrozenMtpHead(head_sizes(recipe, backbone, 256))
    start.load_into(head, recipe.head.kv_layers)
    tensors = start.package.tensors
    name = "model.layers.0.mlp.up_proj.weight"
    found = head.state_dict()[name]
    assert found.dtype == torch.float32
    assert (found.numpy() == dequantize(tensors[name], tensors[name + "_scale"])).all()
    assert (head.model.norm.weight.detach().numpy() == tensors["model.norm.weight"]).all()


def test_the_draft_vocabulary_stays_the_heads_own_whatever_the_answers_say(
    backbone, package, tmp_path
):
    """K4: one that is chosen anew ruins acceptance while the training's own numbers look well."""
    recipe = recipe_of(backbone)
    start = StartHead.open(str(package), recipe, backbone)
    folder, session = write_answers(tmp_path, backbone), session_of(backbone)
    chosen = read_inputs(recipe, folder, session).vocabulary.token_ids
    kept = read_inputs(recipe, folder, session, start).vocabulary
    assert not np.array_equal(chosen, start.token_ids)
    assert np.array_equal(kept.token_ids, start.token_ids)
    assert (kept.to_index(start.token_ids) == np.arange(len(start.token_ids))).all()


def test_a_fine_tune_of_the_backbone_is_trained_for_and_named(backbone, package):
    """The old head is refused by it in use, and the new one is its own."""
    tuned, recipe = fine_tuned(backbone), recipe_of(backbone)
    start = StartHead.open(str(package), recipe, tuned)
    with pytest.raises(HeadError, match="fingerprint"):
        start.package.check_target(tuned)
    assert head_sizes(recipe, tuned, 256).target.fingerprint == tuned.fingerprint
    assert start.record["target_fingerprint"] == backbone.fingerprint
    assert start.record["head"] == "old"


def test_another_tokenizer_or_architecture_or_size_is_refused(backbone, package):
    recipe = recipe_of(backbone)
    for change in (
        {"tokenizer_fingerprint": "0" * 64},
        {"spec": dataclasses.replace(backbone.spec, architecture="qwen2")},
        {"spec": dataclasses.replace(backbone.spec, vocab_size=backbone.spec.vocab_size + 16)},
    ):
        (name,) = change
        wanted = {"spec": "architecture|vocab_size"}.get(name, name)
        with pytest.raises(TrainingError, match=f"^--start-from .*: ({wanted}) is that of"):
            StartHead.open(str(package), recipe, fine_tuned(backbone, **change))


@pytest.mark.parametrize(
    ("head", "field"),
    [
        ({"d_ff": 96}, "d_ff"), ({"draft_vocab": 128}, "draft_vocab_size"),
        ({"markov_rank": 32}, "markov_rank"), ({"taps": [0]}, "taps"),
    ],
)  # fmt: skip
def test_a_head_of_another_shape_is_refused(backbone, package, head, field):
    with pytest.raises(TrainingError, match=rf"keeps the head's shape, but its {field} is \S+ and"):
        StartHead.open(str(package), recipe_of(backbone, **head), backbone)


@pytest.mark.parametrize("layers", [[-1], [-1, -1]])
def test_a_head_without_the_starts_layers_is_refused(backbone, package, layers):
    with pytest.raises(TrainingError, match=r"keeps the layers of the head, which read \[\d.*-1"):
        StartHead.open(str(package), recipe_of(backbone, kv_layers=layers), backbone)


def drafted(head, backbone, read, count):
    """States of three draft steps of made-up anchors; the keys and values differ by layer."""
    draw = torch.Generator().manual_seed(1)
    d, spec = backbone.spec.d_model, backbone.spec
    of_layer = {
        layer: torch.randn(2, spec.n_kv_heads, count, spec.head_dim,
                           generator=torch.Generator().manual_seed(layer))
        for layer in read
    }  # fmt: skip
    keys, values = (torch.stack([of_layer[layer][part] for layer in read]) for part in (0, 1))
    batch = Batch(
        torch.randn(count, d, generator=draw), torch.randn(3, count, d, generator=draw),
        torch.zeros(3, count, dtype=torch.long), torch.zeros(3, count, dtype=torch.long),
        torch.arange(count), [SequenceKv(slice(0, count), keys, values)], torch.zeros(0),
    )  # fmt: skip
    with torch.no_grad():
        return head(batch)


@pytest.mark.parametrize("added", ["in front", "behind", "without attention"])
def test_a_grown_head_drafts_what_the_old_one_did_until_it_is_trained(backbone, package, added):
    """To the bit: what a new layer adds to the state is zero, whatever else it holds."""
    (old_layer,) = config_for(backbone).kv_layers
    other = next(layer for layer in full_layers(backbone.spec) if layer != old_layer)
    layers = {"in front": [other, old_layer], "behind": [old_layer, other],
              "without attention": [-1, old_layer]}[added]  # fmt: skip
    states = []
    for kv_layers in ([old_layer], layers):
        recipe = recipe_of(backbone, kv_layers=kv_layers)
        start = StartHead.open(str(package), recipe, backbone)
        assert start.grows(kv_layers) == (len(kv_layers) > 1)
        torch.manual_seed(0)
        head = FrozenMtpHead(head_sizes(recipe, backbone, 256))
        start.load_into(head, kv_layers)
        states.append(drafted(head, backbone, recipe.head.read_layers, 7))
    assert all(map(torch.equal, *states))
    grown = dict(head.named_parameters())
    new = layers.index(old_layer) ^ 1
    assert grown[f"model.layers.{new}.mlp.up_proj.weight"].any(), "else it could never learn"


def test_a_rotary_base_of_its_own_is_seen(backbone, package, tmp_path):
    content = json.loads((package / CONFIG).read_text())
    changed = tmp_path / "changed"
    changed.mkdir()
    for path in package.iterdir():
        (changed / path.name).write_bytes(path.read_bytes())
    (changed / CONFIG).write_text(json.dumps(content | {"rope_theta": 12345.0}))
    with pytest.raises(TrainingError, match="rope_base is 12345"):
        StartHead.open(str(changed), recipe_of(backbone), backbone)


def test_a_shipped_head_is_known_by_its_name_and_nothing_else_is(backbone):
    with pytest.raises(TrainingError, match=r"architecture|fingerprint"):
        StartHead.open("smollm2-135m", recipe_of(backbone), backbone)
    with pytest.raises(HeadError, match="is not a head package"):
        StartHead.open("unheard-of", recipe_of(backbone), backbone)


def test_a_run_is_not_resumed_from_another_start(backbone, package, tmp_path):
    recipe = recipe_of(backbone)
    start = StartHead.open(str(package), recipe, backbone)
    folder, session = write_answers(tmp_path / "a", backbone), session_of(backbone)
    inputs = read_inputs(recipe, folder, session, start)
    other = dataclasses.replace(start, digest="0")
    for place, (begun, resumed) in enumerate(((None, start), (start, None), (start, other))):
        run = tmp_path / str(place)
        for _ in range(2):
            check_run(run, recipe, dataclasses.replace(inputs, start=begun))
        with pytest.raises(TrainingError, match="another start_digest"):
            check_run(run, recipe, dataclasses.replace(inputs, start=resumed))
