"""The frozen-KV head in torch, as the native core computes it.

Legend: A anchors of a batch, D hidden size, T taps, H head size, N query heads, G KV heads, R
positions of one sequence, K draft steps, V draft vocabulary, B rank of the Markov bias.

The head reads K and V of the backbone and owns none: dense layers with a query and an output
projection only, a SwiGLU, RMS norms that multiply by their weight. Step 1 takes the embedding of
the newest token and the backbone's post-final-norm state; later steps take the next token and the
head's own output state (training-time unrolling: EAGLE-3, arXiv 2503.01840; one recurrent head for
all steps: FastMTP). The design is that of the Gemma 4 assistant checkpoints. Layers without
attention, taps, Markov bias and several positions a pass: native/models/mtp_head.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from drafthead.heads.config import NO_ATTENTION, HeadConfig


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

    hidden_AD: h_i; where the head has taps they follow it, (A, (1 + T) D).  embeddings_KAD: of each
    step's input token.  inputs_KA: its place in the draft vocabulary, -1 outside.  labels_KA: place
    of each step's label, -1 where it does not count.  positions_A: i.  rows_VD: output rows of the
    draft vocabulary, and behind them those of tokens that the batch's own texts hold.
    """

    hidden_AD: Tensor
    embeddings_KAD: Tensor
    inputs_KA: Tensor
    labels_KA: Tensor
    positions_A: Tensor
    sequences: Sequence[SequenceKv]
    rows_VD: Tensor


def with_learned(rows_VD: Tensor, learned_VB: Tensor) -> Tensor:
    """Output rows and what a head adds to those of its draft vocabulary, side by side."""
    behind = len(rows_VD) - len(learned_VB)
    return torch.cat([rows_VD, F.pad(learned_VB, (0, 0, 0, behind)).to(rows_VD.dtype)], dim=1)


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
    even = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions_A.device)
    powers = even / head_dim
    angles = positions_A.double()[:, None] * (1.0 / base**powers)[None, :]
    return angles.cos().float()[:, None, :], angles.sin().float()[:, None, :]


def rotate(x_ANH: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the halves of each head against each other (the NeoX layout)."""
    cos, sin = tables
    first, second = x_ANH.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def visible(positions_A: Tensor, rows: int) -> Tensor:
    """What an anchor reads, at every step: positions 0 .. i; (A, R), True where it does."""
    return torch.arange(rows, device=positions_A.device)[None, :] <= positions_A[:, None]


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
    """One pre-norm layer: attention to the shared KV, if any, then the feed-forward part.

    read: which of the layers that the head reads; None is a layer without attention.
    """

    def __init__(self, config: HeadConfig, read: int | None) -> None:
        super().__init__()
        self._read = read
        self.input_layernorm: RmsNorm | None = None
        self.self_attn: SharedKvAttention | None = None
        if read is not None:
            self.input_layernorm = RmsNorm(config.d_model, config.rms_eps)
            self.self_attn = SharedKvAttention(config)
        self.pre_feedforward_layernorm = RmsNorm(config.d_model, config.rms_eps)
        self.mlp = SwiGlu(config.d_model, config.d_ff)

    def forward(
        self, x: Tensor, batch: Batch, tables: tuple[Tensor, Tensor], masks: Sequence[Tensor]
    ) -> Tensor:
        """(A, D) to (A, D)."""
        if self._read is not None:
            assert self.self_attn is not None and self.input_layernorm is not None
            x = x + self.self_attn(self.input_layernorm(x), self._read, batch, tables, masks)
        return x + self.mlp(self.pre_feedforward_layernorm(x))


class MarkovBias(nn.Module):
    """What the token before adds to the scores: next . previous[its place], a bigram of rank B.

    As in the published DSpark heads (deepseek-ai/DeepSpec). It starts at zero.
    """

    def __init__(self, words: int, rank: int) -> None:
        super().__init__()
        self.previous = nn.Embedding(words, rank)
        self.next = nn.Linear(rank, words, bias=False)

    def forward(self, places_A: Tensor) -> Tensor:
        """Rows of `previous`, zero for tokens outside the draft vocabulary; (A, B)."""
        rows: Tensor = self.previous(places_A.clamp(min=0))
        return rows * (places_A >= 0)[:, None]


class _Body(nn.Module):
    """Holds the layers and the last norm under the published tensor names."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        reads = count()
        self.layers = nn.ModuleList(
            HeadLayer(config, None if layer == NO_ATTENTION else next(reads))
            for layer in config.kv_layers
        )
        self.norm = RmsNorm(config.d_model, config.rms_eps)


class FrozenMtpHead(nn.Module):
    """The head; its parameter names are the tensor names of the package."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self._config = config
        d = config.d_model
        self.embedding_norm = RmsNorm(d, config.rms_eps)
        self.hidden_norm = RmsNorm(d, config.rms_eps)
        self.tap_norms = nn.ModuleList(RmsNorm(d, config.rms_eps) for _ in config.taps)
        self.position_embeddings = nn.ParameterList(
            nn.Parameter(torch.zeros(d)) for _ in range(config.positions - 1)
        )
        self.pre_projection = nn.Linear((2 + len(config.taps)) * d, d, bias=False)
        self.model = _Body(config)
        self.markov: MarkovBias | None = None
        if config.markov_rank:
            self.markov = MarkovBias(config.draft_vocab_size, config.markov_rank)
        self._initialise()

    def _initialise(self) -> None:
        for name, weight in self.named_parameters():
            if name == "markov.next.weight" or name.endswith(".bias"):
                nn.init.zeros_(weight)
            elif weight.dim() == 2:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
            elif name.startswith("position_embeddings."):
                nn.init.normal_(weight)

    def joined(self, embedding_AD: Tensor, hidden_AX: Tensor, position: int = 0) -> Tensor:
        """What the projection in front takes: embedding, state, taps; (A, (2 + T) D)."""
        state, *taps = hidden_AX.split(self._config.d_model, dim=-1)
        embedded = self.embedding_norm(embedding_AD)
        if position:
            embedded = embedded + self.position_embeddings[position - 1]
        normed = [norm(tap) for norm, tap in zip(self.tap_norms, taps, strict=True)]
        return torch.cat([embedded, self.hidden_norm(state), *normed], dim=-1)

    def step(
        self, joined: Tensor, batch: Batch, tables: tuple[Tensor, Tensor], masks: Sequence[Tensor]
    ) -> Tensor:
        """The state that comes of the joined inputs, (A, D)."""
        x = self.pre_projection(joined).float()
        for layer in self.model.layers:
            x = layer(x, batch, tables, masks)
        state: Tensor = self.model.norm(x)
        return state

    def forward(self, batch: Batch) -> list[Tensor]:
        """States of all draft steps, teacher-forced tokens; K of (A, D).

        A recurrent head is fed its own states back; one of several positions has no more steps than
        positions. With a Markov bias a state is followed by what its token before adds, (A, D + B),
        as `score_rows` takes it.
        """
        tables = rope_tables(batch.positions_A + 1, self._config.head_dim, self._config.rope_base)
        masks = [
            visible(batch.positions_A[s.anchors], s.keys_LGRH.shape[2]) for s in batch.sequences
        ]
        states: list[Tensor] = []
        hidden_AX, taps_AX = batch.hidden_AD, batch.hidden_AD[:, self._config.d_model :]
        for index, embedding_AD in enumerate(batch.embeddings_KAD):
            if self._config.positions > 1:
                joined = self.joined(batch.embeddings_KAD[0], hidden_AX, index)
            else:
                joined = self.joined(embedding_AD, hidden_AX)
            states.append(self.step(joined, batch, tables, masks))
            if self._config.positions == 1:
                hidden_AX = torch.cat([states[-1], taps_AX], dim=-1)
        if self.markov is None:
            return states
        pairs = zip(states, batch.inputs_KA, strict=True)
        return [torch.cat([state, self.markov(places)], dim=-1) for state, places in pairs]

    @property
    def learned_rows(self) -> Tensor | None:
        """What the head adds to each output row, (V, B); None without a Markov bias."""
        return None if self.markov is None else self.markov.next.weight

    def score_rows(self, rows_VD: Tensor) -> Tensor:
        """The output rows whose products with the states are the scores, (V, D) or (V, D + B)."""
        learned_VB = self.learned_rows
        if learned_VB is None:
            return rows_VD
        return with_learned(rows_VD, learned_VB)
