"""A trained standalone drafter as an ordinary GGUF file, which any reader of the format runs.

Names, keys and the order of rows are those of the architecture "llama": Q and K pair neighbouring
rotary dimensions (2i, 2i + 1) there and halves in torch. Tokenizer and chat template are the
backbone's, key by key, so that both files mean the same by every id.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray

from drafthead.drafters.standalone import CONFIDENCE_KEY
from drafthead.errors import TrainingError
from drafthead.training.draft_model import RMS_EPS, DraftModel
from drafthead.training.draft_shape import BLOCK

TOKENIZER = "tokenizer."
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NAMES = {"embed_tokens": "token_embd", "norm": "output_norm"}


def tensor_name(name: str) -> str:
    """The name in a file of a parameter of LlamaModel."""
    parts = name.removesuffix(".weight").split(".", 2)
    if parts[0] != "layers":
        return f"{_NAMES[parts[0]]}.weight"
    return f"blk.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight"


def interleaved(weights_NK: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of Q or K with rotary pairs (2i, 2i + 1) instead of (i, i + head_dim / 2)."""
    rows, columns = weights_NK.shape
    halves = weights_NK.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def halves(weights_NK: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """The inverse of `interleaved`."""
    rows, columns = weights_NK.shape
    pairs = weights_NK.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def file_tensors(model: DraftModel) -> dict[str, NDArray[np.float32]]:
    """The weights by their names in a file, (rows, columns) or (size,)."""
    heads = {"q_proj": model.shape.n_heads, "k_proj": model.shape.n_kv_heads}
    tensors = {}
    for name, weight in model.model.named_parameters():
        values = weight.detach().float().cpu().numpy()
        kind = name.split(".")[-2]
        tensors[tensor_name(name)] = interleaved(values, heads[kind]) if kind in heads else values
    return tensors


def packed(values: NDArray[np.float32]) -> tuple[NDArray[Any], GGMLQuantizationType]:
    """A tensor as a file holds it: norms in F32, matrices in Q8_0."""
    kind = GGMLQuantizationType.F32 if values.ndim == 1 else GGMLQuantizationType.Q8_0
    assert values.ndim == 1 or values.shape[1] % BLOCK == 0, "draft_shape gives whole blocks"
    return gguf.quants.quantize(values, kind), kind


def tokenizer_of(path: Path) -> dict[str, tuple[Any, GGUFValueType, GGUFValueType | None]]:
    """Every tokenizer key of a file: value, type, and the type of an array's elements."""
    found = {}
    for key, entry in gguf.GGUFReader(path).fields.items():
        if key.startswith(TOKENIZER):
            kinds = [*entry.types, None]
            found[key] = (entry.contents(), kinds[0], kinds[1])
    return found


@torch.no_grad()
def start_from_file(path: Path, model: DraftModel) -> None:
    """Take over the weights of a file, as what its int8 stands for.

    Raises:
        TrainingError: a tensor is missing or of another shape; it is named.
    """
    there = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    heads = {"q_proj": model.shape.n_heads, "k_proj": model.shape.n_kv_heads}
    for name, weight in model.model.named_parameters():
        tensor, kind = there.get(tensor_name(name)), name.split(".")[-2]
        found = tuple(map(int, tensor.shape[::-1])) if tensor is not None else None
        if tensor is None or found != tuple(weight.shape):
            raise TrainingError(
                f"--start-from {path}: a training keeps the model's shape, but "
                f"{tensor_name(name)} is {found or 'missing'} there and {tuple(weight.shape)} "
                "here; give --size and --like as for that model."
            )
        values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(weight.shape)
        values = halves(values, heads[kind]) if kind in heads else values
        weight.copy_(torch.tensor(values))


def write_draft_model(
    path: Path,
    model: DraftModel,
    tokenizer: Mapping[str, tuple[Any, GGUFValueType, GGUFValueType | None]],
    context: int,
    min_confidence: float,
    name: str,
) -> None:
    """Write a model; a reader sees the old file or the new one.

    Args:
        path: of the file.
        model: what was trained.
        tokenizer: keys of the backbone's file.
        context: positions that it may be asked to read.
        min_confidence: the fastest threshold that was found.
        name: for people.
    """
    shape = model.shape
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    writer = gguf.GGUFWriter(temporary, "llama")
    writer.add_name(name)
    writer.add_block_count(shape.layers)
    writer.add_context_length(context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.d_ff)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(model.rope_base)
    writer.add_layer_norm_rms_eps(RMS_EPS)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_float32(CONFIDENCE_KEY, min_confidence)
    for key, (value, kind, element) in tokenizer.items():
        writer.add_key_value(key, value, kind, element)
    for tensor, values in file_tensors(model).items():
        data, ggml_type = packed(values)
        writer.add_tensor(tensor, data, raw_dtype=ggml_type)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
