"""A head that has learned its answers by heart is accepted by the runtime that gave them.

Every index between the first pass and the last token must agree for that: which state meets which
token, which token is which label, the places of the draft vocabulary, the names of the tensors.
"""

from __future__ import annotations

import pytest
import torch

from drafthead.backbone.handle import Backbone
from drafthead.decoding.loop import Request, decode
from drafthead.drafters.mtp import MtpDrafter
from drafthead.evaluation.prompts import PromptRow
from drafthead.heads.config import HeadConfig, TargetId
from drafthead.heads.package import HeadPackage
from drafthead.training.batching import BatchMaker
from drafthead.training.data import anchor_count, select_vocabulary
from drafthead.training.export import export
from drafthead.training.features import FeatureStore
from drafthead.training.losses import Teacher, target_rows
from drafthead.training.modules import FrozenMtpHead
from drafthead.training.recipe import TrainRecipe
from drafthead.training.regen import Regenerator, RegenSettings
from drafthead.training.trainer import Trainer
from tests import fakes
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
def head(backbone, answers, words, maker, tmp_path_factory):
    """Trained on three answers until it knows them, exported and loaded."""
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
    export(folder / "head", config, weights, words.token_ids)
    return HeadPackage.load(folder / "head").build(backbone)


def test_a_head_that_knows_its_answers_by_heart_is_accepted(backbone, answers, head):
    drafter = MtpDrafter(head, STEPS, min_confidence=0.0)
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
