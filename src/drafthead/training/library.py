"""A backbone as a model of the transformers library, its weights dequantised to f32.

The file's description (ModelSpec) says what the model is; the library has the layers of each
family. Norms of the Gemma family multiply by 1 + weight there, by the weight in a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drafthead._native import Matrix
from drafthead.backbone.handle import Backbone
from drafthead.errors import TrainingError
from drafthead.gguf.file import GgufFile
from drafthead.gguf.model import ROPE_FACTORS, ModelSpec, tensor_plan
from drafthead.gguf.spec import vector_values

# The file's architecture: how the library's classes begin.
FAMILIES = {
    "llama": "Llama",
    "smollm3": "SmolLM3",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma2": "Gemma2",
    "gemma3": "Gemma3Text",
}
# A tensor of a file's layer, without its ending: the library's name.
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
POST_NORM_NAMES = NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _library() -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise TrainingError(
            "The backbone in torch needs transformers, which is not installed: "
            "`pip install 'drafthead[train]'`."
        ) from error
    return transformers


def file_model(backbone: Backbone, layers: int) -> nn.Module:
    """The first layers of a backbone and its final norm, frozen.

    It takes embeddings, for the engine has the table already.

    Raises:
        TrainingError: transformers is not installed, or has no such model.
    """
    library, spec, gguf = _library(), backbone.spec, backbone.gguf
    config = library_config(spec, layers)
    with torch.device("meta"):
        model: Any = library.AutoModel.from_config(config, attn_implementation=_attention(spec))
    model.embed_tokens = nn.Identity()
    weights = {}
    for planned in tensor_plan(spec):
        name = _library_name(planned.name, spec, layers)
        if name is not None:
            values = dequantised(gguf, spec, planned.name)
            shifted = spec.embedding_scale != 1 and planned.name.endswith("norm.weight")
            weights[name] = values - 1 if shifted else values
    model.load_state_dict(weights, assign=True)
    model.rotary_emb = type(model.rotary_emb)(config)  # its frequencies are no parameters
    if spec.rope_factors:
        model.rotary_emb.inv_freq /= torch.from_numpy(vector_values(gguf, ROPE_FACTORS))
    frozen: nn.Module = model.eval().requires_grad_(False)
    return frozen


def folder_model(folder: Path, backbone: Backbone) -> nn.Module:
    """The model of a folder with config.json and safetensors, frozen, in f32.

    Raises:
        TrainingError: transformers is not installed, or the folder holds no such model.
    """
    library, spec = _library(), backbone.spec
    try:
        config = library.AutoConfig.from_pretrained(folder, local_files_only=True)
        _check_same_model(folder, config, backbone)
        model, report = library.AutoModel.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=_attention(spec),
            use_safetensors=True, local_files_only=True, output_loading_info=True,
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError) as error:
        raise TrainingError(
            f"{folder} holds no model that transformers reads from safetensors "
            f"({str(error).splitlines()[0]})."
        ) from error
    if report["missing_keys"]:
        raise TrainingError(f"{folder}: the tensor {min(report['missing_keys'])} is missing.")
    frozen: nn.Module = model.eval().requires_grad_(False)
    return frozen


def _check_same_model(folder: Path, config: Any, backbone: Backbone) -> None:
    """Compare what a folder says with what the file says."""
    spec = backbone.spec
    wanted = {
        "model_type": library_config(spec, spec.n_layers).model_type,
        "hidden_size": spec.d_model,
        "num_hidden_layers": spec.n_layers,
        "intermediate_size": spec.d_ff,
        "num_attention_heads": spec.n_heads,
        "num_key_value_heads": spec.n_kv_heads,
        "vocab_size": spec.vocab_size,
    }
    for name, value in wanted.items():
        found = getattr(config, name, None)
        if found != value:
            raise TrainingError(
                f"{folder} holds another model than {backbone.name}: {name} is {found}, expected "
                f"{value}."
            )


def _attention(spec: ModelSpec) -> str:
    return "eager" if spec.attention_softcap else "sdpa"  # sdpa has no soft cap


def library_config(spec: ModelSpec, layers: int) -> Any:
    """The library's configuration of the first layers of a model.

    Raises:
        TrainingError: windowed layers of a family that has them turned otherwise there.
    """
    windows = [layer.window for layer in spec.layers[:layers]]
    kind = FAMILIES[spec.architecture]
    if kind == "Llama" and any(windows):
        kind = "Mistral"
    ropes = [_rope_parameters(spec, index) for index in range(len(spec.ropes))]
    if len(ropes) > 1 and kind != "Gemma3Text":
        raise TrainingError(
            f"A {spec.architecture} model whose windowed layers turn otherwise than its full ones "
            'has no torch host; choose start = "random" in the recipe.'
        )
    more: dict[str, Any] = {"rope_parameters": ropes[0]}
    if kind == "SmolLM3":
        more["no_rope_layers"] = [int(layer.rope >= 0) for layer in spec.layers[:layers]]
    if any(windows):
        more["sliding_window"] = max(windows)
    if spec.post_norms:
        more["layer_types"] = ["sliding_attention" if w else "full_attention" for w in windows]
        more["query_pre_attn_scalar"] = round(spec.attention_scale**-2)
        more["attn_logit_softcapping"] = spec.attention_softcap or None
    if kind == "Gemma3Text":
        more["rope_parameters"] = {"full_attention": ropes[0], "sliding_attention": ropes[-1]}
    return getattr(_library(), f"{kind}Config")(
        hidden_size=spec.d_model, intermediate_size=spec.d_ff, num_hidden_layers=layers,
        num_attention_heads=spec.n_heads, num_key_value_heads=spec.n_kv_heads,
        head_dim=spec.head_dim, vocab_size=1, max_position_embeddings=spec.context_length,
        rms_norm_eps=spec.rms_eps, pad_token_id=None, bos_token_id=None, eos_token_id=None,
        **more,
    )  # fmt: skip


def _rope_parameters(spec: ModelSpec, index: int) -> dict[str, Any]:
    rope = spec.ropes[index]
    if rope.scale == 1:
        return {"rope_type": "default", "rope_theta": rope.base}
    return {"rope_type": "linear", "rope_theta": rope.base, "factor": 1 / rope.scale}


def _library_name(name: str, spec: ModelSpec, layers: int) -> str | None:
    """The library's name of a file's tensor; None of one that the model is not given."""
    if name == "output_norm.weight":
        return "norm.weight"
    if not name.startswith("blk."):
        return None
    _, index, part, ending = name.split(".")
    names = POST_NORM_NAMES if spec.post_norms else NAMES
    return f"layers.{index}.{names[part]}.{ending}" if int(index) < layers else None


def dequantised(gguf: GgufFile, spec: ModelSpec, name: str) -> Tensor:
    """A tensor of the file in f32; query and key rows in the split-half rotary layout."""
    info = gguf.tensors[name]
    if len(info.shape) == 1:
        return torch.from_numpy(vector_values(gguf, name))
    columns, rows = info.shape
    matrix = Matrix(info.ggml_type, rows, columns, gguf.data(name))
    weight = torch.from_numpy(matrix.dequantize().copy())
    if not (spec.rope_interleaved and name.endswith(("attn_q.weight", "attn_k.weight"))):
        return weight
    pairs = weight.unflatten(0, (-1, spec.head_dim // 2, 2))
    return pairs.transpose(1, 2).reshape(rows, columns)
