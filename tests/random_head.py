"""A head with random weights: nearly always wrong, and so a hard test for everything around it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from drafthead.backbone.handle import Backbone
from drafthead.heads.config import HeadConfig, TargetId
from drafthead.heads.package import CONFIG, WEIGHTS, expected_tensors


def config_for(backbone: Backbone) -> HeadConfig:
    spec = backbone.spec
    target = TargetId(
        backbone.name, spec.architecture, backbone.fingerprint, backbone.tokenizer_fingerprint
    )
    return HeadConfig(
        d_model=spec.d_model,
        d_ff=64,
        n_heads=spec.n_heads,
        n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        draft_vocab_size=min(256, spec.vocab_size // 16 * 16),
        kv_layers=(spec.n_layers - 1,),
        rms_eps=spec.rms_eps,
        rope_base=spec.rope_base,
        trained_steps=4,
        target=target,
    )


def write_random_head(folder: Path, backbone: Backbone, seed: int = 0) -> Path:
    """Write a head package that fits the backbone; it drafts the first 256 ids at most."""
    rng = np.random.default_rng(seed)
    config = config_for(backbone)
    tensors = {}
    for name, (dtype, shape) in expected_tensors(config).items():
        if dtype == "I8":
            tensors[name] = rng.integers(-127, 128, shape, dtype=np.int8)
        elif dtype == "I32":
            tensors[name] = np.arange(shape[0], dtype=np.int32)
        elif dtype == "F16":
            tensors[name] = np.full(shape, 0.001, np.float16)
        else:
            tensors[name] = rng.normal(1, 0.1, shape).astype(np.float32)
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps(config.to_json()))
    save_file(tensors, folder / WEIGHTS)
    return folder
