"""The torch host as a source of features: the engine's up to rounding, or refused."""

from __future__ import annotations

import argparse
import json
import sys
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from drafthead.backbone.handle import Backbone
from drafthead.cli.train_head import Command
from drafthead.errors import TrainingError
from drafthead.gguf.model import ModelSpec
from drafthead.training import features as features_module
from drafthead.training.answers import Answer
from drafthead.training.data import DraftVocabulary
from drafthead.training.features import FeatureStore, kept_rows
from drafthead.training.host import TorchFeatures, TorchHost
from drafthead.training.host_check import COMPARISON, Nearness, compare_with_engine
from drafthead.training.inputs import Inputs
from drafthead.training.library import folder_model
from drafthead.training.parallel import ALONE
from drafthead.training.pipeline import feature_store
from drafthead.training.recipe import parse_recipe
from tests import hf

# Families by layers that see every position; Mistral has none.
READ = {
    "llama3": (0, 1), "linear": (1,), "smollm3": (4, 3), "qwen2": (0, 1), "qwen3": (1, 0),
    "gemma2": (1,), "gemma3": (5,),
}  # fmt: skip
VOCAB = hf.SIZES["vocab_size"]


def answers_of(lengths: list[tuple[int, int]]) -> list[Answer]:
    rng = np.random.default_rng(5)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(int(t) for t in rng.integers(0, VOCAB, count))

    return [Answer(f"a{i}", "t", tokens(p), tokens(n), "stop") for i, (p, n) in enumerate(lengths)]


ANSWERS = answers_of([(9, 30), (30, 5), (3, 1), (20, 20), (1, 12)])  # one shows nothing


@pytest.fixture(scope="module", params=READ)
def case(request, tmp_path_factory):
    """A backbone with f32 weights and cells, the model it was written from, layers to read."""
    path = tmp_path_factory.mktemp("host") / "tiny.gguf"
    model = hf.tiny_model(request.param)
    hf.write_gguf(request.param, model, path)
    return Backbone.open(path, threads=1, kv="f32"), model, READ[request.param]


def store(folder, case, source=None) -> FeatureStore:
    backbone, _, layers = case
    made = FeatureStore(folder, backbone, ANSWERS, layers, source=source)
    made.build()
    return made


def near(found: np.ndarray, expected: np.ndarray, spec: ModelSpec) -> bool:
    """Whether two features differ as float32 and then f16 make them differ.

    Float32 as tests/unit/test_transformers.py derives it, of both sides; f16 rounds each by 2^-11
    of a value or less.
    """
    assert found.dtype == expected.dtype == np.float16
    assert found.shape == expected.shape
    widest = max(spec.d_model, spec.d_ff, spec.n_heads * spec.head_dim)
    rows = max(map(kept_rows, ANSWERS))
    limit = 2.0**-23 * spec.n_layers * (widest**0.5 + 2 * rows) + 2.0**-10
    largest = np.abs(expected.astype(np.float32)).max(initial=0)
    difference = np.abs(found.astype(np.float32) - expected.astype(np.float32))
    return bool((difference <= limit * largest).all())


def test_the_host_shows_what_the_engine_shows(case, tmp_path):
    backbone, _, _ = case
    engine = store(tmp_path / "engine", case)
    host = store(tmp_path / "host", case, TorchFeatures(backbone))
    for index in range(len(ANSWERS)):
        assert near(host.hidden(index), engine.hidden(index), backbone.spec)
        assert near(host.kv(index), engine.kv(index), backbone.spec)


def test_an_answer_has_the_same_features_beside_longer_ones(case, monkeypatch, tmp_path):
    backbone, _, _ = case
    together = store(tmp_path / "together", case, TorchFeatures(backbone))
    monkeypatch.setattr(features_module, "SOURCE_ROWS", 1)
    alone = store(tmp_path / "alone", case, TorchFeatures(backbone))
    for index in range(len(ANSWERS)):
        assert near(together.hidden(index), alone.hidden(index), backbone.spec)
        assert near(together.kv(index), alone.kv(index), backbone.spec)


def test_the_models_own_folder_shows_what_its_file_shows(case, tmp_path):
    """For f32 weights are the same in both."""
    backbone, model, layers = case
    model.save_pretrained(tmp_path / "model")
    own = TorchHost(backbone, weights=tmp_path / "model").show(ANSWERS[:2], layers)
    for mine, others in zip(own, TorchHost(backbone).show(ANSWERS[:2], layers), strict=True):
        for found, expected in zip(mine, others, strict=True):
            assert near(found, expected, backbone.spec)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen") / "tiny.gguf"
    hf.write_gguf("qwen2", hf.tiny_model("qwen2"), path)
    return Backbone.open(path, threads=1)


def test_a_folder_of_another_model_is_refused(qwen, tmp_path):
    hf.tiny_model("qwen3").save_pretrained(tmp_path / "family")
    with pytest.raises(TrainingError, match="model_type is qwen3, expected qwen2"):
        folder_model(tmp_path / "family", qwen)
    hf.tiny_model("qwen2").save_pretrained(tmp_path / "size")
    config = json.loads((tmp_path / "size" / "config.json").read_text())
    (tmp_path / "size" / "config.json").write_text(json.dumps({**config, "vocab_size": 96}))
    with pytest.raises(TrainingError, match="vocab_size is 96, expected 112"):
        folder_model(tmp_path / "size", qwen)
    with pytest.raises(TrainingError, match="holds no model"):
        folder_model(tmp_path / "nothing", qwen)


def test_a_folder_with_pickled_weights_is_not_read(qwen, tmp_path):
    model = hf.tiny_model("qwen2")
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(TrainingError, match="safetensors"):
        folder_model(tmp_path, qwen)


def test_a_folder_without_a_tensor_is_refused(qwen, tmp_path):
    """The library would draw it at random."""
    hf.tiny_model("qwen2").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(TrainingError, match=r"layers\.1\.mlp\.up_proj\.weight is missing"):
        folder_model(tmp_path, qwen)


def test_a_missing_device_is_refused_in_one_sentence(qwen):
    for name in ("cuda:99", "warp drive"):
        with pytest.raises(TrainingError, match=r"There is no device .* here; use --device cpu"):
            TorchFeatures(qwen, name)


def test_without_the_library_one_sentence_says_what_to_install(qwen, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TrainingError, match=r"pip install 'drafthead\[train\]'"):
        TorchHost(qwen)


def test_features_of_another_source_are_computed_anew(qwen, tmp_path):
    engine = FeatureStore(tmp_path, qwen, ANSWERS, (1,))
    engine.build()
    again = FeatureStore(tmp_path, qwen, ANSWERS, (1,), source=TorchFeatures(qwen))
    assert again.plan.missing_rows == sum(map(kept_rows, ANSWERS))
    again.build()
    engine = FeatureStore(tmp_path, qwen, ANSWERS, (1,))
    assert engine.plan.missing_rows == again.plan.rows


def test_taps_are_refused_of_a_source_that_gives_none(qwen, tmp_path):
    with pytest.raises(TrainingError, match="--host engine"):
        FeatureStore(tmp_path, qwen, ANSWERS, (1,), (0,), TorchFeatures(qwen))


def test_the_comparison_says_how_far_the_host_is(qwen, tmp_path):
    """The same features are no distance apart; other weights are."""
    ids = np.arange(VOCAB)
    engine = FeatureStore(tmp_path / "engine", qwen, ANSWERS, (1, 0))
    engine.build()
    same = compare_with_engine(qwen, engine, ANSWERS, (1, 0), ids, tmp_path / "run")
    assert (same.answers, same.anchors) == (4, 29 + 4 + 19 + 11)
    assert same.same_choice == 1
    for near in (same.states, same.keys, same.values):
        assert near.error == 0 and near.lowest_cosine == pytest.approx(1, abs=1e-6)
    assert json.loads((tmp_path / "run" / COMPARISON).read_text()) == same.content()
    model = hf.tiny_model("qwen2")
    model.model.layers[0].self_attn.v_proj.weight.data *= 0.5
    model.save_pretrained(tmp_path / "model")
    source = TorchFeatures(qwen, weights=tmp_path / "model")
    other = FeatureStore(tmp_path / "other", qwen, ANSWERS, (1, 0), source=source)
    other.build()
    found = compare_with_engine(qwen, other, ANSWERS, (1, 0), ids, tmp_path / "run")
    assert found.states.error > 0.05 and found.states.cosine < 0.999
    assert found.same_choice < 1 and "the same likeliest token" in found.text()


@pytest.mark.parametrize("kv_layers", [[-1], [-1, 1]])
def test_a_head_is_compared_in_what_it_reads(qwen, tmp_path, kv_layers):
    """A layer without attention has no keys and values; the states are compared all the same."""
    command = Command.__new__(Command)
    table = {"name": "h", "backbone": "b", "kv_layers": kv_layers, "d_ff": 64, "draft_vocab": 64}
    command.recipe = parse_recipe(
        "[head]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())
        + "[train]\nsteps = 1\n"
    )  # fmt: skip
    command.source, command.workers, command.folder = TorchFeatures(qwen), ALONE, tmp_path
    command.session, command.console = SimpleNamespace(backbone=qwen), Console(file=StringIO())
    inputs = Inputs(ANSWERS, [], DraftVocabulary(np.arange(64), VOCAB), "digest")
    features = feature_store(command.recipe, qwen, inputs, tmp_path / "f", command.source)
    features.build()
    found = command._compare(features, inputs)["host"]
    assert found["states"]["cosine"] > 0.99
    for part in ("keys", "values"):
        assert (found[part] is None) == (kv_layers == [-1])
    assert ("keys" in command.console.file.getvalue()) == (kv_layers != [-1])


def test_nearness_is_that_of_the_farthest_row():
    expected = np.array([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]], np.float32)
    found = np.array([[3.0, 4.0], [2.0, 0.0], [0.0, 0.0]], np.float32)
    near = Nearness.of(found, expected)
    assert near.cosine == pytest.approx(2 / 3) and near.lowest_cosine == 0 and near.error == 1


def test_the_flags_of_the_host_need_it(monkeypatch):
    command = Command.__new__(Command)
    command.args = argparse.Namespace(host="engine", weights="folder")
    with pytest.raises(TrainingError, match="--host torch"):
        command._source()
