"""Laws of a run folder: one recipe, one set of answers, and so one draft vocabulary to the end."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from drafthead.backbone.handle import Backbone
from drafthead.errors import TrainingError
from drafthead.heads.config import HeadConfig
from drafthead.training.answers import MANIFEST, Answer, AnswerStore
from drafthead.training.head_shape import head_config
from drafthead.training.inputs import read_inputs
from drafthead.training.pipeline import RUN, check_run
from drafthead.training.recipe import parse_recipe
from tests import fakes

RECIPE = parse_recipe("""
[head]
name = "h"
backbone = "b"
kv_layers = [1]
d_ff = 64
draft_vocab = 128
[data]
heldout = 0.2
[train]
steps = 10
""")


@pytest.fixture(scope="module")
def backbone(tiny_path):
    return Backbone.open(tiny_path, threads=1)


def write_answers(folder, backbone, seed=0):
    """Forty answers that say some groups of ids more often than others."""
    rng = np.random.default_rng(seed)
    store = AnswerStore(folder)
    names = ("fingerprint", "tokenizer_fingerprint")
    store.write_manifest({name: getattr(backbone, name) for name in names})
    for number in range(40):
        tokens = rng.choice(270, 20, p=np.arange(1, 271) / np.arange(1, 271).sum()).tolist()
        store.append(Answer(f"a{number}", "t", (3, 4), tuple(tokens), "length"))
    store.flush()
    return folder


def session_of(backbone, chat=True):
    """A session of a chat model, or of a base model, that knows the marks of few-shot prompts."""
    return SimpleNamespace(
        backbone=backbone, template=SimpleNamespace(exists=chat),
        tokenizer=MarkTokenizer(eos_ids=(1,), vocab_size=backbone.spec.vocab_size),
    )  # fmt: skip


def inputs_of(folder, backbone, chat=True):
    return read_inputs(RECIPE, folder, session_of(backbone, chat))


class MarkTokenizer(fakes.ByteTokenizer):
    """Says the heading's mark and blank lines with tokens of groups that answers seldom hold."""

    def token_bytes(self, token_id, first=False):
        return {18: b"###", 40: b"!\n\n\n"}.get(token_id) or super().token_bytes(token_id, first)


@pytest.mark.parametrize("chat", [True, False])
def test_the_draft_vocabulary_holds_every_end_of_an_answer(backbone, tmp_path, chat):
    """A base model ends its answer where it begins the next example, though it seldom did."""
    vocabulary = inputs_of(write_answers(tmp_path, backbone), backbone, chat).vocabulary
    groups = set((vocabulary.token_ids // 16).tolist())
    assert 1 // 16 in groups
    assert ({18 // 16, 40 // 16} <= groups) == (not chat)


def test_the_same_answers_give_the_same_draft_vocabulary_in_any_order(backbone, tmp_path):
    """K4: a run that is resumed must not number its labels anew."""
    folder = write_answers(tmp_path / "a", backbone)
    first = inputs_of(folder, backbone)
    store = AnswerStore(folder)
    store.finish([f"a{number}" for number in reversed(range(40))])
    again = inputs_of(folder, backbone)
    assert (first.vocabulary.token_ids == again.vocabulary.token_ids).all()
    assert (first.digest, first.answers) == (again.digest, again.answers)
    assert not (first.vocabulary.token_ids == np.arange(128)).all()
    check_run(tmp_path / "run", RECIPE, first)
    check_run(tmp_path / "run", RECIPE, again)


def test_a_run_of_other_answers_or_another_recipe_is_not_resumed(backbone, tmp_path):
    first = inputs_of(write_answers(tmp_path / "a", backbone), backbone)
    other = inputs_of(write_answers(tmp_path / "b", backbone, seed=1), backbone)
    check_run(tmp_path / "run", RECIPE, first)
    before = (tmp_path / "run" / RUN).read_bytes()
    with pytest.raises(TrainingError, match="another data_digest"):
        check_run(tmp_path / "run", RECIPE, other)
    recipe = parse_recipe("# changed\n" + '[head]\nname = "h"\nbackbone = "b"\nkv_layers = [1]\n'
                          "d_ff = 64\ndraft_vocab = 64\n[train]\nsteps = 10\n")  # fmt: skip
    with pytest.raises(TrainingError, match="another recipe_digest"):
        check_run(tmp_path / "run", recipe, first)
    assert (tmp_path / "run" / RUN).read_bytes() == before


def test_answers_of_another_backbone_are_refused(backbone, tmp_path):
    folder = write_answers(tmp_path / "a", backbone)
    manifest = json.loads((folder / MANIFEST).read_text())
    for name in ("fingerprint", "tokenizer_fingerprint"):
        AnswerStore(folder).write_manifest(manifest | {name: "0" * 64})
        with pytest.raises(TrainingError, match=f"whose {name} differs"):
            inputs_of(folder, backbone)
    with pytest.raises(TrainingError, match="holds no answers"):
        inputs_of(tmp_path / "none", backbone)


def test_a_package_records_what_its_head_was_trained_on_and_fed(backbone, tmp_path):
    """K11: the answer's own tokens were fed, not the head's guesses."""
    inputs = inputs_of(write_answers(tmp_path / "a", backbone), backbone)
    config = HeadConfig.from_json(head_config(RECIPE, backbone, inputs).to_json())
    assert config.training == {
        "recipe": "h", "recipe_digest": RECIPE.digest, "data_digest": inputs.digest,
        "answers": len(inputs.train), "answer_tokens": 20 * len(inputs.train),
        "tokens_fed": "teacher_forced",
    }  # fmt: skip
    assert 0 < len(inputs.train) < 40
    assert (config.trained_steps, config.draft_vocab_size) == (3, 128)
    assert config.target.fingerprint == backbone.fingerprint
