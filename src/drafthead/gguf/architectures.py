"""What files of each architecture mean, as data.

A GGUF file names its architecture and gives numbers, but leaves to the reader how they are used.
What llama.cpp, the format's reference reader, has in its code and not in the file stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from drafthead.gguf.model import OUTPUT, ROPE_FACTORS

COMMON_KEYS = frozenset(
    {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scale_linear",  # what older files call rope.scaling.factor
    }
)
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
WINDOW_ROPE_BASE = "rope.freq_base_swa"
ATTENTION_SOFTCAP, FINAL_SOFTCAP = "attn_logit_softcapping", "final_logit_softcapping"

# Said for the record: linear scaling and Llama-3 scaling do not use them.
HARMLESS_KEYS = frozenset({"rope.scaling.original_context_length", "rope.scaling.finetuned"})

# Keys that would change the mathematics, with the values that do not.
NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    WINDOW: (0,),
    "rope.scaling.attn_factor": (1.0,),
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "tensor_data_layout": ("Meta AI original pth",),  # interleaved rotary pairs: old llama files
}


@dataclass(frozen=True)
class Architecture:
    """How files of one architecture are read; keys are without the architecture's prefix.

    keys: what is read besides COMMON_KEYS.  optional: tensors that a file may have or not.
    unturned_period: every n-th layer has no rotary turn.  window: where the file names none.
    full_period: of the windowed layers every n-th one sees all positions; 0: none does.
    window_rope_base: of the windowed layers, which then have no position scaling; None: as the
    full ones.  attention_softcap, final_softcap: where the file names none; 0 is none.
    wide_scale_layers: with this many layers, queries are scaled by the square root of d_model /
    n_heads, which is not their size.
    """

    rope_interleaved: bool
    keys: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset({OUTPUT})
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    gelu: bool = False
    embedding_scaled: bool = False
    unturned_period: int = 0
    window: int = 0
    full_period: int = 0
    window_rope_base: float | None = None
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    wide_scale_layers: int = 0


ARCHITECTURES: Mapping[str, Architecture] = {
    # Llama 1 to 3, Mistral (the window), TinyLlama, SmolLM. Converters order the rows of q and k
    # for interleaved rotary pairs, and put Llama-3 scaling in the tensor of factors.
    "llama": Architecture(
        rope_interleaved=True,
        keys=frozenset({WINDOW}),
        optional=frozenset({OUTPUT, ROPE_FACTORS}),
    ),
    # llama.cpp, smollm3.cpp: n_no_rope_layer_step = 4, layers with (i + 1) % 4 == 0.
    "smollm3": Architecture(rope_interleaved=True, unturned_period=4),
    "qwen2": Architecture(rope_interleaved=False, qkv_bias=True),
    "qwen3": Architecture(rope_interleaved=False, qk_norm=True),
    # llama.cpp, gemma2.cpp: the period and the window of files without the keys; llama-hparams.h:
    # the soft caps of files older than the keys; the 27B by its 46 layers. No output matrix.
    "gemma2": Architecture(
        rope_interleaved=False,
        keys=frozenset({WINDOW, PATTERN, WINDOW_ROPE_BASE, ATTENTION_SOFTCAP, FINAL_SOFTCAP}),
        optional=frozenset(),
        post_norms=True,
        gelu=True,
        embedding_scaled=True,
        window=4096,
        full_period=2,
        attention_softcap=50.0,
        final_softcap=30.0,
        wide_scale_layers=46,
    ),
    # llama.cpp, gemma3.cpp: the period, the base 10,000 of windowed layers, the 27B by its 62
    # layers. A file without a window has full layers only.
    "gemma3": Architecture(
        rope_interleaved=False,
        keys=frozenset({WINDOW, PATTERN, WINDOW_ROPE_BASE, FINAL_SOFTCAP}),
        qk_norm=True,
        post_norms=True,
        gelu=True,
        embedding_scaled=True,
        full_period=6,
        window_rope_base=10_000.0,
        wide_scale_layers=62,
    ),
}
