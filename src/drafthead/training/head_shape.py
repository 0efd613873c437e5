"""The config of the head that a recipe asks for on a backbone, or why there can be none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from drafthead.backbone.handle import Backbone
from drafthead.errors import TrainingError
from drafthead.gguf.spec import ModelSpec
from drafthead.heads.blocks import BLOCK, INT4, INT8
from drafthead.heads.config import HeadConfig, TargetId
from drafthead.training.inputs import Inputs
from drafthead.training.recipe import Recipe


def full_layers(spec: ModelSpec) -> list[int]:
    """Layers whose every position a head can read."""
    return [at for at, layer in enumerate(spec.layers) if not layer.window and layer.rope >= 0]


def _check_attention(read: Sequence[int], spec: ModelSpec, name: str) -> None:
    """Refuse layers whose attention the torch head does not compute as the core does."""
    ropes = {spec.layers[layer].rope for layer in read}
    if len(ropes) > 1 or -1 in ropes or any(spec.layers[layer].window for layer in read):
        raise TrainingError(
            f"[head] kv_layers: a head reads layers without a sliding window and with one and the "
            f"same rotary embedding; {name} has them at {full_layers(spec)}."
        )
    odd = {
        "scaled positions": any(spec.ropes[rope].scale != 1 for rope in ropes),
        "rope factors": bool(ropes) and spec.rope_factors,
        "a soft cap on attention scores": bool(ropes) and spec.attention_softcap != 0,
        "an attention scale of its own": bool(ropes)
        and not math.isclose(spec.attention_scale, spec.head_dim**-0.5, rel_tol=1e-6),
    }
    for what, found in odd.items():
        if found:
            raise TrainingError(
                f"{name} has {what}, with which heads cannot be trained yet; use a head without "
                "attention: kv_layers = [-1]."
            )


def head_sizes(recipe: Recipe, backbone: Backbone, draft_vocab: int) -> HeadConfig:
    """The config of the head that a recipe asks for on a backbone, without a record of training.

    Raises:
        TrainingError: a layer that the backbone does not have, or sizes that do not fit it.
    """
    spec, head = backbone.spec, recipe.head
    for name, layers in (("kv_layers", head.kv_layers), ("taps", head.taps)):
        if max(layers, default=0) >= spec.n_layers:
            raise TrainingError(
                f"[head] {name}: {backbone.name} has layers 0 .. {spec.n_layers - 1}, found "
                f"{list(layers)}."
            )
    for name, size in (("d_ff", head.d_ff), ("markov_rank", head.markov_rank)):
        if size % BLOCK:
            raise TrainingError(f"[head] {name} must be a multiple of {BLOCK}, found {size}.")
    ropes = {spec.layers[layer].rope for layer in head.read_layers}
    _check_attention(head.read_layers, spec, backbone.name)
    target = TargetId(
        backbone.name, spec.architecture, backbone.fingerprint, backbone.tokenizer_fingerprint
    )
    return HeadConfig(
        d_model=spec.d_model,
        d_ff=head.d_ff,
        n_heads=spec.n_heads,
        n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        draft_vocab_size=draft_vocab,
        kv_layers=head.kv_layers,
        rms_eps=spec.rms_eps,
        rope_base=spec.ropes[ropes.pop()].base if ropes else spec.rope_base,
        attention_bias=spec.qkv_bias,
        qk_norm=spec.qk_norm,
        trained_steps=recipe.train.unroll,
        markov_rank=head.markov_rank,
        taps=head.taps,
        positions=head.positions,
        prompt_tokens=head.prompt_tokens,
        quantization=(INT4 if head.quantization == INT4.short else INT8).name,
        target=target,
    )


def head_config(recipe: Recipe, backbone: Backbone, inputs: Inputs) -> HeadConfig:
    """The config of the head that is trained on some answers; errors as of `head_sizes`."""
    return replace(
        head_sizes(recipe, backbone, len(inputs.vocabulary)),
        training={
            "recipe": recipe.head.name,
            "recipe_digest": recipe.digest,
            "data_digest": inputs.digest,
            "answers": len(inputs.train),
            "answer_tokens": sum(len(answer.answer) for answer in inputs.train),
            "tokens_fed": "teacher_forced",
        },
    )
