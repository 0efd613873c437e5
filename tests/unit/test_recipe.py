"""Laws of recipes: what is unknown is refused, what is wrong is named, the rest has defaults."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from drafthead.errors import TrainingError
from drafthead.training.recipe import find_recipe, load_recipe, parse_recipe

GOOD = """
[head]
name = "h"
backbone = "b"
kv_layers = [3, 5]
d_ff = 64
draft_vocab = 160
[train]
steps = 10
lr = 1
"""


def test_values_defaults_and_digest():
    recipe = parse_recipe(GOOD)
    assert recipe.head.kv_layers == (3, 5)
    assert recipe.train.steps == 10 and recipe.train.lr == 1.0
    assert recipe.train.schedule == "cosine" and recipe.measure.max_draft == 3
    assert recipe.digest == hashlib.sha256(GOOD.encode()).hexdigest()


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("[train]", "[training]", "training"),
        ("steps = 10", "step = 10", "step"),
        ("steps = 10", "steps = -1", "steps"),
        ("steps = 10", "steps = 1.5", "steps"),
        ("steps = 10", "steps = true", "steps"),
        ("steps = 10", 'steps = "10"', "steps"),
        ("steps = 10", "steps = 10\nminutes = 3", "exactly one"),
        ("steps = 10", "", "exactly one"),
        ("lr = 1", "lr = 2", "lr"),
        ("lr = 1", "lr = nan", "lr"),
        ("lr = 1", 'schedule = "step"', "schedule"),
        ("lr = 1", "schedule = 3", "schedule"),
        ("lr = 1", "start = 1", "start"),
        ("lr = 1", 'loss = "mse"', "ce, kl, tv, lk"),
        ("lr = 1", "unroll = 0", "unroll"),
        ('name = "h"', "name = 3", "name"),
        ('name = "h"', 'name = ""', "name"),
        ('name = "h"\n', "", "name"),
        ("kv_layers = [3, 5]", "kv_layers = []", "kv_layers"),
        ("kv_layers = [3, 5]", "kv_layers = [-2]", "kv_layers"),
        ("kv_layers = [3, 5]", "kv_layers = 3", "kv_layers"),
        ("kv_layers = [3, 5]", "kv_layers = [true]", "kv_layers"),
        ("d_ff = 64", "d_ff = 64\ntaps = [4, 9, 4]", "taps: name each layer once"),
        ("[train]", "[train", "TOML"),
        ("[head]", "head = 3\n[x]", "head"),
    ],
)
def test_what_is_wrong_is_named(old, new, named):
    assert old in GOOD
    with pytest.raises(TrainingError, match=named):
        parse_recipe(GOOD.replace(old, new))


def test_every_recipe_of_the_repository_is_sound():
    recipes = list((Path(__file__).parents[2] / "recipes").glob("*.toml"))
    assert recipes
    for path in recipes:
        assert load_recipe(path).head.name == path.stem


def test_a_missing_recipe_and_the_file_with_a_fault_are_named(tmp_path):
    with pytest.raises(TrainingError, match=r"gone\.toml"):
        load_recipe(tmp_path / "gone.toml")
    (tmp_path / "bad.toml").write_text(GOOD + "zero = 1")
    with pytest.raises(TrainingError, match=r"bad\.toml.*zero"):
        load_recipe(tmp_path / "bad.toml")


def test_a_recipe_is_found_by_its_path_or_by_its_name(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(GOOD)
    assert find_recipe(str(path)) == path
    for name in ("smollm2-quick", "smollm2-135m"):
        assert load_recipe(find_recipe(name)).head.backbone == "smollm2-135m"
    with pytest.raises(TrainingError, match=r"no recipe smollm3.*smollm2-quick"):
        find_recipe("smollm3")


def test_variants_of_a_head_are_named_by_the_recipe():
    variant = ["kv_layers = [-1, 5]", 'vocabulary = "prefix"', "markov_rank = 64",
               "taps = [9, 19]", "positions = 3"]  # fmt: skip
    more = "\n".join(variant)
    text = GOOD.replace("kv_layers = [3, 5]", more)
    head = parse_recipe(text).head
    assert (head.kv_layers, head.read_layers, head.taps) == ((-1, 5), (5,), (9, 19))
    assert (head.vocabulary, head.markov_rank, head.positions) == ("prefix", 64, 3)
    plain = parse_recipe(GOOD).head
    assert (plain.taps, plain.markov_rank, plain.positions) == ((), 0, 1)
    with pytest.raises(TrainingError, match="unroll"):
        parse_recipe(text.replace("positions = 3", "positions = 4"))
