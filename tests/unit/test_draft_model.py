"""Laws of training a standalone drafter: its size, its labels, its gradients, its first weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from drafthead.errors import TrainingError
from drafthead.heads.blocks import INT8, KINDS
from drafthead.heads.config import HeadConfig, TargetId
from drafthead.training.answers import Answer
from drafthead.training.data import anchor_count, data_digest
from drafthead.training.device import CPU
from drafthead.training.draft_file import file_tensors
from drafthead.training.draft_model import (
    DraftModel,
    TextBatches,
    first_size,
    start_embeddings,
)
from drafthead.training.draft_shape import (
    BLOCK,
    DraftShape,
    draft_shape,
    head_bytes,
    head_parameters,
)
from drafthead.training.inputs import Inputs
from drafthead.training.losses import unrolled_loss
from drafthead.training.parallel import Workers
from drafthead.training.recipe import StandaloneRecipe, TrainRecipe
from drafthead.training.standalone import for_tasks
from drafthead.training.trainer import Trainer
from tests.elsewhere import pretended

V = 96
SHAPE = DraftShape(V, width=32, layers=2, d_ff=64)
HEAD = HeadConfig(
    d_model=576, d_ff=1536, n_heads=9, n_kv_heads=3, head_dim=64, vocab_size=49152,
    draft_vocab_size=8192, kv_layers=(18,), rms_eps=1e-5, rope_base=1e5, trained_steps=3,
    target=TargetId("b", "llama", "f", "t"),
)  # fmt: skip
pytestmark = pytest.mark.usefixtures("one_thread")


def answers(count=12, seed=0):
    """Of different lengths, some too short to draft in."""
    rng = np.random.default_rng(seed)
    return [
        Answer(
            f"a{n}", f"task{n % 2}", tuple(rng.integers(0, V, 1 + n % 5).tolist()),
            tuple(rng.integers(0, V, 1 + n).tolist()), "stop",
        )
        for n in range(count)
    ]  # fmt: skip


def model(seed=0):
    torch.manual_seed(seed)
    return DraftModel(SHAPE, 1e4)


def test_every_answer_token_but_the_first_is_a_label_of_the_text_before_it():
    """The first one comes from the prefill. A place's own token is the one before its label."""
    rows = answers()
    batch = TextBatches(rows, V, torch.float32)(range(len(rows)))
    texts = [text.flatten()[places] for text, places in zip(batch.texts, batch.places, strict=True)]
    by_length = sorted(rows, key=lambda row: len(row.prompt_tokens) + len(row.answer))
    expected = [pair for row in by_length for pair in zip(row.answer, row.answer[1:], strict=False)]
    assert (
        list(zip(torch.cat(texts).tolist(), batch.labels_KA[0].tolist(), strict=True)) == expected
    )
    assert batch.inputs_KA[0].tolist() == [before for before, _ in expected]
    counts = [anchor_count(len(row.prompt_tokens), len(row.answer)) for row in by_length]
    assert [s.anchors.stop - s.anchors.start for s in batch.sequences] == counts


def test_an_answer_has_the_same_states_alone_and_among_others():
    """So padding is not seen. A sum of K terms is off by about √K 2^-24 of its size."""
    rows, trained = answers(), model()
    maker = TextBatches(rows, V, torch.float32)
    everything = maker(range(len(rows)))
    with torch.no_grad():
        together = trained(everything)[0]
        order = sorted(range(len(rows)), key=lambda n: len(rows[n].prompt_tokens + rows[n].answer))
        alone = torch.cat([trained(maker([index]))[0] for index in order])
    allowed = 4 * SHAPE.layers * SHAPE.d_ff**0.5 * 2.0**-24 * together.abs().max()
    assert (together - alone).abs().max() < allowed


def test_loss_and_gradients_are_those_of_the_whole_table_of_logits():
    """The embedding table learns twice: as input and, through the loss in pieces, as output."""
    rows, trained = answers(), model()
    batch = TextBatches(rows, V, torch.float32)(range(len(rows)))
    loss, _, _ = unrolled_loss(
        trained(batch), batch.rows_VD, batch, 1.0, learned_VB=trained.learned_rows
    )
    loss.backward()
    found = {name: weight.grad.clone() for name, weight in trained.named_parameters()}
    trained.zero_grad()
    logits = trained(batch)[0] @ trained.learned_rows.T
    expected = F.cross_entropy(logits, batch.labels_KA[0])
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, weight in trained.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-4, atol=1e-7, msg=name)


RECIPE = TrainRecipe(
    steps=12, unroll=1, loss="ce", batch_anchors=24, lr=3e-3, precision="f32", average=0.2,
    evaluate_every=5, checkpoint_every=4,
)  # fmt: skip


def trainer(folder, device=CPU):
    rows = answers()
    counts = [anchor_count(len(row.prompt_tokens), len(row.answer)) for row in rows]
    maker = TextBatches(rows, V, torch.float32).to(device)
    return Trainer(model().to(device), RECIPE, maker, counts, folder, Workers(device=device))


def test_a_training_that_was_stopped_has_the_bits_of_one_that_was_not(tmp_path):
    whole, half = trainer(tmp_path / "whole"), trainer(tmp_path / "parts")
    whole.run()
    half.run(stop_at=7)
    rest = trainer(tmp_path / "parts")
    torch.manual_seed(999)
    rest.run()
    assert rest.progress.step == whole.progress.step == 12
    for name, value in whole.head.state_dict().items():
        assert torch.equal(value, rest.head.state_dict()[name]), name
        assert not torch.equal(value, model().state_dict()[name]), name


def test_a_training_on_an_accelerator_never_touches_the_processor(tmp_path, monkeypatch):
    """The pretended one has the processor's bits, and what is written comes back from it."""
    here = trainer(tmp_path / "here")
    here.run()
    with pretended(monkeypatch) as device:
        there = trainer(tmp_path / "there", device)
        there.run()
        found = file_tensors(there.head)
    assert all((found[name] == value).all() for name, value in file_tensors(here.head).items())


@pytest.mark.parametrize("size", ["body", "bytes"])
@pytest.mark.parametrize("d_ff", [512, 1536, 4096])
@pytest.mark.parametrize("fixed", [{}, {"layers": 2}, {"width": 32}, {"width": 32, "layers": 5}])
def test_a_model_is_as_large_as_the_head_and_never_larger(size, d_ff, fixed):
    """One block more of the feed-forward part in every layer would be too much."""
    head = replace(HEAD, d_ff=d_ff)
    shape = draft_shape(StandaloneRecipe(size=size, **fixed), head)
    larger = replace(shape, d_ff=shape.d_ff + BLOCK)
    if size == "body":
        assert shape.body_parameters <= head_parameters(head) < larger.body_parameters
    else:
        assert shape.nbytes <= head_bytes(head) < larger.nbytes
    assert shape.width % BLOCK == shape.d_ff % BLOCK == 0
    assert shape.n_heads * shape.head_dim == shape.width and shape.n_heads % shape.n_kv_heads == 0
    assert shape.vocab_size == head.vocab_size
    assert {name: getattr(shape, name) for name in fixed} == fixed


@pytest.mark.parametrize("kind", KINDS.values())
def test_bytes_are_those_of_the_head_in_its_own_integers(kind):
    head = replace(HEAD, d_ff=4096, quantization=kind.name)
    assert draft_shape(StandaloneRecipe(size="bytes"), head).nbytes <= head_bytes(head)
    assert (head_bytes(head) < 0.6 * head_bytes(replace(head, quantization=INT8.name))) == (
        kind is not INT8
    )


def test_parameters_are_those_of_the_library():
    body = sum(w.numel() for w in model().parameters()) - SHAPE.embedding_parameters
    assert body == SHAPE.body_parameters


def test_a_vocabulary_too_large_for_the_bytes_is_refused():
    with pytest.raises(TrainingError, match="embedding table of 1000000 tokens"):
        draft_shape(StandaloneRecipe(size="bytes"), replace(HEAD, vocab_size=1_000_000))
    with pytest.raises(TrainingError, match=r"\[standalone\] width.*multiple of 32, found 40"):
        draft_shape(StandaloneRecipe(width=40), HEAD)


def test_a_wide_table_begins_with_the_backbones_angles_and_a_narrow_one_with_the_largest():
    """All directions kept, products are those of the centred rows, to scale; else the best ones."""
    rows = np.random.default_rng(3).normal(size=(V, 24)).astype(np.float32)
    rows[:, 0] *= 10
    wide, narrow = model(), DraftModel(replace(SHAPE, width=32), 1e4)
    start_embeddings(wide, rows, [])
    table = wide.learned_rows.detach().numpy()
    centred = rows - rows.mean(0)
    assert not table[:, 24:].any() or np.abs(table[:, 24:]).max() < 6 * first_size(32)
    kept = table[:, :24] @ table[:, :24].T
    products = centred @ centred.T
    np.testing.assert_allclose(kept / kept.max(), products / products.max(), atol=1e-5)
    much = np.concatenate([rows, np.zeros((V, 40), np.float32)], axis=1)
    start_embeddings(narrow, much, [])
    first = narrow.learned_rows.detach().numpy()[:, 0]
    assert abs(np.corrcoef(first, rows[:, 0])[0, 1]) > 0.99


def test_answers_of_some_tasks_alone_are_other_data():
    rows = answers()
    inputs = Inputs(rows[:8], rows[8:], None, data_digest(rows))
    assert for_tasks(inputs, []) is inputs
    some = for_tasks(inputs, ["task1"])
    assert {row.task for row in [*some.train, *some.heldout]} == {"task1"}
    assert len(some.train) == 4 and some.digest != inputs.digest
    with pytest.raises(
        TrainingError, match="No answer is of the task other; there are task0, task1"
    ):
        for_tasks(inputs, ["other"])
