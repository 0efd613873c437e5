"""Where a head starts: the torch host equals the engine, the ridge equals its normal equations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from drafthead.backbone.handle import Backbone, Segment
from drafthead.errors import TrainingError
from drafthead.gguf.model import Layer, Rope
from drafthead.heads.config import HeadConfig, TargetId
from drafthead.training.answers import Answer
from drafthead.training.batching import BatchMaker
from drafthead.training.data import DraftVocabulary
from drafthead.training.features import FeatureStore
from drafthead.training.host import TorchHost
from drafthead.training.modules import FrozenMtpHead
from drafthead.training.warm_start import ridge, start_from_backbone
from tests.tiny import FLOAT, TinySpec, write_tiny_llama

SPEC = TinySpec()
TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, SPEC.vocab, 50)]


@pytest.fixture
def backbone(tmp_path) -> Backbone:
    """Float weights, so that only float32 and the f16 cache round."""
    write_tiny_llama(tmp_path / "float.gguf", SPEC, FLOAT)
    return Backbone.open(tmp_path / "float.gguf", threads=1)


def test_the_host_gives_the_engines_hidden_states(backbone):
    host = TorchHost(backbone)
    found = host.normed(host.residual(TOKENS, SPEC.layers), "output_norm").numpy()
    cache = backbone.new_cache(len(TOKENS))
    expected = backbone.forward([Segment(cache, TOKENS)], want="hidden").hidden
    assert np.abs(found - expected).max() < 1e-2 * np.abs(expected).max()


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": "qwen2"},
        {"rope_factors": True},
        {"ropes": (Rope(1e4, 0.5),)},
        {"layers": (Layer(16, 0), Layer(0, 0))},
    ],
)
def test_a_host_that_would_compute_something_else_is_refused(backbone, change):
    backbone.spec = replace(backbone.spec, **change)
    with pytest.raises(TrainingError, match='start = "random"'):
        TorchHost(backbone)


def test_ridge_solves_its_normal_equations():
    generator = torch.Generator().manual_seed(0)
    x, true = torch.randn(400, 12, generator=generator), torch.randn(5, 12, generator=generator)
    assert torch.allclose(ridge(x, x @ true.T, 0.0), true, atol=1e-4)
    w = ridge(x, x @ true.T, 0.5)
    gradient = x.T @ (x @ w.T - x @ true.T) / len(x) + 0.5 * w.T
    assert gradient.abs().max() < 1e-4


def test_a_started_head_attends_like_the_layer_it_reads(backbone, tmp_path):
    """Its queries are nearer to the layer's own than those of a head that starts at random."""
    rng = np.random.default_rng(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(int(t) for t in rng.integers(0, SPEC.vocab, count))

    answers = [Answer(f"a{i}", "t", tokens(9), tokens(40), "stop") for i in range(12)]
    config = HeadConfig(
        d_model=SPEC.width, d_ff=64, n_heads=SPEC.heads, n_kv_heads=SPEC.kv_heads,
        head_dim=SPEC.head_dim, vocab_size=SPEC.vocab, draft_vocab_size=SPEC.vocab, kv_layers=(1,),
        rms_eps=SPEC.eps, rope_base=SPEC.rope_base, trained_steps=2, training={},
        target=TargetId("tiny", "llama", "f", "t"),
    )  # fmt: skip
    features = FeatureStore(tmp_path / "f", backbone, answers, (1,))
    features.build()
    words = DraftVocabulary(np.arange(SPEC.vocab), SPEC.vocab)
    maker = BatchMaker(backbone.native, features, answers, words, 2, torch.float32)
    host = TorchHost(backbone)
    layer = host.normed(host.residual([*answers[0].prompt_tokens, *answers[0].answer], 1),
                        "blk.1.attn_norm")  # fmt: skip
    batch = maker([0])
    wanted = layer[batch.positions_A + 1] @ host.matrix("blk.1.attn_q").T

    @torch.no_grad()
    def nearness(head: FrozenMtpHead) -> float:
        x = head.pre_projection(head.joined(batch.embeddings_KAD[0], batch.hidden_AD))
        part = head.model.layers[0]
        found = part.self_attn.q_proj(part.input_layernorm(x))
        return float(torch.cosine_similarity(found, wanted, dim=-1).mean())

    torch.manual_seed(0)
    head = FrozenMtpHead(config)
    at_random = nearness(head)
    start_from_backbone(head, config.kv_layers, backbone, maker, answers)
    assert abs(at_random) < 0.3
    assert nearness(head) > 0.5
    for name, source in (("o_proj", "attn_output"), ("q_proj", "attn_q")):
        weight = getattr(head.model.layers[0].self_attn, name).weight
        assert torch.equal(weight, host.matrix(f"blk.1.{source}"))
