"""Laws of the training data: which state meets which token, what counts, and what it costs."""

from __future__ import annotations

import json
from itertools import chain

import numpy as np
import pytest
import torch
import trainee
from hypothesis import given
from hypothesis import strategies as st

from drafthead.errors import TrainingError
from drafthead.training.answers import Answer
from drafthead.training.batching import BatchMaker
from drafthead.training.data import (
    IGNORED,
    DraftVocabulary,
    anchor_count,
    anchor_table,
    batches,
    select_vocabulary,
    split,
)
from drafthead.training.features import HEADER, INDEX, KV, FeatureStore, kept_rows
from drafthead.training.modules import visible


def answer(name="a", prompt=(5, 6, 7), tokens=(20, 21, 22, 23), finish="length"):
    return Answer(name, "chat", tuple(prompt), tuple(tokens), finish)


def brute_force(prompt, tokens, steps):
    """Walk every decode of the answer that the runtime could begin: (n, inputs, labels) by step."""
    text = [*prompt, *tokens]
    rows = []
    for known in range(len(prompt) + 1, len(text)):  # tokens committed when a draft begins
        n = known - 1  # cache length: the last committed token is not fed yet
        inputs = [text[n + k] if n + k < len(text) else None for k in range(steps)]
        labels = [text[n + k + 1] if n + k + 1 < len(text) else None for k in range(steps)]
        rows.append((n, inputs, labels))
    return rows


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 5))
def test_anchors_are_exactly_the_drafts_the_runtime_could_begin(prompt_size, answer_size, steps):
    prompt = list(range(100, 100 + prompt_size))
    tokens = list(range(200, 200 + answer_size))
    table = anchor_table(prompt, tokens, steps)
    expected = brute_force(prompt, tokens, steps)
    assert len(table.positions_A) == anchor_count(prompt_size, answer_size) == len(expected)
    for place, (n, inputs, labels) in enumerate(expected):
        assert table.positions_A[place] + 1 == n  # h_{n-1}, and rope position n
        for k in range(steps):
            label = IGNORED if labels[k] is None else labels[k]
            assert table.labels_KA[k, place] == label
            if inputs[k] is not None:
                assert table.inputs_KA[k, place] == inputs[k]


def test_no_prompt_token_is_ever_a_label_and_the_end_token_is():
    table = anchor_table([1, 2, 3], [50, 51, trainee.EOS], 3)
    assert set(table.labels_KA.ravel()) == {51, trainee.EOS, IGNORED}


def test_an_answer_of_one_token_has_no_anchor():
    assert anchor_count(3, 1) == anchor_count(3, 0) == kept_rows(answer(tokens=(9,))) == 0


def test_every_step_sees_positions_up_to_the_anchor_and_none_after():
    mask = visible(torch.tensor([2, 3, 4]), 5)
    assert mask.tolist() == [
        [True, True, True, False, False],
        [True, True, True, True, False],
        [True, True, True, True, True],
    ]


def test_draft_ids_go_there_and_back_and_others_are_ignored():
    words = DraftVocabulary(np.array([*range(16, 32), *range(64, 80)]), 96)
    ids = words.token_ids[np.arange(32)]
    assert (words.to_index(ids) == np.arange(32)).all()
    assert words.to_index(np.array([15, 32, 95, IGNORED])).tolist() == [IGNORED] * 4


@given(st.sets(st.integers(0, 5), min_size=1), st.lists(st.integers(0, 99), max_size=9))
def test_the_text_adds_its_own_whole_groups_behind_the_vocabulary(known, text):
    """Of 100 ids the last 4 fill no group."""
    words = DraftVocabulary(np.concatenate([np.arange(16 * g, 16 * g + 16) for g in sorted(known)]),
                            100)  # fmt: skip
    more = words.more(np.array(text, np.int64))
    groups = sorted({token // 16 for token in text} - known - {6})
    assert more.tolist() == [token for g in groups for token in range(16 * g, 16 * g + 16)]
    both = np.concatenate([words.token_ids, more])
    assert (words.to_index(both, more) == np.arange(len(both))).all()
    others = np.setdiff1d(np.arange(100), both)
    assert (words.to_index(others, more) == IGNORED).all()
    assert (words.to_index(more) == IGNORED).all(), "the vocabulary itself is as it was"
    assert words.to_index(np.array([IGNORED]), more) == IGNORED


def test_coverage_counts_tokens_of_groups_that_the_answers_own_prompt_holds():
    words = DraftVocabulary(np.arange(16, 32), 100)
    said = [
        answer(prompt=(33, 97), tokens=(20, 40, 47, 50, 98)),  # 20; with the prompt 40 and 47
        answer(prompt=(50, 3), tokens=(51, 36, 21)),  # 21; with its own prompt 51, but not 36
    ]
    assert words.coverage(said) == 2 / 8
    assert words.coverage(said, prompt_tokens=True) == 5 / 8
    assert words.coverage([], prompt_tokens=True) is None


def test_the_vocabulary_is_the_most_said_aligned_groups_and_always_the_end_tokens():
    said = [answer(tokens=(33, 33, 34, 50), prompt=(80,) * 8)]
    words = select_vocabulary(said, {trainee.EOS}, 96, 48)
    assert sorted({token // 16 for token in words.token_ids.tolist()}) == [0, 2, 3]
    assert (np.diff(words.token_ids) > 0).all() and len(words) == 48
    assert select_vocabulary(said, {trainee.EOS}, 96, 64).token_ids[-1] == 95  # the prompt's, then
    assert words.coverage([answer(tokens=(33, 70))]) == 0.5
    assert words.coverage([]) is None
    for size in (0, 8, 40, 112):
        with pytest.raises(TrainingError, match=str(size)):
            select_vocabulary(said, {trainee.EOS}, 96, size)


def test_batches_hold_every_sequence_once_and_depend_on_seed_and_epoch_alone():
    counts = [3, 0, 7, 5, 9, 1, 4]
    packed = batches(counts, 10, 1, 0)
    assert sorted(chain.from_iterable(packed)) == [0, 2, 3, 4, 5, 6]
    assert all(sum(counts[i] for i in batch) >= 10 for batch in packed[:-1])
    assert packed == batches(counts, 10, 1, 0)
    assert packed != batches(counts, 10, 1, 1)


def test_the_split_does_not_move_an_answer_when_others_come():
    rows = [answer(f"id{i}") for i in range(400)]
    train, held = split(rows, 0.1)
    assert 20 < len(held) < 60
    assert split(rows[:100], 0.1)[1] == [row for row in held if row in rows[:100]]
    assert len(train) + len(held) == 400


ANSWERS = [
    answer("a", range(30, 50), range(50, 60)),
    answer("b", (3,), (9,)),
    answer("c", (4, 5), range(20, 41)),
]


@pytest.fixture
def features(tmp_path):
    store = FeatureStore(tmp_path, trainee.TinyBackbone(), ANSWERS, [2, 0])
    store.build()
    return store


def test_features_are_the_engines_states_and_the_caches_keys_and_values(features):
    backbone = trainee.TinyBackbone()
    for index, row in enumerate(ANSWERS):
        text = [*row.prompt_tokens, *row.answer]
        states, kv = features.hidden(index), features.kv(index)
        assert len(states) == anchor_count(len(row.prompt_tokens), len(row.answer))
        for place, state in enumerate(states):
            i = len(row.prompt_tokens) - 1 + place
            chosen = backbone.next_token(text[i - 1] if i else 0, text[i])
            assert (state == backbone.table[chosen].astype(np.float16)).all()
        for place in range(kept_rows(row)):
            for slot, layer in enumerate((2, 0)):
                assert (kv[place, slot] == trainee.kv_of(text[place], place, layer)).all()


def test_the_disk_plan_is_exact_and_a_plan_over_the_limit_is_refused(features, tmp_path):
    plan = features.plan
    on_disk = sum(path.stat().st_size for path in tmp_path.glob("*.f16"))
    assert plan.nbytes == on_disk
    assert plan.rows == sum(kept_rows(row) for row in ANSWERS)
    assert plan.missing_rows == 0
    plan.check(plan.nbytes)
    with pytest.raises(TrainingError, match="--max-disk"):
        plan.check(plan.nbytes - 1)


def test_features_resume_after_the_last_indexed_answer(features, tmp_path):
    again = trainee.TinyBackbone()
    FeatureStore(tmp_path, again, ANSWERS, [2, 0]).build()
    assert not again.widths
    lines = (tmp_path / INDEX).read_text().splitlines(keepends=True)
    (tmp_path / INDEX).write_text(lines[0] + lines[1][:9])  # a crash in the middle of a line
    store = FeatureStore(tmp_path, again, ANSWERS, [2, 0])
    assert store.plan.missing_rows == kept_rows(ANSWERS[2])
    store.build()
    assert again.widths == [kept_rows(ANSWERS[2])]
    for index in range(len(ANSWERS)):
        assert (store.hidden(index) == features.hidden(index)).all()
        assert (store.kv(index) == features.kv(index)).all()


@pytest.mark.parametrize("layers", [[2, 0], [1]], ids=["the same", "other layers"])
def test_opening_features_changes_no_file(features, tmp_path, layers):
    """Another process may be writing them: what lies behind the index is its own."""
    with (tmp_path / KV).open("ab") as out:
        out.write(b"not in the index yet")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert FeatureStore(tmp_path, trainee.TinyBackbone(), ANSWERS, layers).plan.nbytes
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    more = [answer("d", (8, 9), (30, 31, 32)), *ANSWERS]
    store = FeatureStore(tmp_path, trainee.TinyBackbone(), more, layers)
    store.build()
    assert (tmp_path / KV).stat().st_size == sum(map(kept_rows, more)) * store.kv(0)[:1].nbytes


def test_more_answers_are_added_to_the_features_of_the_first(features, tmp_path):
    again = trainee.TinyBackbone()
    more = [answer("d", (8, 9), (30, 31, 32)), *ANSWERS]
    store = FeatureStore(tmp_path, again, more, [2, 0])
    store.build()
    assert again.widths == [kept_rows(more[0])]
    assert (store.kv(3) == features.kv(2)).all()


def test_a_head_reads_some_of_the_stored_layers_and_other_layers_begin_anew(features, tmp_path):
    again = trainee.TinyBackbone()
    store = FeatureStore(tmp_path, again, ANSWERS, [0])
    store.build()
    assert not again.widths
    assert (store.kv(0) == features.kv(0)[:, 1:]).all()
    FeatureStore(tmp_path, again, ANSWERS, [1]).build()
    assert sum(again.widths) == sum(kept_rows(row) for row in ANSWERS)


def test_features_of_another_backbone_begin_anew_and_a_short_file_is_named(features, tmp_path):
    (tmp_path / KV).write_bytes(b"")
    with pytest.raises(TrainingError, match=r"kv\.f16 has 0 of"):
        FeatureStore(tmp_path, trainee.TinyBackbone(), ANSWERS, [0])
    header = json.loads((tmp_path / HEADER).read_text())
    (tmp_path / HEADER).write_text(json.dumps(header | {"fingerprint": "0" * 64}))
    again = trainee.TinyBackbone()
    FeatureStore(tmp_path, again, ANSWERS, [0]).build()
    assert sum(again.widths) == sum(kept_rows(row) for row in ANSWERS)


def test_a_batch_pairs_each_anchor_with_its_tokens_states_and_keys(features):
    backbone = trainee.TinyBackbone()
    words = DraftVocabulary(np.arange(16, 64), trainee.V)
    maker = BatchMaker(backbone, features, ANSWERS, words, 2, torch.float32)
    batch = maker([2, 0])
    tables = [anchor_table(ANSWERS[i].prompt_tokens, ANSWERS[i].answer, 2) for i in (2, 0)]
    inputs = np.concatenate([table.inputs_KA for table in tables], axis=1)
    labels = np.concatenate([table.labels_KA for table in tables], axis=1)
    assert (batch.embeddings_KAD.numpy() == backbone.table[inputs]).all()
    assert (batch.inputs_KA.numpy() == words.to_index(inputs)).all()
    assert (batch.labels_KA.numpy() == words.to_index(labels)).all()
    for sequence, index in zip(batch.sequences, (2, 0), strict=True):
        assert (batch.hidden_AD[sequence.anchors].numpy() == features.hidden(index)).all()
        keys = features.kv(index)[:, :, 0].astype(np.float32)  # (R, L, G, H)
        assert (sequence.keys_LGRH.numpy() == keys.transpose(1, 2, 0, 3)).all()
        assert batch.positions_A[sequence.anchors].max() == sequence.keys_LGRH.shape[2] - 1


@pytest.mark.parametrize("prompt_tokens", [True, False])
def test_labels_outside_the_vocabulary_count_where_the_text_may_be_drafted(features, prompt_tokens):
    """Each label's row is its own token's; a batch has the rows of its own texts and no others."""
    backbone = trainee.TinyBackbone()
    words = DraftVocabulary(np.arange(16, 32), trainee.V)
    maker = BatchMaker(backbone, features, ANSWERS, words, 2, torch.float32, 0.0, prompt_tokens)
    for indices in ([2, 0], [0]):
        batch = maker(indices)
        tables = [anchor_table(ANSWERS[i].prompt_tokens, ANSWERS[i].answer, 2) for i in indices]
        inputs = np.concatenate([table.inputs_KA for table in tables], axis=1)
        labels = np.concatenate([table.labels_KA for table in tables], axis=1)
        known = (labels // 16 == 1) | (prompt_tokens & (labels != IGNORED))
        assert ((batch.labels_KA.numpy() != IGNORED) == known).all()
        places = batch.labels_KA.numpy()[known]
        assert (batch.rows_VD.numpy()[places] == backbone.table[labels[known]]).all()
        assert (places >= 16).any() == prompt_tokens
        assert (batch.rows_VD[:16] == maker.rows_VD).all()
        texts = {t // 16 for i in indices for t in (*ANSWERS[i].prompt_tokens, *ANSWERS[i].answer)}
        assert len(batch.rows_VD) == 16 * (len(texts | {1}) if prompt_tokens else 1)
        # The Markov bias knows the vocabulary alone.
        assert (batch.inputs_KA.numpy() == words.to_index(inputs)).all()


def test_the_vocabulary_of_a_prefix_is_the_first_ids():
    found = select_vocabulary(ANSWERS, [trainee.EOS], trainee.V, 48, "prefix")
    assert found.token_ids.tolist() == list(range(48))
