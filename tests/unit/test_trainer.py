"""Laws of training: it learns, resumes to the bit, survives bad steps, counts like a decode."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import trainee

from drafthead.decoding.stats import accept_at, tau
from drafthead.errors import TrainingError
from drafthead.heads.config import HeadConfig, TargetId
from drafthead.training import checkpoint
from drafthead.training.answers import Answer
from drafthead.training.batching import BatchMaker
from drafthead.training.data import DraftVocabulary, anchor_count
from drafthead.training.features import FeatureStore
from drafthead.training.modules import (
    FrozenMtpHead,
    attend,
    rope_tables,
    rotate,
)
from drafthead.training.recipe import TrainRecipe
from drafthead.training.replay import replay, walk
from drafthead.training.schedule import lr_share
from drafthead.training.selection import Costs, Trial
from drafthead.training.trainer import CHECKPOINT, Trainer
from drafthead.types import DecodeStats

CONFIG = HeadConfig(
    d_model=trainee.D, d_ff=64, n_heads=2, n_kv_heads=1, head_dim=trainee.H, vocab_size=trainee.V,
    draft_vocab_size=trainee.V, kv_layers=(2,), rms_eps=1e-5, rope_base=1e4, trained_steps=2,
    target=TargetId("tiny", "llama", "f" * 64, "t" * 64),
)  # fmt: skip
RECIPE = TrainRecipe(
    steps=20, unroll=2, batch_anchors=64, lr=3e-3, precision="f32", evaluate_every=7,
    checkpoint_every=5,
)  # fmt: skip


def answers(count=24, size=20):
    backbone = trainee.TinyBackbone(ends=False)
    rows = []
    for number in range(count):
        prompt = (2 + number, 3 + 2 * number)
        rows.append(
            Answer(
                f"a{number}", "t", prompt, tuple(trainee.greedy(backbone, prompt, size)), "length"
            )
        )
    return rows


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    rows = answers()
    store = FeatureStore(tmp_path_factory.mktemp("f"), trainee.TinyBackbone(), rows, [2])
    store.build()
    return rows, store


def make_maker(material, steps=2, dtype=torch.float32):
    rows, store = material
    words = DraftVocabulary(np.arange(trainee.V), trainee.V)
    return BatchMaker(trainee.TinyBackbone(), store, rows, words, steps, dtype)


def make_trainer(material, folder, recipe=RECIPE):
    torch.manual_seed(0)
    counts = [anchor_count(len(row.prompt_tokens), len(row.answer)) for row in material[0]]
    return Trainer(FrozenMtpHead(CONFIG), recipe, make_maker(material), counts, folder)


def judged(material):
    """An evaluation without a runtime: torch replays, a pass of M rows takes M + 9, a step 1."""
    maker = make_maker(material)

    def evaluate(head):
        stats = replay(head, maker, [list(range(24))], autocast=False)
        return Trial(stats, stats.drafted, Costs([10.0, 11.0, 12.0], 1.0))

    return evaluate


def weights(trainer):
    return {name: value.clone() for name, value in trainer.head.state_dict().items()}


MUON = dataclasses.replace(RECIPE, optimizer="muon", average=0.2, loss="lk")


@pytest.mark.parametrize("recipe", [RECIPE, MUON], ids=["adamw", "muon, averages, lk"])
def test_a_training_that_was_stopped_has_the_bits_of_one_that_was_not(material, tmp_path, recipe):
    whole = make_trainer(material, tmp_path / "whole", recipe)
    whole.run()
    half = make_trainer(material, tmp_path / "parts", recipe)
    half.run(stop_at=9)
    rest = make_trainer(material, tmp_path / "parts", recipe)
    torch.manual_seed(999)
    rest.run()
    assert rest.progress.step == whole.progress.step == 20
    assert rest.progress.anchors == whole.progress.anchors
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(rest)[name]), name
    saved = [checkpoint.load(tmp_path / part / CHECKPOINT)[0] for part in ("whole", "parts")]
    assert saved[0].keys() == saved[1].keys()
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])


def test_it_learns_a_backbone_that_can_be_learned(material, tmp_path):
    recipe = dataclasses.replace(RECIPE, steps=120, lr=1e-2)
    trainer = make_trainer(material, tmp_path, recipe)
    maker = make_maker(material)
    before = replay(trainer.head, maker, [list(range(24))], autocast=False)
    trainer.run(judged(material))
    after = replay(trainer.head, maker, [list(range(24))], autocast=False)
    assert tau(before) < 1.2
    assert tau(after) > 2.6
    assert trainer.progress.best_tau > 2.6


def test_bf16_training_keeps_f32_weights_and_learns_too(material, tmp_path):
    recipe = dataclasses.replace(RECIPE, steps=60, lr=1e-2, precision="bf16")
    trainer = make_trainer(material, tmp_path, recipe)
    trainer._maker = make_maker(material, dtype=torch.bfloat16)
    losses = []
    trainer.run(on_report=lambda report: losses.append(report.loss))
    assert all(value.dtype == torch.float32 for value in weights(trainer).values())
    assert losses[-1] < 0.7 * losses[0]


def poison(trainer, bad_calls):
    """Make the hidden states of some batches infinite."""
    maker, calls = trainer._maker, iter(range(1000))

    def poisoned(indices):
        batch = maker(indices)
        if next(calls) in bad_calls:
            batch.hidden_AD[0, 0] = float("inf")
        return batch

    poisoned.rows_VD, poisoned.softcap = maker.rows_VD, maker.softcap
    trainer._maker = poisoned


def test_a_step_that_is_not_finite_is_skipped_counted_and_changes_nothing(material, tmp_path):
    """K1, as the three laws after it."""
    trainer = make_trainer(material, tmp_path)
    trainer.run(stop_at=3)
    trainer = make_trainer(material, tmp_path)
    poison(trainer, {0, 1})
    before = checkpoint.load(tmp_path / CHECKPOINT)[0]
    trainer.run(stop_at=5)
    assert trainer.progress.skipped == 2
    after = checkpoint.load(tmp_path / CHECKPOINT)[0]
    assert all(torch.equal(before[name], after[name]) for name in before)
    trainer.run(stop_at=6)
    assert (trainer.progress.bad_in_row, trainer.progress.skipped) == (0, 2)


def test_three_such_steps_in_a_row_stop_the_training_and_name_the_answers(material, tmp_path):
    trainer = make_trainer(material, tmp_path)
    poison(trainer, {4, 5, 6})
    with pytest.raises(TrainingError, match=r"3 steps in a row.*answers \["):
        trainer.run()
    assert all(torch.isfinite(value).all() for value in weights(trainer).values())


def test_a_batch_without_labels_changes_nothing_and_is_counted(material, tmp_path):
    trainer = make_trainer(material, tmp_path)
    maker = trainer._maker

    def empty(indices):
        batch = maker(indices)
        batch.labels_KA[:] = -1
        return batch

    empty.rows_VD, empty.softcap = maker.rows_VD, maker.softcap
    trainer._maker = empty
    before = weights(trainer)
    trainer.run(stop_at=2)
    assert trainer.progress.empty == 2
    assert all(torch.equal(value, weights(trainer)[name]) for name, value in before.items())


def test_nothing_to_train_on_is_an_error(material, tmp_path):
    with pytest.raises(TrainingError, match="nothing to train on"):
        Trainer(FrozenMtpHead(CONFIG), RECIPE, make_maker(material), [0, 0], tmp_path)


def test_a_checkpoint_of_another_head_or_a_pickle_is_refused(material, tmp_path):
    make_trainer(material, tmp_path).run(stop_at=1)
    other = dataclasses.replace(CONFIG, d_ff=96)
    trainer = Trainer(FrozenMtpHead(other), RECIPE, make_maker(material), [1], tmp_path)
    with pytest.raises(TrainingError, match="another head"):
        trainer.run()
    torch.save({"a": torch.zeros(1)}, tmp_path / CHECKPOINT)
    with pytest.raises(TrainingError, match="not a checkpoint"):
        make_trainer(material, tmp_path).run()


def test_the_weights_that_decode_fastest_are_kept_not_those_with_the_most_accepted(
    material, tmp_path
):
    """K10: evaluation 3 has the best tau, its drafts cost too much, and evaluation 5 is fastest."""
    taus, steps = [1.0, 1.5, 3.0, 2.0, 2.5, 2.4], [10, 10, 500, 10, 10, 10]
    tries = iter(zip(taus, steps, strict=True))

    def evaluate(_head):
        tau, draft_steps = next(tries)
        return Trial(DecodeStats(passes=10, committed=int(10 * tau)), draft_steps, Costs([10.0], 1))

    recipe = dataclasses.replace(RECIPE, steps=6, evaluate_every=1)
    trainer = make_trainer(material, tmp_path, recipe)
    seen = []
    trainer.run(evaluate, lambda report: seen.append((report.tau, weights(trainer))))
    assert [tau for tau, _ in seen] == taus
    progress = checkpoint.load(tmp_path / CHECKPOINT)[1]
    assert (progress["best_step"], progress["best_tau"]) == (5, 2.5)
    kept = trainer.keep_best()
    assert (kept["step"], kept["tau"], kept["min_confidence"]) == (5, 2.5, 0.4)
    assert kept["expected_tok_s"] == pytest.approx(1000 * 25 / (10 * 10 + 10))
    expected = seen[4][1]
    assert all(torch.equal(value, weights(trainer)[name]) for name, value in expected.items())


def test_the_head_of_a_batch_is_the_head_of_each_anchor_alone(material):
    """No anchor sees another, another sequence, or a position after its own."""
    torch.manual_seed(1)
    head = FrozenMtpHead(CONFIG)
    together = head(make_maker(material)([3, 1, 7]))
    alone = [head(make_maker(material)([index])) for index in (3, 1, 7)]
    for step in range(2):
        parts = torch.cat([states[step] for states in alone])
        torch.testing.assert_close(together[step], parts)
    batch = make_maker(material)([3])
    batch.sequences[0].keys_LGRH[:, :, 8:] = 1e3
    batch.sequences[0].values_LGRH[:, :, 8:] = 1e3
    early = batch.positions_A < 8
    for clean, dirty in zip(alone[0], head(batch), strict=True):
        assert torch.equal(clean[early], dirty[early])
        assert not torch.equal(clean[~early], dirty[~early])


def test_attention_is_the_textbook_formula_with_grouped_heads():
    torch.manual_seed(2)
    q, k, v = torch.randn(5, 6, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 8)
    mask = torch.arange(7)[None] <= torch.arange(2, 7)[:, None]
    got = attend(q, k, v, mask).unflatten(1, (6, 8))
    for a in range(5):
        for n in range(6):
            scores = (k[n // 3] @ q[a, n]) / 8**0.5
            scores[~mask[a]] = float("-inf")
            torch.testing.assert_close(got[a, n], scores.softmax(0) @ v[n // 3])


def test_rope_turns_halves_of_a_head_by_the_position():
    x = torch.randn(3, 2, 8)
    positions = torch.tensor([0, 1, 40])
    got = rotate(x, rope_tables(positions, 8, 1e4))
    for a, place in enumerate([0, 1, 40]):
        for j in range(4):
            angle = place * 1e4 ** (-2 * j / 8)
            pair = torch.complex(x[a, :, j], x[a, :, j + 4]) * np.exp(1j * angle)
            torch.testing.assert_close(got[a, :, j], pair.real.float(), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(got[a, :, j + 4], pair.imag.float(), atol=1e-5, rtol=1e-5)


def test_replay_counts_passes_like_a_decode():
    matches = np.array([[1, 1, 0, 1, 1, 1], [1, 0, 0, 1, 1, 0]], dtype=bool)
    stats = DecodeStats()
    walk(matches, stats)  # accepts 2 of 2 and a next token, then 2 of 2 and a next token
    assert (stats.passes, stats.drafted, stats.accepted, stats.committed) == (2, 4, 4, 6)
    stats = DecodeStats()
    walk(np.zeros((2, 3), dtype=bool), stats)
    assert (stats.passes, stats.accepted, stats.committed) == (3, 0, 3)
    assert accept_at(stats) == [0.0, None]


def test_the_learning_rate_rises_over_the_warm_up_and_falls_to_zero():
    for schedule in ("cosine", "linear"):
        shares = [lr_share(place / 100, 0.1, schedule) for place in range(101)]
        assert shares[0] == 0 and shares[-1] == pytest.approx(0) and max(shares) == 1
        assert shares[5] == pytest.approx(0.5) and shares[10] == 1
        assert shares[10:] == sorted(shares[10:], reverse=True)
    assert lr_share(0.0, 0.0, "linear") == 1


def test_a_gradient_that_is_not_finite_is_caught_behind_a_finite_loss(material, tmp_path):
    trainer = make_trainer(material, tmp_path)
    trainer.head.pre_projection.weight.register_hook(lambda gradient: gradient * float("nan"))
    before = weights(trainer)
    trainer.run(stop_at=2)
    assert trainer.progress.skipped == 2
    assert all(torch.equal(value, weights(trainer)[name]) for name, value in before.items())


def test_averaged_weights_are_evaluated_and_exported_and_the_others_trained_on(material, tmp_path):
    recipe = dataclasses.replace(RECIPE, average=1.0, evaluate_every=4, lr=1e-2)
    alone, other = (make_trainer(material, tmp_path / part, recipe) for part in "ab")
    judge = judged(material)
    seen, last = [], []
    alone._optimizer.step = stepped(alone, last)
    alone.run(stop_at=4)

    def evaluate(head):
        seen.append(weights(other))
        return judge(head)

    other.run(evaluate, stop_at=4)
    mean = {name: sum(kept[name] for kept in last) / len(last) for name in last[0]}
    for name, value in weights(alone).items():
        assert torch.equal(value, weights(other)[name])
        torch.testing.assert_close(seen[-1][name], mean[name])
    for trainer in (alone, other):
        trainer.keep_best()
        for name, value in weights(trainer).items():
            torch.testing.assert_close(value, mean[name])


def stepped(trainer, kept):
    """The optimizer's step, remembering the weights after each."""
    step = trainer._optimizer.step

    def remembered(done):
        step(done)
        kept.append(weights(trainer))

    return remembered
