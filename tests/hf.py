"""Tiny random models of the transformers library, and their GGUF files.

Only what a converter must know is written out: tensor names come from the gguf package, numbers
from the model's own configuration.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from torch import Tensor, nn

WINDOW = 16
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 112,
    "max_position_embeddings": 640,
    "attn_implementation": "eager",
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 50_000.0}

# Name: GGUF architecture, the class's prefix, and what the configuration has besides the sizes.
MODELS: dict[str, tuple[str, str, dict[str, object]]] = {
    "llama3": ("llama", "Llama", {"num_hidden_layers": 2, "rope_parameters": LLAMA3}),
    "linear": (
        "llama",
        "Llama",
        {"num_hidden_layers": 2, "rope_parameters": LINEAR, "tie_word_embeddings": True},
    ),
    "mistral": ("llama", "Mistral", {"num_hidden_layers": 3, "sliding_window": WINDOW}),
    "smollm3": ("smollm3", "SmolLM3", {"num_hidden_layers": 5}),
    "qwen2": ("qwen2", "Qwen2", {"num_hidden_layers": 2}),
    "qwen3": ("qwen3", "Qwen3", {"num_hidden_layers": 2, "tie_word_embeddings": True}),
    "gemma2": (
        "gemma2",
        "Gemma2",
        {
            "num_hidden_layers": 3,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 32,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 2.0,
        },
    ),
    "gemma3": (
        "gemma3",
        "Gemma3",
        {
            "num_hidden_layers": 7,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 32,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
}


def tiny_model(name: str) -> nn.Module:
    """A model whose every parameter is random, norms and biases too, so that nothing is neutral."""
    _, prefix, special = MODELS[name]
    kind = f"{prefix}TextConfig" if prefix == "Gemma3" else f"{prefix}Config"
    config = getattr(transformers, kind)(**SIZES, **special)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(7)
    for key, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if key.endswith("norm.weight"):
            parameter.data = 0.3 * noise + (0 if prefix.startswith("Gemma") else 1)
        elif parameter.ndim == 1:
            parameter.data = 0.5 * noise
        else:
            sharp = 2 if key.endswith(("q_proj.weight", "k_proj.weight")) else 1
            parameter.data = sharp * noise / parameter.shape[1] ** 0.5
    return model


def logits_of(model: nn.Module, tokens: list[int]) -> np.ndarray:
    """(M, V) float32."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def write_gguf(name: str, model: nn.Module, path: Path) -> dict[str, np.ndarray]:
    """Write the file with F32 weights; returns them by the file's names without `.weight`."""
    architecture = MODELS[name][0]
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    weights = file_weights(architecture, model)
    if rope["rope_type"] == "llama3":
        plain = 1 / rope["rope_theta"] ** (torch.arange(0, config.head_dim, 2) / config.head_dim)
        weights["rope_freqs"] = (plain / model.model.rotary_emb.inv_freq).numpy()
    for key, values in weights.items():
        writer.add_tensor(key if key.endswith(".bias") else f"{key}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def file_weights(architecture: str, model: nn.Module) -> dict[str, np.ndarray]:
    """The parameters as converters store them."""
    kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture)
    names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    weights = {}
    for key, parameter in model.named_parameters():  # a tied output is not listed
        values = parameter.detach()
        if architecture.startswith("gemma") and key.endswith("norm.weight"):
            values = values + 1  # the model multiplies by 1 + weight, a file's reader by weight
        if architecture in ("llama", "smollm3") and ("q_proj" in key or "k_proj" in key):
            values = interleaved(values, model.config.head_dim)
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        weights[name.removesuffix(".weight")] = values.numpy().copy()
    return weights


def interleaved(values: Tensor, head_dim: int) -> Tensor:
    """Rows of each head from halves (i, i + half) to neighbours (2i, 2i + 1)."""
    halves = values.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).reshape(values.shape)
