"""Where a head starts: the torch host equals the engine, the head's attention that of the layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from drafthead.backbone.handle import Backbone, Segment
from drafthead.errors import TrainingError
from drafthead.gguf.model import Rope
from drafthead.heads.config import HeadConfig, TargetId
from drafthead.training import warm_start
from drafthead.training.answers import Answer
from drafthead.training.batching import BatchMaker
from drafthead.training.data import DraftVocabulary
from drafthead.training.features import FeatureStore
from drafthead.training.host import Inside, TorchHost
from drafthead.training.library import file_model
from drafthead.training.modules import FrozenMtpHead, HeadLayer, rope_tables, visible
from drafthead.training.warm_start import fit, ridge, rms, samples, start_from_backbone, unit
from tests import hf

TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, hf.SIZES["vocab_size"], 60)]
# Families by the last of their layers that sees every position, with what a head reads there. The
# head's own layer has no soft cap, and turns by a base alone.
READ = {"linear": 1, "qwen2": 1, "qwen3": 1, "gemma3": 5}


def opened(name: str, folder: Path) -> Backbone:
    hf.write_gguf(name, hf.tiny_model(name), folder / "tiny.gguf")
    return Backbone.open(folder / "tiny.gguf", threads=1)


@pytest.mark.parametrize("name", hf.MODELS)
def test_the_host_gives_the_engines_hidden_states(name, tmp_path):
    """Both are float32 here, each off by what tests/unit/test_transformers.py derives."""
    backbone = opened(name, tmp_path)
    found = TorchHost(backbone).states(TOKENS).numpy()
    cache = backbone.new_cache(len(TOKENS), "f32")
    expected = backbone.forward([Segment(cache, TOKENS)], want="hidden").hidden
    spec = backbone.spec
    widest = max(spec.d_model, spec.d_ff, spec.n_heads * spec.head_dim)
    each_layer = 2.0**-24 * (widest**0.5 + 2 * len(TOKENS))
    assert np.abs(found - expected).max() < 2 * spec.n_layers * each_layer * np.abs(expected).max()


def test_products_in_bf16_leave_the_states_near(tmp_path):
    """Each of the 14 products of two layers rounds once on the way in and out, by 2^-9 or less."""
    backbone = opened("qwen2", tmp_path)
    exact, near = TorchHost(backbone), TorchHost(backbone, dtype=torch.bfloat16)
    expected, found = exact.states(TOKENS), near.states(TOKENS)
    assert found.dtype == torch.float32
    assert 0 < rms((found - expected).flatten()) < 28 * 2**-9 * rms(expected.flatten())


@pytest.mark.parametrize("name", hf.MODELS)
def test_fewer_layers_show_the_same_inside(name, tmp_path):
    backbone = opened(name, tmp_path)
    whole, part = TorchHost(backbone), TorchHost(backbone, 2)
    found, expected = part.inside(TOKENS), whole.inside(TOKENS)
    assert torch.equal(found.entering[1], expected.entering[1])
    assert torch.equal(found.attended[1], expected.attended[1])


def test_a_model_that_the_library_would_turn_otherwise_is_refused(tmp_path):
    backbone = opened("gemma2", tmp_path)
    backbone.spec = replace(backbone.spec, ropes=(Rope(1e6, 1.0), Rope(1e4, 1.0)))
    with pytest.raises(TrainingError, match='start = "random"'):
        file_model(backbone, 2)


def test_ridge_solves_its_normal_equations():
    generator = torch.Generator().manual_seed(0)
    x, true = torch.randn(400, 12, generator=generator), torch.randn(5, 12, generator=generator)
    assert torch.allclose(ridge(x, x @ true.T, 0.0), true, atol=1e-4)
    w = ridge(x, x @ true.T, 0.5)
    gradient = x.T @ (x @ w.T - x @ true.T) / len(x) + 0.5 * x.pow(2).mean() * w.T
    assert gradient.abs().max() < 1e-4


@dataclass
class Started:
    """A head that starts from a layer, and that layer at the anchors of one answer."""

    backbone: Backbone
    head: FrozenMtpHead
    maker: BatchMaker
    host: TorchHost
    inside: Inside
    layer: int
    answers: list[Answer]

    def after_anchors(self, values: Tensor) -> Tensor:
        return values[self.maker([0]).positions_A + 1]


@pytest.fixture(params=READ)
def started(request, tmp_path) -> Started:
    backbone, layer = opened(request.param, tmp_path), READ[request.param]
    rng, spec = np.random.default_rng(0), backbone.spec

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(int(t) for t in rng.integers(0, spec.vocab_size, count))

    answers = [Answer(f"a{i}", "t", tokens(9), tokens(60), "stop") for i in range(12)]
    config = HeadConfig(
        d_model=spec.d_model, d_ff=spec.d_ff, n_heads=spec.n_heads, n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim, vocab_size=spec.vocab_size, draft_vocab_size=spec.vocab_size,
        kv_layers=(layer,), rms_eps=spec.rms_eps, rope_base=spec.rope_base, trained_steps=2,
        attention_bias=spec.qkv_bias, qk_norm=spec.qk_norm,
        target=TargetId("tiny", spec.architecture, "f", "t"),
    )  # fmt: skip
    features = FeatureStore(tmp_path / "f", backbone, answers, (layer,))
    features.build()
    words = DraftVocabulary(np.arange(spec.vocab_size), spec.vocab_size)
    maker = BatchMaker(backbone.native, features, answers, words, 2, torch.float32)
    torch.manual_seed(0)
    head = FrozenMtpHead(config)
    start_from_backbone(head, config.kv_layers, backbone, maker, answers)
    host = TorchHost(backbone, layer + 1)
    inside = host.inside([*answers[0].prompt_tokens, *answers[0].answer])
    return Started(backbone, head, maker, host, inside, layer, answers)


@torch.no_grad()
def test_what_an_anchor_is_given_meets_the_position_after_it(started):
    """In an answer, the state that a row is to give is the one that the next row is given; and it
    is what leaves the last layer there, normed. The engine keeps states, keys and values in f16: a
    score moves by 2^-11 of its terms, of size 4 or so, in each of two layers. A wrong row is off by
    the size of a state."""
    found = samples(started.head, started.host, [started.layer], started.maker, started.answers)
    batch, head = started.maker([0]), started.head
    d, own = started.backbone.spec.d_model, len(batch.positions_A) - 1
    assert torch.equal(found.inputs_AI[1:own, d:], head.hidden_norm(found.states_AD[: own - 1]))
    assert torch.equal(found.inputs_AI[:own, :d], head.embedding_norm(batch.embeddings_KAD[0, :-1]))
    if started.layer == started.backbone.spec.n_layers - 1:
        states = unit(found.layers[0].leaving) * started.host.values("output_norm.weight")
        assert (states - found.states_AD).abs().max() < 2**-8 * states.abs().max()
    else:
        leaving = started.after_anchors(started.inside.entering[started.layer + 1])
        assert torch.equal(found.layers[0].leaving[:own], leaving[:own])


def without_loss(started: Started, monkeypatch) -> HeadLayer:
    """The head's layer where all that is fitted can be met exactly, so that it is a copy.

    Its inputs hold what enters the layer, its states are what leaves it, and there is no ridge.
    """
    monkeypatch.setattr(warm_start, "RIDGE", 0.0)
    head, spec = started.head, started.backbone.spec
    found = samples(head, started.host, [started.layer], started.maker, started.answers)
    inside = found.layers[0]
    noise = torch.randn(inside.entering.shape, generator=torch.Generator().manual_seed(1))
    easy = replace(
        found, inputs_AI=torch.cat([inside.entering, noise], 1), states_AD=inside.leaving
    )
    fit(head, [started.layer], spec, started.host.values, easy)
    return head.model.layers[0]


@torch.no_grad()
def test_a_fit_without_loss_is_the_layer_that_it_reads(started, monkeypatch):
    """Given what enters it, it adds what attention adds, and but for Gemma gives what leaves it.

    Gemma's norms of the branches are not in a head: their mean divisors are, so that directions
    alone are the layer's. For the comparison a head sees its own position too, as the layer does;
    the last anchor's is past the kept rows. Keys and values are f16 and move a score by 2^-11 of
    its terms: a direction by some 2^-10, and its cosine by half the square of that.
    """
    layer = without_loss(started, monkeypatch)
    batch, spec = started.maker([0]), started.backbone.spec
    kv = batch.sequences[0]
    turned = rope_tables((batch.positions_A + 1) * spec.ropes[0].scale, spec.head_dim,
                         spec.rope_base)  # fmt: skip
    masks = [visible(batch.positions_A + 1, kv.keys_LGRH.shape[2])]
    entering = started.after_anchors(started.inside.entering[started.layer])
    added = layer.self_attn(layer.input_layernorm(entering), 0, batch, turned, masks)
    wanted = started.after_anchors(started.inside.attended[started.layer])
    if spec.post_norms:
        norm = started.host.values(f"blk.{started.layer}.post_attention_norm.weight")
        wanted = unit(wanted) * norm
    pairs = [(added, wanted)]
    if not spec.post_norms:
        leaving = started.after_anchors(started.inside.entering[started.layer + 1])
        pairs.append((layer(entering, batch, turned, masks), leaving))
    for found, expected in pairs:
        assert torch.cosine_similarity(found[:-1], expected[:-1], dim=-1).min() > 1 - 1e-5
        ratio = rms(found[:-1]) / rms(expected[:-1])
        if spec.post_norms:
            assert ratio.min() < 1 < ratio.max()
        else:
            assert (ratio - 1).abs().max() < 2**-8


@torch.no_grad()
def test_the_fitted_projection_gives_the_queries_of_the_layer(started):
    """Nearer than a head that starts at random."""
    batch, at = started.maker([0]), f"blk.{started.layer}."
    entering = started.after_anchors(started.inside.entering[started.layer])
    norm = started.host.values(at + "attn_norm.weight")
    wanted = (unit(entering) * norm) @ started.host.values(at + "attn_q.weight").T

    def nearness(head: FrozenMtpHead) -> float:
        x = head.pre_projection(head.joined(batch.embeddings_KAD[0], batch.hidden_AD))
        part = head.model.layers[0]
        found = part.input_layernorm(x) @ part.self_attn.q_proj.weight.T
        return float(torch.cosine_similarity(found, wanted, dim=-1).mean())

    assert abs(nearness(FrozenMtpHead(started.head._config))) < 0.3
    assert nearness(started.head) > 0.4
