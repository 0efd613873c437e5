"""A head that has learned its answers by heart is accepted by the runtime that gave them.

Every index between the first pass and the last token must agree for that: which state meets which
token, which token is which label, the places of the draft vocabulary, the names of the tensors.
"""

from __future__ import annotations

import copy
import hashlib

import pytest
import torch

from drafthead.backbone.handle import Backbone
from drafthead.decoding.loop import Request, decode
from drafthead.drafters.base import NoDrafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.drafting import DrafterState
from drafthead.evaluation.prompts import PromptRow
from drafthead.heads.config import HeadConfig, TargetId
from drafthead.heads.package import WEIGHTS, HeadPackage
from drafthead.session import Session
from drafthead.training import pipeline, selection
from drafthead.training.batching import BatchMaker
from drafthead.training.data import DraftVocabulary, anchor_count, select_vocabulary
from drafthead.training.export import export
from drafthead.training.features import FeatureStore
from drafthead.training.inputs import Inputs
from drafthead.training.losses import Teacher, target_rows
from drafthead.training.modules import FrozenMtpHead
from drafthead.training.parallel import ALONE, Workers
from drafthead.training.recipe import TrainRecipe, parse_recipe
from drafthead.training.regen import Regenerator, RegenSettings
from drafthead.training.start_head import StartHead
from drafthead.training.trainer import Trainer
from tests import fakes
from tests.elsewhere import pretended
from tests.tiny import TinySpec, random_weights, write_tiny_llama

STEPS, ANSWER = 3, 40
KV_LAYERS = (1, 0)
SPEC = TinySpec(tied=False)
UNSAID = (
    0,
    4,
    11,
)  # groups of 16 ids; the draft vocabulary is the others, so that places are not ids


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    path = tmp_path_factory.mktemp("b") / "tiny.gguf"
    weights = random_weights(SPEC)
    weights["output"] *= 4  # sure of its choice
    weights["output"].reshape(-1, 16, SPEC.width)[list(UNSAID)] = 0
    write_tiny_llama(path, SPEC, weights=weights)
    return Backbone.open(path, threads=1)


@pytest.fixture(scope="module")
def answers(backbone):
    prompts = [
        PromptRow(f"{n}", "t", ({"role": "user", "content": f"{40 + n} 97 {90 - n}"},))
        for n in range(3)
    ]
    settings = RegenSettings(max_tokens=ANSWER, capacity=128)

    def encode(prompt):
        return [int(word) for word in prompt.messages[0]["content"].split()]

    worker = Regenerator(backbone, encode, frozenset(), settings, 2)
    return list(worker.answers(prompts))


def config_of(backbone, draft_vocab):
    spec = backbone.spec
    return HeadConfig(
        d_model=spec.d_model, d_ff=128, n_heads=spec.n_heads, n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim, vocab_size=spec.vocab_size, draft_vocab_size=draft_vocab,
        kv_layers=KV_LAYERS, rms_eps=spec.rms_eps, rope_base=spec.rope_base, trained_steps=STEPS,
        target=TargetId(backbone.name, spec.architecture, backbone.fingerprint,
                        backbone.tokenizer_fingerprint),
    )  # fmt: skip


@pytest.fixture(scope="module")
def words(backbone, answers):
    size = 16 * (backbone.spec.vocab_size // 16 - len(UNSAID))
    words = select_vocabulary(answers, (), backbone.spec.vocab_size, size)
    assert words.coverage(answers) == 1 and not {*words.token_ids // 16} & {*UNSAID}
    return words


@pytest.fixture(scope="module")
def maker(backbone, answers, words, tmp_path_factory):
    features = FeatureStore(tmp_path_factory.mktemp("f"), backbone, answers, KV_LAYERS)
    features.build()
    return BatchMaker(backbone.native, features, answers, words, STEPS, torch.float32)


@pytest.fixture(scope="module")
def package(backbone, answers, words, maker, tmp_path_factory):
    """A head trained on three answers until it knows them."""
    counts = [anchor_count(len(row.prompt_tokens), len(row.answer)) for row in answers]
    recipe = TrainRecipe(
        steps=50, unroll=STEPS, step_decay=1.0, batch_anchors=512, lr=1e-2, precision="f32"
    )
    folder = tmp_path_factory.mktemp("run")
    config = config_of(backbone, len(words))
    torch.manual_seed(0)
    trainer = Trainer(FrozenMtpHead(config), recipe, maker, counts, folder)
    trainer.run()
    weights = {name: value.numpy() for name, value in trainer.head.state_dict().items()}
    return export(folder / "head", config, weights, words.token_ids)


def test_a_head_that_knows_its_answers_by_heart_is_accepted(backbone, answers, package):
    drafter = MtpDrafter(package.build(backbone), STEPS, min_confidence=0.0)
    drafted = accepted = 0
    for row in answers:
        request = Request(row.prompt_tokens, len(row.answer), fakes.Letters())
        cache = backbone.new_cache(128)
        said = [event.token for event in decode(request, backbone, cache, drafter)]
        assert tuple(said) == row.answer
        drafted += request.stats.drafted
        accepted += request.stats.accepted
    assert drafted > 60
    assert accepted > 0.95 * drafted


AGAIN = """
[head]
name = "again"
backbone = "b"
kv_layers = [1, 0]
d_ff = 128
draft_vocab = {words}
prompt_tokens = false
quantization = "{blocks}"
[train]
steps = {steps}
lr = {lr}
precision = "f32"
start = "random"
evaluate_every = 1
[measure]
max_tokens = 40
"""


@pytest.fixture
def go_on(backbone, answers, words, package, monkeypatch, tmp_path):
    """Trains on from the head that knows its answers, two steps at a rate."""
    session = Session(
        backbone, fakes.ByteTokenizer((), backbone.spec.vocab_size), fakes.PlainTemplate(),
        NoDrafter(), DrafterState("none", False, "plain"),
    )  # fmt: skip
    step_ms = {}

    def cost(_session, rows):
        """What the run's own form takes; later the other's step, while all takes twice as long."""
        form, times = ("int8", 1) if len(rows) > 1 else ("int4", 2)
        rows_ms = {str(size): times * 10.0 for size in rows}
        return {"rows_ms": rows_ms, "draft_step_ms": times * step_ms[form]}

    monkeypatch.setattr(selection, "measure_cost", cost)

    def train(lr, workers=ALONE, name="again", steps=2, from_it=True, blocks="int8", int4_ms=1.0):
        step_ms.update(int8=1.0, int4=int4_ms)
        recipe = parse_recipe(AGAIN.format(words=len(words), lr=lr, steps=steps, blocks=blocks))
        start = StartHead.open(str(package.path), recipe, backbone) if from_it else None
        kept = DraftVocabulary(start.token_ids, backbone.spec.vocab_size) if start else words
        inputs = Inputs(answers, answers, kept, "digest", start)
        store = pipeline.feature_store(recipe, backbone, inputs, tmp_path / "features")
        store.build()
        reports = []
        outcome = pipeline.train(
            recipe, session, inputs, store, tmp_path / f"{name}-run", tmp_path / name,
            lambda report: reports.append(copy.deepcopy(report)), workers,
        )  # fmt: skip
        return outcome, reports

    return train


def test_a_training_goes_on_where_the_head_ended(go_on, package):
    """Judged before its first step, it accepts what it accepted; then it learns at a small rate."""
    outcome, reports = go_on(1e-5)
    assert reports[0].progress.step == 0 and reports[0].loss is None and reports[0].tau > 3
    assert [report.progress.step for report in reports] == [0, 1, 2]
    assert min(report.tau for report in reports) > 3
    assert (outcome.package.tensors["draft_token_ids"] == package.tensors["draft_token_ids"]).all()


@pytest.mark.parametrize(("int4_ms", "chosen"), [(0.5, "int4"), (1.0, "int8")])
def test_blocks_of_four_bits_are_taken_where_they_decode_faster(go_on, int4_ms, chosen):
    """Counts times costs decide. Of equals int8 stays; what each accepts is told."""
    outcome, _ = go_on(1e-5, blocks="auto", int4_ms=int4_ms)
    config = HeadPackage.load(outcome.package.path).config
    assert config.blocks.short == chosen
    speeds = config.training["expected_tok_s"]
    assert (speeds["int4"] > speeds["int8"]) == (chosen == "int4")
    assert outcome.acceptance.keys() == {"f32", "int8", "int4"}
    assert min(found["accept_at"][0] for found in outcome.acceptance.values()) > 0.95


@pytest.mark.parametrize("steps", [4, 8, 12])
def test_what_training_predicts_is_what_the_runtime_accepts(go_on, steps):
    """K8: replayed in f32 and decoded in int8, heads that have learned a part.

    Three points of the first step, which every draft has; few drafts have the others.
    """
    outcome, _ = go_on(3e-3, steps=steps, from_it=False)
    replayed, decoded = (outcome.acceptance[kind] for kind in ("f32", "int8"))
    assert 0.1 < decoded["accept_at"][0] < 0.99
    assert abs(replayed["accept_at"][0] - decoded["accept_at"][0]) <= 0.03
    assert abs(replayed["tau"] / decoded["tau"] - 1) <= 0.03


def test_a_head_that_training_spoils_comes_out_as_it_went_in(go_on, package):
    """The same int8 and so the same drafts: what no step moved loses nothing by the way."""
    outcome, reports = go_on(1.0)
    assert reports[-1].tau < 2 < reports[0].tau
    kept = outcome.package
    assert kept.config.training["kept"]["step"] == 0
    assert (kept.path / WEIGHTS).read_bytes() == (package.path / WEIGHTS).read_bytes()
    digest = hashlib.sha256((package.path / WEIGHTS).read_bytes()).hexdigest()
    assert kept.config.training["started_from"]["weights_sha256"] == digest


def test_a_training_on_an_accelerator_gives_the_same_package(go_on, monkeypatch):
    """States, keys and weights go there and back; the runtime judges what comes back."""
    here, _ = go_on(1e-3, name="here")
    with pretended(monkeypatch) as device:
        there, _ = go_on(1e-3, Workers(device=device), "there")
    weights = [(done.package.path / WEIGHTS).read_bytes() for done in (here, there)]
    assert weights[0] == weights[1]
    assert here.acceptance == there.acceptance
    assert here.acceptance["f32"]["tau"] > 3


def test_a_soft_targets_first_choice_is_the_answers_token(maker):
    """So the state that judges a label is the one that gave it; the one before gives another."""
    batch = maker([0, 2, 1])
    targets_KA = target_rows(batch.sequences, STEPS)
    counts = (targets_KA >= 0) & (batch.labels_KA >= 0)
    teacher = Teacher(batch.hidden_AD, maker.rows_VD)
    p_MV, _ = teacher(targets_KA[counts], batch.labels_KA[counts])
    same = (p_MV.argmax(-1) == batch.labels_KA[counts]).float().mean()
    assert counts.sum() > 300
    assert same > 0.9  # activations are int8 in the core: near-ties
