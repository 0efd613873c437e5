"""The backbone's layers in torch, dequantised: for what the engine does not show, its inside.

Legend: T tokens, D hidden size, H head size. Weights are f32 of the file's values and activations
are not rounded, so states are close to the engine's and not its bits.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from drafthead._native import Matrix
from drafthead.backbone.handle import Backbone
from drafthead.errors import TrainingError
from drafthead.gguf.spec import vector_values
from drafthead.training.modules import attend, rope_tables, rotate, visible


class TorchHost:
    """Residual states of a llama backbone, layer by layer.

    Raises:
        TrainingError: the backbone has what these layers do not: another architecture, windows,
            or scaled positions.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.spec = backbone.spec
        windows = any(layer.window for layer in self.spec.layers)
        scaled = self.spec.rope_factors or self.spec.ropes[0].scale != 1
        if self.spec.architecture != "llama" or windows or scaled:
            raise TrainingError(
                f"{backbone.name}: a head can start from a llama backbone without windows and "
                'scaled positions only; choose start = "random" in the recipe.'
            )
        self._gguf, self._native = backbone.gguf, backbone.native
        self._matrix = lru_cache(maxsize=None)(self._dequantised)

    def norm(self, name: str) -> Tensor:
        """The weight of a norm, (D,)."""
        return torch.from_numpy(vector_values(self._gguf, f"{name}.weight"))

    def matrix(self, name: str) -> Tensor:
        """A weight matrix, (rows, columns); query and key rows in the split-half rotary layout."""
        return self._matrix(name)

    def residual(self, tokens: list[int], layer: int) -> Tensor:
        """What enters a layer at each position, (T, D); layer n_layers enters the final norm."""
        ids = torch.tensor(tokens, dtype=torch.int32).numpy()
        x = torch.from_numpy(self._native.embed(ids).copy())
        positions = torch.arange(len(tokens))
        tables = rope_tables(positions, self.spec.head_dim, self.spec.rope_base)
        mask = visible(positions, len(tokens))
        for index in range(layer):
            x = self._layer(f"blk.{index}.", x, tables, mask)
        return x

    def normed(self, x: Tensor, name: str) -> Tensor:
        """RMS norm with a weight of the file."""
        return F.rms_norm(x, (self.spec.d_model,), self.norm(name), self.spec.rms_eps)

    def _layer(self, at: str, x: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        def heads(name: str, count: int) -> Tensor:
            return (y @ self.matrix(at + name).T).unflatten(-1, (count, self.spec.head_dim))

        y = self.normed(x, at + "attn_norm")
        queries = rotate(heads("attn_q", self.spec.n_heads), tables)
        keys = rotate(heads("attn_k", self.spec.n_kv_heads), tables).transpose(0, 1)
        values = heads("attn_v", self.spec.n_kv_heads).transpose(0, 1)
        x = x + attend(queries, keys, values, mask) @ self.matrix(at + "attn_output").T
        y = self.normed(x, at + "ffn_norm")
        gate, up = y @ self.matrix(at + "ffn_gate").T, y @ self.matrix(at + "ffn_up").T
        return x + (F.silu(gate) * up) @ self.matrix(at + "ffn_down").T

    def _dequantised(self, name: str) -> Tensor:
        info = self._gguf.tensors[f"{name}.weight"]
        columns, rows = info.shape
        data = self._gguf.data(info.name)
        weight = torch.from_numpy(Matrix(info.ggml_type, rows, columns, data).dequantize().copy())
        turned = name.endswith(("attn_q", "attn_k")) and self.spec.rope_interleaved
        if not turned:
            return weight
        pairs = weight.unflatten(0, (-1, self.spec.head_dim // 2, 2))
        return pairs.transpose(1, 2).reshape(rows, columns)
