"""The algebra of a head's start: where everything can be met, it is the layer behind the lens.

The lens is s U, an orthogonal matrix and a scale: norms commute with it, so that a head's layer
gives s U y where the backbone's layer gives y. Legend: A anchors, D hidden size, F feed-forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from drafthead.heads.config import HeadConfig, TargetId
from drafthead.training import warm_start
from drafthead.training.modules import (
    Batch,
    FrozenMtpHead,
    SequenceKv,
    attend,
    rope_tables,
    rotate,
    visible,
)
from drafthead.training.warm_start import ReadLayer, Samples, fit, rms, unit

A, D, FF, HEADS, GROUPS, H = 300, 32, 48, 4, 2, 8
SCALE = 2.5
# Some 12 products of up to 64 terms follow one another in f32, and a softmax of scores up to 16.
ROUNDING = 12 * 64 * 16 * 2.0**-24


@dataclass
class World:
    """A stack of backbone layers at anchors, what they give there, and a lens behind them."""

    spec: SimpleNamespace
    tensors: dict[str, Tensor]
    batch: Batch
    inputs: Tensor
    layers: list[ReadLayer]
    lens: Tensor

    @property
    def samples(self) -> Samples:
        return Samples(self.inputs, self.layers[-1].leaving @ self.lens.T, tuple(self.layers))

    def head(self, d_ff: int = FF, kv_layers: tuple[int, ...] = (0,)) -> FrozenMtpHead:
        config = HeadConfig(
            d_model=D, d_ff=d_ff, n_heads=HEADS, n_kv_heads=GROUPS, head_dim=H, vocab_size=96,
            draft_vocab_size=96, kv_layers=kv_layers, rms_eps=1e-12, rope_base=1e4, trained_steps=1,
            attention_bias=self.spec.qkv_bias, qk_norm=self.spec.qk_norm,
            target=TargetId("t", "llama", "f", "t"),
        )  # fmt: skip
        torch.manual_seed(5)
        return FrozenMtpHead(config)

    def started(self, d_ff: int = FF, kv_layers: tuple[int, ...] = (0,)) -> FrozenMtpHead:
        head = self.head(d_ff, kv_layers)
        read = [layer for layer in kv_layers if layer >= 0]
        fit(head, read, self.spec, self.tensors.__getitem__, self.samples)
        return head

    def values(self, name: str, layer: int = 0) -> Tensor:
        return self.tensors[f"blk.{layer}.{name}"]

    def seen(self) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
        """Rotary tables and masks, as the head makes them."""
        keys = self.batch.sequences[0].keys_LGRH
        tables = rope_tables(self.batch.positions_A + 1, H, 1e4)
        return tables, [visible(self.batch.positions_A, keys.shape[2])]

    def attended(self, layer: int, entering: Tensor) -> Tensor:
        """What the attention of a layer gives behind its output projection."""
        tables, masks = self.seen()
        q = (unit(entering) * self.values("attn_norm.weight", layer)) @ self.values(
            "attn_q.weight", layer
        ).T
        if self.spec.qkv_bias:
            q = q + self.values("attn_q.bias", layer)
        heads = q.unflatten(-1, (HEADS, H))
        if self.spec.qk_norm:
            heads = unit(heads) * self.values("attn_q_norm.weight", layer)
        kv = self.batch.sequences[0]
        mixed = attend(rotate(heads, tables), kv.keys_LGRH[layer], kv.values_LGRH[layer], masks[0])
        return mixed @ self.values("attn_output.weight", layer).T

    def active(self, layer: int, x: Tensor, activation) -> Tensor:
        """The neurons of a layer, (A, F)."""
        y = unit(x) * self.values("ffn_norm.weight", layer)
        gated = activation(y @ self.values("ffn_gate.weight", layer).T)
        return gated * (y @ self.values("ffn_up.weight", layer).T)

    def branch(self, name: str, layer: int, x: Tensor) -> Tensor:
        """What a branch adds: behind its norm, where there is one."""
        return unit(x) * self.values(f"{name}.weight", layer) if self.spec.post_norms else x


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def world(layers: int = 1, rows: int = 60, **flags: bool) -> World:
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int, size: float = 1.0) -> Tensor:
        return size * torch.randn(*shape, generator=generator)

    spec = SimpleNamespace(
        **{"qkv_bias": False, "qk_norm": False, "post_norms": False, "gelu": False} | flags
    )
    tensors: dict[str, Tensor] = {}
    for i in range(layers):
        shapes = {"attn_q": (HEADS * H, D), "attn_output": (D, HEADS * H), "ffn_gate": (FF, D),
                  "ffn_up": (FF, D), "ffn_down": (D, FF)}  # fmt: skip
        for name, shape in shapes.items():
            tensors[f"blk.{i}.{name}.weight"] = normal(*shape, size=1.5 * shape[1] ** -0.5)
        for name in ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"):
            tensors[f"blk.{i}.{name}.weight"] = 1 + normal(D, size=0.3)
        tensors[f"blk.{i}.attn_q.bias"] = normal(HEADS * H)
        tensors[f"blk.{i}.attn_q_norm.weight"] = 1 + normal(H, size=0.3)
    kv = [normal(layers, GROUPS, rows, H) for _ in range(2)]
    positions = torch.randint(0, rows, (A,), generator=generator)
    inputs = normal(A, 2 * D)
    batch = Batch(
        hidden_AD=torch.zeros(A, D), embeddings_KAD=torch.zeros(1, A, D),
        inputs_KA=torch.zeros(1, A, dtype=torch.int64), labels_KA=torch.zeros(1, A).long(),
        positions_A=positions, sequences=[SequenceKv(slice(0, A), *kv)], rows_VD=torch.zeros(96, D),
    )  # fmt: skip
    lens = SCALE * torch.linalg.qr(normal(D, D))[0]
    made = World(spec, tensors, batch, inputs, [], lens)
    x = inputs @ normal(D, 2 * D, size=0.2).T
    for i in range(layers):
        attended = made.attended(i, x)
        inner = x + made.branch("post_attention_norm", i, attended)
        neurons = made.active(i, inner, gelu if spec.gelu else F.silu)
        given = neurons @ made.values("ffn_down.weight", i).T
        leaving = inner + made.branch("post_ffw_norm", i, given)
        made.layers.append(ReadLayer(x, attended, leaving))
        x = leaving
    return made


def near(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() < ROUNDING * expected.abs().max())


@pytest.fixture(autouse=True)
def _no_ridge(monkeypatch):
    monkeypatch.setattr(warm_start, "RIDGE", 1e-14)
    with torch.no_grad():
        yield


@pytest.mark.parametrize("flags", [{}, {"qkv_bias": True, "qk_norm": True}], ids=str)
@pytest.mark.parametrize("kv_layers", [(0,), (0, 1), (0, 1, 2)], ids=str)
def test_layers_give_what_those_of_the_backbone_give_behind_the_lens(kv_layers, flags):
    """And so the head's state is the backbone's next one, in its direction."""
    found = world(len(kv_layers), **flags)
    head = found.started(kv_layers=kv_layers)
    x, (tables, masks) = head.pre_projection(found.inputs), found.seen()
    assert near(x, found.layers[0].entering @ found.lens.T)
    for layer, inside in zip(head.model.layers, found.layers, strict=True):
        x = layer(x, found.batch, tables, masks)
        assert near(x, inside.leaving @ found.lens.T)
    states = found.samples.states_AD
    assert near(head.model.norm(x), unit(states) * rms(states.flatten()))


def test_norms_of_branches_become_their_mean_divisor():
    """At each anchor a branch is the layer's own, times its size there over the mean size."""
    found = world(post_norms=True)
    layer, inside = found.started().model.layers[0], found.layers[0]
    x = inside.entering @ found.lens.T
    added = layer.self_attn(layer.input_layernorm(x), 0, found.batch, *found.seen())
    branch = found.branch("post_attention_norm", 0, inside.attended)
    share = rms(inside.attended) / rms(inside.attended).mean()
    assert share.min() < 0.8 and share.max() > 1.2
    assert near(added, share * branch @ found.lens.T)
    inner = inside.entering + branch
    given = found.active(0, inner, F.silu) @ found.values("ffn_down.weight").T
    share = rms(given) / rms(given).mean()
    wanted = share * found.branch("post_ffw_norm", 0, given)
    added = layer.mlp(layer.pre_feedforward_layernorm(inner @ found.lens.T))
    assert near(added, wanted @ found.lens.T)


def test_gelu_becomes_silu_of_another_slope():
    found = world(gelu=True)
    layer, inside = found.started().model.layers[0], found.layers[0]
    inner = inside.entering + inside.attended
    neurons = found.active(0, inner, lambda x: F.silu(1.702 * x) / 1.702)
    added = layer.mlp(layer.pre_feedforward_layernorm(inner @ found.lens.T))
    assert near(added, neurons @ found.values("ffn_down.weight").T @ found.lens.T)
    # The two curves are 0.0207 apart at most, where |x| is about 2.3.
    up = (unit(inner) * found.values("ffn_norm.weight")) @ found.values("ffn_up.weight").T
    most = 0.0207 * up.abs() @ (found.lens @ found.values("ffn_down.weight")).abs().T
    wanted = (inside.leaving - inner) @ found.lens.T
    assert ((added - wanted).abs() <= most + ROUNDING * wanted.abs().max()).all()


def narrow_world() -> World:
    """Neurons in no order, by their size and by what they reach: neither alone decides."""
    found, generator = world(), torch.Generator().manual_seed(4)
    sizes = [torch.logspace(-1, 1, FF)[torch.randperm(FF, generator=generator)] for _ in range(2)]
    found.tensors["blk.0.ffn_up.weight"] *= sizes[0][:, None]
    found.tensors["blk.0.ffn_down.weight"] *= sizes[1]
    (inside,) = found.layers
    inner = inside.entering + inside.attended
    given = found.active(0, inner, F.silu) @ found.values("ffn_down.weight").T
    found.layers[0] = ReadLayer(inside.entering, inside.attended, inner + given)
    return found


def test_a_narrower_head_keeps_the_neurons_that_move_the_state_most():
    """They leave behind less than any others would: here the 20 with the largest mean square."""
    found = narrow_world()
    layer, inside = found.started(d_ff=20).model.layers[0], found.layers[0]
    inner = inside.entering + inside.attended
    neurons, down = found.active(0, inner, F.silu), found.values("ffn_down.weight")
    each_AFD = neurons[:, :, None] * down.T
    kept = each_AFD.pow(2).mean((0, 2)).topk(20).indices
    added = layer.mlp(layer.pre_feedforward_layernorm(inner @ found.lens.T))
    assert near(added, neurons[:, kept] @ down[:, kept].T @ found.lens.T)


def test_the_rest_of_a_wider_head_adds_nothing_and_can_learn():
    """Zeros behind it, but not before: a gradient reaches its last matrix."""
    found = world()
    layer, inside = found.started(d_ff=80).model.layers[0], found.layers[0]
    x = inside.entering @ found.lens.T
    assert near(layer(x, found.batch, *found.seen()), inside.leaving @ found.lens.T)
    assert (layer.mlp.down_proj.weight[:, FF:] == 0).all()
    assert (layer.mlp.gate_proj.weight[FF:] != 0).all()
    assert (layer.mlp.up_proj.weight[FF:] != 0).all()


def state_of(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize(("kv_layers", "alone"), [((-1, 0), 0), ((0, -1), 1), ((0, -1, 1), 1)])
def test_a_layer_without_attention_starts_at_random(kv_layers, alone):
    """The others are copies as if it were not there."""
    reads = tuple(layer for layer in kv_layers if layer >= 0)
    found = world(len(reads))
    new, head = found.head(kv_layers=kv_layers), found.started(kv_layers=kv_layers)
    expected = state_of(new.model.layers[alone])
    for name, value in state_of(head.model.layers[alone]).items():
        assert torch.equal(value, expected[name])
    attending = [layer for layer in head.model.layers if layer.self_attn is not None]
    without = found.started(kv_layers=reads)
    for layer, wanted in zip(attending, without.model.layers, strict=True):
        same = state_of(wanted)
        assert all(torch.equal(value, same[name]) for name, value in state_of(layer).items())


def test_a_head_that_reads_nothing_starts_from_its_inputs_alone():
    """Its projection gives the next state where that follows from them; layers stay random."""
    found = world()
    states = found.inputs @ torch.randn(D, 2 * D, generator=torch.Generator().manual_seed(6)).T
    new, head = found.head(kv_layers=(-1,)), found.head(kv_layers=(-1,))
    fit(head, [], found.spec, found.tensors.__getitem__, Samples(found.inputs, states, ()))
    assert near(head.pre_projection(found.inputs), states)
    torch.testing.assert_close(head.model.norm.weight, rms(states.flatten()).expand(D))
    expected = state_of(new.model.layers)
    assert all(torch.equal(x, expected[name]) for name, x in state_of(head.model.layers).items())
