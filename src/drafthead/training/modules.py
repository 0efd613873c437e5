"""The frozen-KV head in torch, as the native core computes it.

Legend: A anchors of a batch, D hidden size, H head size, N query heads, G KV heads, R positions of
one sequence, K draft steps.

The head reads K and V of the backbone and owns none: dense layers with a query and an output
projection only, a SwiGLU, RMS norms that multiply by their weight. Step 1 takes the embedding of
the newest token and the backbone's post-final-norm state; later steps take the next token and the
head's own output state (training-time unrolling: EAGLE-3, arXiv 2503.01840; one recurrent head for
all steps: FastMTP). The design is that of the Gemma 4 assistant checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from drafthead.heads.config import HeadConfig


@dataclass(frozen=True)
class SequenceKv:
    """What one sequence of a batch shows its anchors.

    anchors: the rows of the batch that belong to it.  keys_LGRH / values_LGRH: of the read layers.
    """

    anchors: slice
    keys_LGRH: Tensor
    values_LGRH: Tensor


@dataclass(frozen=True)
class Batch:
    """Anchors of several sequences, one after the other.

    hidden_AD: h_i.  embeddings_KAD: of each step's input token.  labels_KA: place of each step's
    label in the draft vocabulary, -1 where it does not count.  positions_A: i.
    """

    hidden_AD: Tensor
    embeddings_KAD: Tensor
    labels_KA: Tensor
    positions_A: Tensor
    sequences: Sequence[SequenceKv]


class RmsNorm(nn.Module):
    """x / rms(x) * weight, in f32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape, f32."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self._eps)


def rope_tables(positions_A: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the split-half rotary embedding, (A, 1, H/2) each."""
    powers = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    angles = positions_A.double()[:, None] * (1.0 / base**powers)[None, :]
    return angles.cos().float()[:, None, :], angles.sin().float()[:, None, :]


def rotate(x_ANH: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the halves of each head against each other (the NeoX layout)."""
    cos, sin = tables
    first, second = x_ANH.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def visible(positions_A: Tensor, rows: int) -> Tensor:
    """What an anchor reads, at every step: positions 0 .. i; (A, R), True where it does."""
    return torch.arange(rows)[None, :] <= positions_A[:, None]


class SharedKvAttention(nn.Module):
    """Queries of its own against the backbone's keys and values."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width = config.n_heads * config.head_dim
        self.q_proj = nn.Linear(config.d_model, width, bias=config.attention_bias)
        self.q_norm = RmsNorm(config.head_dim, config.rms_eps) if config.qk_norm else None
        self.o_proj = nn.Linear(width, config.d_model, bias=False)
        self._shape = (config.n_heads, config.head_dim)

    def forward(
        self, x_AD: Tensor, layer: int, batch: Batch, tables: tuple[Tensor, Tensor],
        masks: Sequence[Tensor],
    ) -> Tensor:  # fmt: skip
        """Attend to layer number `layer` of the read layers; (A, D)."""
        heads = self.q_proj(x_AD).unflatten(-1, self._shape).float()
        queries = rotate(heads if self.q_norm is None else self.q_norm(heads), tables)
        mixed = [
            attend(queries[s.anchors], s.keys_LGRH[layer], s.values_LGRH[layer], mask)
            for s, mask in zip(batch.sequences, masks, strict=True)
        ]
        out: Tensor = self.o_proj(torch.cat(mixed))
        return out


def attend(q_ANH: Tensor, k_GRH: Tensor, v_GRH: Tensor, mask_AR: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(H)) v with grouped heads: query head n reads KV head n // (N/G).

    Returns (A, N * H).
    """
    groups = k_GRH.shape[0]
    q = q_ANH.unflatten(1, (groups, -1)).permute(1, 2, 0, 3)  # (G, N/G, A, H)
    scores = q.flatten(1, 2).to(k_GRH.dtype) @ k_GRH.transpose(1, 2)
    scores = scores.float().unflatten(1, q.shape[1:3]) * q_ANH.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask_AR, float("-inf")).softmax(-1)
    mixed = weights.flatten(1, 2).to(v_GRH.dtype) @ v_GRH
    return mixed.unflatten(1, q.shape[1:3]).permute(2, 0, 1, 3).flatten(1)


class SwiGlu(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class HeadLayer(nn.Module):
    """One pre-norm layer: attention to the shared KV, then the feed-forward part."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.d_model, config.rms_eps)
        self.self_attn = SharedKvAttention(config)
        self.pre_feedforward_layernorm = RmsNorm(config.d_model, config.rms_eps)
        self.mlp = SwiGlu(config.d_model, config.d_ff)

    def forward(
        self, x: Tensor, layer: int, batch: Batch, tables: tuple[Tensor, Tensor],
        masks: Sequence[Tensor],
    ) -> Tensor:  # fmt: skip
        """(A, D) to (A, D)."""
        x = x + self.self_attn(self.input_layernorm(x), layer, batch, tables, masks)
        return x + self.mlp(self.pre_feedforward_layernorm(x))


class _Body(nn.Module):
    """Holds the layers and the last norm under the published tensor names."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(HeadLayer(config) for _ in config.kv_layers)
        self.norm = RmsNorm(config.d_model, config.rms_eps)


class FrozenMtpHead(nn.Module):
    """The head; its parameter names are the tensor names of the package."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self._config = config
        self.embedding_norm = RmsNorm(config.d_model, config.rms_eps)
        self.hidden_norm = RmsNorm(config.d_model, config.rms_eps)
        self.pre_projection = nn.Linear(2 * config.d_model, config.d_model, bias=False)
        self.model = _Body(config)
        self._initialise()

    def _initialise(self) -> None:
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
            elif name.endswith(".bias"):
                nn.init.zeros_(weight)

    def joined(self, embedding_AD: Tensor, state_AD: Tensor) -> Tensor:
        """What the projection in front takes, the embedding first; (A, 2D)."""
        return torch.cat([self.embedding_norm(embedding_AD), self.hidden_norm(state_AD)], dim=-1)

    def step(
        self, embedding_AD: Tensor, state_AD: Tensor, batch: Batch,
        tables: tuple[Tensor, Tensor], masks: Sequence[Tensor],
    ) -> Tensor:  # fmt: skip
        """One draft step: the next state, (A, D)."""
        x = self.pre_projection(self.joined(embedding_AD, state_AD)).float()
        for index, layer in enumerate(self.model.layers):
            x = layer(x, index, batch, tables, masks)
        state: Tensor = self.model.norm(x)
        return state

    def forward(self, batch: Batch) -> list[Tensor]:
        """States of all draft steps, teacher-forced tokens, own states fed back; K of (A, D)."""
        tables = rope_tables(batch.positions_A + 1, self._config.head_dim, self._config.rope_base)
        masks = [
            visible(batch.positions_A[s.anchors], s.keys_LGRH.shape[2]) for s in batch.sequences
        ]
        states = []
        state = batch.hidden_AD
        for embedding_AD in batch.embeddings_KAD:
            state = self.step(embedding_AD, state, batch, tables, masks)
            states.append(state)
        return states
