"""A head that starts from the backbone is of use before it has learned anything."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drafthead.heads.config import HeadConfig, TargetId
from drafthead.session import load
from drafthead.training.answers import AnswerStore
from drafthead.training.batching import BatchMaker
from drafthead.training.data import DraftVocabulary
from drafthead.training.features import FeatureStore
from drafthead.training.modules import FrozenMtpHead
from drafthead.training.own_answers import built_in_prompts
from drafthead.training.regen import Regenerator, RegenSettings, regenerate
from drafthead.training.warm_start import start_from_backbone

LAYER, HELD = 18, 6
pytestmark = pytest.mark.backbone


@pytest.fixture(scope="module")
def maker_and_answers(backbone_path, tmp_path_factory):
    session = load(backbone_path, head="none", drafter="none", threads=1)
    folder = tmp_path_factory.mktemp("start")
    settings = RegenSettings(max_tokens=40, capacity=512)
    worker = Regenerator(
        session.backbone, lambda row: session.encode(messages=row.messages),
        session.tokenizer.eos_ids, settings, sequences=12,
    )  # fmt: skip
    regenerate(worker, built_in_prompts(24, 1), folder / "answers", settings)
    answers = [
        answer for answer in AnswerStore(folder / "answers").rows() if len(answer.answer) > 3
    ]
    features = FeatureStore(folder / "features", session.backbone, answers, [LAYER])
    features.build()
    words = DraftVocabulary(np.arange(4096), session.backbone.spec.vocab_size)
    return (
        session,
        answers,
        BatchMaker(
            session.backbone.native, features, answers, words, 1, torch.float32, prompt_tokens=True
        ),
    )


@torch.no_grad()
def test_its_first_step_is_right_far_more_often_than_any_constant_or_a_random_start(
    maker_and_answers,
):
    """On answers that nothing was fitted to: a fifth of tokens, where one token is 7 % of them."""
    session, answers, maker = maker_and_answers
    spec, backbone = session.backbone.spec, session.backbone
    config = HeadConfig(
        d_model=spec.d_model, d_ff=512, n_heads=spec.n_heads, n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim, vocab_size=spec.vocab_size, draft_vocab_size=4096,
        rms_eps=spec.rms_eps, rope_base=spec.rope_base, trained_steps=1, kv_layers=(LAYER,),
        target=TargetId("b", spec.architecture, backbone.fingerprint,
                        backbone.tokenizer_fingerprint),
    )  # fmt: skip
    torch.manual_seed(0)
    random, started = FrozenMtpHead(config), FrozenMtpHead(config)
    start_from_backbone(started, config.kv_layers, backbone, maker, answers[:-HELD])
    batch = maker(range(len(answers) - HELD, len(answers)))
    labels = batch.labels_KA[0]

    def right(head):
        choices = (head(batch)[0] @ batch.rows_VD.T).argmax(-1)
        return int(((choices == labels) & (labels >= 0)).sum())

    often = int(torch.bincount(labels[labels >= 0]).max())  # right of the best head that is deaf
    assert right(started) > 2 * often > 2 * right(random)
