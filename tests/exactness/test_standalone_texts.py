"""A standalone drafter on the real core: exact whatever it drafts, and trained to draft well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from drafthead.backbone.handle import Backbone, Segment
from drafthead.drafters.base import NoDrafter
from drafthead.drafters.standalone import StandaloneDrafter, likeliest, open_draft_model
from drafthead.errors import RequestError, TrainingError
from drafthead.evaluation.cost import measure_cost
from drafthead.evaluation.memory import memory_section
from drafthead.evaluation.prompts import PromptRow
from drafthead.gguf.spec import model_spec
from drafthead.session import load
from drafthead.training import draft_file, standalone
from drafthead.training.data import data_digest
from drafthead.training.draft_file import file_tensors, tokenizer_of, write_draft_model
from drafthead.training.draft_model import DraftModel
from drafthead.training.draft_shape import DraftShape, draft_shape
from drafthead.training.inputs import Inputs
from drafthead.training.recipe import parse_recipe
from drafthead.training.regen import Regenerator, RegenSettings
from tests import hf
from tests.byte_tokens import byte_tokenizer
from tests.exactness.test_decode import run
from tests.random_head import config_for
from tests.tiny import TinySpec, random_weights, write_tiny_llama
from tests.unit.test_transformers import tolerance
from tests.windowed import same_cells

SPEC = TinySpec(tied=False)
PROMPTS = ["40 97 90", "41 97 89", "42 97 88"]
RECIPE = """
[head]
name = "h"
backbone = "b"
kv_layers = [1]
d_ff = 64
draft_vocab = 256
[train]
steps = {steps}
precision = "f32"
[standalone]
width = 64
layers = 2
lr = {lr}
batch_anchors = 512
evaluate_every = {steps}
[measure]
max_draft = 3
max_tokens = 40
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A tiny random backbone with a vocabulary of bytes."""
    path = tmp_path_factory.mktemp("b") / "tiny.gguf"
    weights = random_weights(SPEC)
    weights["output"] *= 4  # sure of its choice
    write_tiny_llama(path, SPEC, weights=weights, tokenizer=byte_tokenizer(SPEC.vocab))
    return load(path, head="none", drafter="none", threads=1)


@pytest.fixture(scope="module")
def answers(session):
    prompts = [
        PromptRow(f"{n}", "t", ({"role": "user", "content": text},))
        for n, text in enumerate(PROMPTS)
    ]

    def encode(prompt):
        return [int(word) for word in prompt.messages[0]["content"].split()]

    settings = RegenSettings(max_tokens=40, capacity=128)
    return list(Regenerator(session.backbone, encode, frozenset(), settings, 2).answers(prompts))


def trained(session, answers, folder, steps, lr=1e-2, heldout=()):
    """What `train --drafter standalone` makes of these answers."""
    recipe = parse_recipe(RECIPE.format(steps=steps, lr=lr))
    inputs = Inputs(answers, list(heldout), None, data_digest(answers))
    shape = draft_shape(recipe.standalone, config_for(session.backbone))
    model = standalone.new_model(recipe, shape, session.backbone, inputs)
    out = folder / "draft.gguf"
    return standalone.train_standalone(recipe, session, inputs, model, folder / "run", out)


@pytest.fixture(scope="module")
def learned(session, answers, tmp_path_factory):
    """A model trained on three answers until it knows them, and judged by decoding them."""
    return trained(session, answers, tmp_path_factory.mktemp("t"), 60, heldout=answers)


def test_a_model_that_knows_its_answers_by_heart_is_accepted(session, answers, learned):
    """Every index agrees for that: labels, places, rotary pairs, names, cache and threshold."""
    model = open_draft_model(session.backbone, learned.path)
    drafter, drafted, accepted = StandaloneDrafter(model, 3, 0.0), 0, 0
    for answer in answers:
        said, request, _ = run(session.backbone, drafter, answer.prompt_tokens, len(answer.answer))
        assert tuple(said) == answer.answer
        drafted += request.stats.drafted
        accepted += request.stats.accepted
    assert drafted > 60
    assert accepted > 0.95 * drafted
    assert learned.acceptance["tau"] > 3.5 and learned.training["kept"]["tau"] > 3


def test_a_session_drafts_with_the_file_and_says_what_it_costs(session, learned):
    loaded = load(
        session.backbone.path,
        drafter="standalone",
        threads=1,
        draft_model=learned.path,
        max_draft=3,
        policy="threshold",  # the automatic one rests where a busy machine makes drafts slow
    )
    plain = session.generate([40, 97, 90], max_tokens=30)
    result = loaded.generate([40, 97, 90], max_tokens=30)
    assert result.tokens == plain.tokens and result.stats.accepted > 10
    assert loaded.drafter.active
    assert loaded.drafting.min_confidence == pytest.approx(
        learned.training["kept"]["min_confidence"]
    )
    costs = measure_cost(loaded, (1,), context=20, rounds=1)
    assert costs["draft_step_ms"] > 0
    held = memory_section({"a": loaded})["drafters"]["a"]
    shape = learned.shape
    assert held["embedding_bytes"] == shape.vocab_size * shape.width * 34 // 32
    assert held["kv_bytes_per_token"] == 4 * shape.layers * shape.n_kv_heads * shape.head_dim
    assert held["peak_bytes"] == held["weights_bytes"] + loaded.drafting.cache_bytes


def test_the_file_says_what_torch_computes(session, answers, tmp_path, monkeypatch):
    """Two steps into a training, with matrices in F32: the engine's logits are torch's."""
    models = []
    monkeypatch.setattr(
        draft_file, "packed", lambda values: (values, gguf.GGMLQuantizationType.F32)
    )
    monkeypatch.setattr(
        standalone, "new_model", lambda *how, real=standalone.new_model: kept(models, real(*how))
    )
    done = trained(session, answers, tmp_path, 2)
    tokens = [*answers[0].prompt_tokens, *answers[0].answer]
    with torch.no_grad():
        states = models[0].model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
        expected = (states @ models[0].learned_rows.T).numpy()
    engine = Backbone.open(done.path, threads=1)
    rows = Segment(engine.new_cache(len(tokens), "f32"), tokens)
    found = engine.forward([rows], want="logits").logits
    assert np.abs(found - expected).max() < 2 * tolerance(engine.spec, expected)


def kept(models, model):
    models.append(model)
    return model


def test_matrices_are_rounded_to_int8_and_nothing_else_happens_to_them(session, tmp_path):
    """q d of a weight is off by d / 2, and d, as a half, by 2^-11 of it: 127 q at most."""
    model, path = random_model(session), tmp_path / "m.gguf"
    write_draft_model(path, model, {}, 64, 0.3, "m")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, values in file_tensors(model).items():
        tensor = stored.pop(name)
        found = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
        if values.ndim == 1:
            assert np.array_equal(found, values)
            continue
        step = np.abs(values.reshape(-1, 32)).max(1) / 127
        off = np.abs(found - values).reshape(-1, 32).max(1)
        assert (off <= step * (0.5 + 127 * 2.0**-11)).all(), name
    assert not stored


def random_model(session, seed=3):
    torch.manual_seed(seed)
    return DraftModel(DraftShape(session.backbone.spec.vocab_size, 64, 2, 96), 1e4)


def write_random(session, path, tokenizer=None, seed=3):
    keys = tokenizer_of(session.backbone.path) if tokenizer is None else tokenizer
    write_draft_model(path, random_model(session, seed), keys, 640, 0.0, "m")
    return path


def test_the_file_has_the_backbones_tokenizer_and_the_size_that_was_promised(session, tmp_path):
    model = open_draft_model(session.backbone, write_random(session, tmp_path / "m.gguf"))
    assert model.tokenizer_fingerprint == session.backbone.tokenizer_fingerprint
    assert model_spec(model.gguf).tied_output
    shape = random_model(session).shape
    assert sum(tensor.nbytes for tensor in model.gguf.tensors.values()) == shape.nbytes
    sizes = [np.prod(tensor.shape) for tensor in model.gguf.tensors.values()]
    assert sum(sizes) == shape.body_parameters + shape.embedding_parameters
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("context", [8, 640])
def test_answers_and_cells_are_those_of_plain_decoding(session, tmp_path, context):
    """A random model is nearly always wrong; with a context of 8 it stops in the middle."""
    path = write_random(session, tmp_path / "m.gguf")
    model = open_draft_model(session.backbone, path)
    object.__setattr__(model.spec, "context_length", context)
    for prompt in ([5], [40, 97, 90], list(range(3, 250, 9))):
        expected, _, plain = run(session.backbone, NoDrafter(), prompt, 60)
        for longest in (1, 4):
            drafter = StandaloneDrafter(model, longest, 0.0)
            tokens, request, cache = run(session.backbone, drafter, prompt, 60)
            assert tokens == expected
            assert same_cells(session.backbone, cache, plain)
            assert (drafter.reason is not None) == (context == 8)
            assert request.stats.drafted > 0 or len(prompt) >= context


@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_drafts_have_the_bits_of_a_model_that_reads_everything_again(family, tmp_path):
    """Full and windowed layers, through wrapped rings; tokens and probabilities by ==."""
    hf.write_gguf(family, hf.tiny_model(family), tmp_path / "tiny.gguf")
    model = Backbone.open(tmp_path / "tiny.gguf", threads=1)
    drafter, capacity = StandaloneDrafter(model, 3, 0.0), 420
    tokens = [n * 7 % 112 for n in range(1, 250)]
    drafter.begin(tokens, np.zeros(1, np.float32), model.new_cache(capacity))
    for turn in range(40):
        draft = drafter.propose(3)
        text, steps = list(tokens), []
        for _ in range(3):
            steps.append(likeliest(model, model.new_cache(len(text)), text))
            text.append(steps[-1][0])
        assert list(zip(draft.tokens, draft.confidences, strict=True)) == steps
        accepted = turn % 4
        committed = [*draft.tokens[:accepted], (5 * turn + 1) % 112]
        drafter.observe(committed, np.zeros(1, np.float32))
        tokens += committed


def test_another_vocabulary_is_refused_in_one_sentence(session, tmp_path):
    keys = byte_tokenizer(SPEC.vocab)
    words, *kinds = keys["tokenizer.ggml.tokens"]
    keys["tokenizer.ggml.tokens"] = ([*words[:70], "other", *words[71:]], *kinds)
    path = write_random(session, tmp_path / "other.gguf", keys)
    with pytest.raises(RequestError) as refused:
        load(session.backbone.path, drafter="standalone", threads=1, draft_model=path)
    assert "other cannot draft for tiny" in str(refused.value)
    assert "token 70 is 'other'" in str(refused.value)


def test_a_drafter_without_a_model_is_refused(session):
    with pytest.raises(RequestError, match=r"needs a model of its own.*--draft-model"):
        load(session.backbone.path, drafter="standalone", threads=1)


def test_called_again_it_trains_nothing_and_writes_the_same_file(session, answers, tmp_path):
    first = trained(session, answers, tmp_path, 3)
    whole = Path(first.path).read_bytes()
    first.path.unlink()
    again = trained(session, answers, tmp_path, 3)
    assert again.path.read_bytes() == whole and again.training["steps"] == 3


def test_a_training_goes_on_from_a_file(session, answers, learned, tmp_path):
    """Its weights are those that the file's int8 stand for: what was learned is there at once."""
    model = DraftModel(learned.shape, session.backbone.spec.rope_base)
    draft_file.start_from_file(learned.path, model)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(learned.path).tensors}
    for name, values in file_tensors(model).items():
        found = gguf.dequantize(stored[name].data, stored[name].tensor_type)
        assert np.array_equal(found.reshape(values.shape), values), name
    write_draft_model(tmp_path / "same.gguf", model, {}, 64, 0.3, "m")
    again = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "same.gguf").tensors}
    assert all(np.array_equal(again[name].data, stored[name].data) for name in stored)


def test_a_file_of_another_shape_is_refused(session, learned):
    other = DraftModel(replace(learned.shape, d_ff=learned.shape.d_ff + 32), 1e4)
    with pytest.raises(TrainingError, match=r"blk\.0\.ffn_gate\.weight is .* there and"):
        draft_file.start_from_file(learned.path, other)
