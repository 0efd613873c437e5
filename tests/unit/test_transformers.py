"""Each architecture against the transformers library: same parameters, same tokens, same logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from drafthead import _native
from drafthead.backbone.handle import Backbone, Segment
from drafthead.gguf.model import Layer, ModelSpec, Rope
from drafthead.gguf.reader import read_gguf
from drafthead.gguf.spec import model_spec
from tests import hf
from tests.bits import same_bits
from tests.reference import reference_logits

TOKENS = [int(t) for t in np.random.default_rng(1).integers(0, 112, 320)]  # 20 windows
FEW = TOKENS[:48]


@dataclass(frozen=True)
class Case:
    path: Path
    spec: ModelSpec
    weights: dict[str, np.ndarray]
    logits: np.ndarray  # of the library, (M, V)


@pytest.fixture(scope="module", params=hf.MODELS)
def case(request, tmp_path_factory) -> Case:
    path = tmp_path_factory.mktemp("hf") / f"{request.param}.gguf"
    model = hf.tiny_model(request.param)
    weights = hf.write_gguf(request.param, model, path)
    return Case(path, model_spec(read_gguf(path)), weights, hf.logits_of(model, TOKENS))


def tolerance(spec: ModelSpec, expected: np.ndarray) -> float:
    """What float32 does to the library's logits, whatever the architecture.

    With u = 2^-24: a sum of K terms is off by about √K u of its size, an angle by 2 u times the
    position, as its frequency and the product are rounded; a turn, a norm and a softmax pass such
    relative errors on as they are, and those of the layers add up.
    """
    widest = max(spec.d_model, spec.d_ff, spec.n_heads * spec.head_dim)
    each_layer = widest**0.5 + 2 * len(expected)
    return float(2.0**-24 * spec.n_layers * each_layer * np.abs(expected).max())


def test_the_formulas_give_the_librarys_logits(case):
    """So the file, its description and the reference that the engine is held to are right."""
    expected = reference_logits(case.weights, case.spec, TOKENS, cache="f32")
    assert np.abs(case.logits - expected).max() < tolerance(case.spec, expected)


def engine_logits(path: Path, chunk: int, threads: int) -> np.ndarray:
    """(M, V), fed `chunk` rows a pass; cells are f32, as the library's are."""
    backbone = Backbone.open(path, threads=threads)
    cache = backbone.new_cache(len(TOKENS), "f32")
    passes = [TOKENS[i : i + chunk] for i in range(0, len(TOKENS), chunk)]
    parts = [backbone.forward([Segment(cache, p)], want="logits").logits for p in passes]
    return np.concatenate(parts)


def test_the_engine_gives_the_librarys_logits(case):
    """Each is as near to exact as float32 allows, so they differ by twice that at most."""
    found = engine_logits(case.path, len(TOKENS), 2)
    assert np.abs(found - case.logits).max() < 2 * tolerance(case.spec, case.logits)


def test_no_architecture_has_a_bit_that_depends_on_the_pass(case, every_isa):
    """A1, A3: one row at a time, in pieces on two threads, and whole on each instruction set."""
    expected = engine_logits(case.path, 1, 1)
    assert same_bits(engine_logits(case.path, 7, 2), expected)
    for isa in every_isa:
        _native.set_isa(isa)
        assert same_bits(engine_logits(case.path, len(TOKENS), 1), expected), isa


def changes(spec: ModelSpec) -> dict[str, ModelSpec]:
    """The description with one fact wrong, for each fact that is not neutral in it."""
    wrong: dict[str, ModelSpec] = {"attention_scale": replace(spec, attention_scale=0.2)}
    wrong["rope_interleaved"] = replace(spec, rope_interleaved=not spec.rope_interleaved)
    for name in ("gelu", "qkv_bias", "qk_norm", "post_norms", "rope_factors"):
        if getattr(spec, name):
            wrong[name] = replace(spec, **{name: False})
    for name in ("attention_softcap", "final_softcap"):
        if getattr(spec, name):
            wrong[name] = replace(spec, **{name: 0.0})
    if spec.embedding_scale != 1:
        wrong["embedding_scale"] = replace(spec, embedding_scale=1.0)
    for index, rope in enumerate(spec.ropes):
        others = [rope._replace(base=2 * rope.base), rope._replace(scale=rope.scale / 2)]
        for name, other in zip(Rope._fields, others, strict=True):
            ropes = (*spec.ropes[:index], other, *spec.ropes[index + 1 :])
            wrong[f"{name} of rope {index}"] = replace(spec, ropes=ropes)
    for index, layer in enumerate(spec.layers):
        others = [layer._replace(rope=0 if layer.rope < 0 else -1)]
        others += [layer._replace(window=layer.window + n) for n in (-1, 1) if layer.window]
        others += [Layer(hf.WINDOW, layer.rope)] if not layer.window else []
        for other in others:
            layers = (*spec.layers[:index], other, *spec.layers[index + 1 :])
            wrong[f"layer {index} as {other}"] = replace(spec, layers=layers)
    return wrong


def test_each_fact_of_a_description_shows_in_the_logits(case):
    """Or the comparison would not notice a wrong one: the weights leave nothing neutral."""
    expected = reference_logits(case.weights, case.spec, FEW, cache="f32")
    enough = 10 * tolerance(case.spec, expected)
    for fact, spec in changes(case.spec).items():
        other = reference_logits(case.weights, spec, FEW, cache="f32")
        assert np.abs(other - expected).max() > enough, fact
