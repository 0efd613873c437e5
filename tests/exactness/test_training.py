"""Laws that bind training to the runtime: it sees the runtime's bits and computes the same head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drafthead.backbone.handle import Segment
from drafthead.evaluation.prompts import PromptRow
from drafthead.heads.config import HeadConfig, TargetId
from drafthead.session import load
from drafthead.training.answers import Answer, AnswerStore
from drafthead.training.batching import BatchMaker
from drafthead.training.data import DraftVocabulary, anchor_table
from drafthead.training.export import export
from drafthead.training.features import FeatureStore
from drafthead.training.modules import FrozenMtpHead
from drafthead.training.prompts import digest
from drafthead.training.quantize import dequantize
from drafthead.training.regen import Regenerator, RegenSettings, regenerate
from drafthead.training.sampling import answer_seed

QUESTIONS = ("Name three colours.", "What is 7 times 8?", "Write a haiku about rain.", "Hi!")
KV_LAYERS, TAPS = (29, 11), (9, 19)
pytestmark = pytest.mark.backbone


@pytest.fixture(scope="module")
def session(backbone_path):
    return load(backbone_path, head="none", drafter="none", threads=1)


@pytest.fixture(scope="module")
def answered(session, tmp_path_factory):
    rows = [
        PromptRow(f"q{i}", "chat", ({"role": "user", "content": text},))
        for i, text in enumerate(QUESTIONS)
    ]
    settings = RegenSettings(max_tokens=24, capacity=256)
    worker = Regenerator(
        session.backbone, lambda row: session.encode(messages=row.messages),
        session.tokenizer.eos_ids, settings, sequences=3,
    )  # fmt: skip
    out = tmp_path_factory.mktemp("answers")
    regenerate(worker, rows, out, settings)
    return list(AnswerStore(out).rows())


@pytest.fixture(scope="module")
def features(session, answered, tmp_path_factory):
    folder = tmp_path_factory.mktemp("f")
    FeatureStore(folder, session.backbone, answered, KV_LAYERS, TAPS).build()
    store = FeatureStore(folder, session.backbone, answered, KV_LAYERS)
    store.build()
    return store


def test_an_answer_made_among_others_is_the_one_that_generate_gives(session, answered):
    for text, answer in zip(QUESTIONS, answered, strict=True):
        alone = session.generate(text, max_tokens=24, cut_loops=True)
        assert alone.tokens == answer.answer
        assert alone.finish_reason == answer.finish
        assert tuple(session.encode(text)) == answer.prompt_tokens


def test_so_is_a_sampled_one(session):
    rows = [
        PromptRow(f"q{i}", "chat", ({"role": "user", "content": text},))
        for i, text in enumerate(QUESTIONS)
    ]
    settings = RegenSettings(max_tokens=24, capacity=256, temperature=0.8, sampled=1.0, seed=3)
    worker = Regenerator(
        session.backbone, lambda row: session.encode(messages=row.messages),
        session.tokenizer.eos_ids, settings, sequences=3,
    )  # fmt: skip
    answers = {answer.id: answer.answer for answer in worker.answers(rows)}
    for text, row in zip(QUESTIONS, rows, strict=True):
        seed = answer_seed(3, digest(row))
        alone = session.generate(text, max_tokens=24, cut_loops=True, temperature=0.8, seed=seed)
        assert alone.tokens == answers[row.id]


def decode_step_by_step(backbone, answer, taps=()):
    """Feed an answer as plain decoding does and yield (hidden, cache) of each anchor."""
    cache = backbone.new_cache(256)
    fed = backbone.forward([Segment(cache, answer.prompt_tokens)], rows="last", taps=taps)
    for token in answer.answer[:-1]:
        yield fed.hidden[-1], cache
        fed = backbone.forward([Segment(cache, [token])], rows="last", taps=taps)


def test_training_sees_the_states_and_keys_of_the_runtime_to_the_bit(session, answered, features):
    for index, answer in enumerate(answered):
        states = features.hidden(index)
        for place, (hidden, _) in enumerate(decode_step_by_step(session.backbone, answer)):
            assert (states[place] == hidden.astype(np.float16)).all()
        *_, (_, cache) = decode_step_by_step(session.backbone, answer)
        kept = features.kv(index)
        for slot, layer in enumerate(KV_LAYERS):
            keys, values = cache.key_view(layer), cache.value_view(layer)
            for place in range(len(kept)):
                assert (kept[place, slot, 0] == keys[:, place // 16, :, place % 16]).all()
                assert (kept[place, slot, 1] == values[:, place]).all()


@pytest.mark.parametrize("taps", [TAPS, (19,), (19, 9)])
def test_training_sees_the_taps_of_the_runtime_to_the_bit(session, answered, features, taps):
    """K9. Taps on the disk serve every head that reads some of them."""
    folder = features.folder
    store = FeatureStore(folder, session.backbone, answered, KV_LAYERS[:1], taps)
    assert store.plan.missing_rows == 0
    store.build()
    for index, answer in enumerate(answered):
        rows = zip(
            store.hidden(index), decode_step_by_step(session.backbone, answer, taps), strict=True
        )
        assert all((kept == hidden.astype(np.float16)).all() for kept, (hidden, _) in rows)


VARIANTS = {
    "plain": {},
    "query bias and norm": {"attention_bias": True, "qk_norm": True},
    "no attention": {"kv_layers": (-1,)},
    "attention in the second layer": {"kv_layers": (-1, 29)},
    "markov bias": {"markov_rank": 64},
    "taps": {"taps": TAPS},
    "three positions": {"positions": 3},
    "int4": {"quantization": "int4_block32"},
    "prompt tokens": {"prompt_tokens": True},
    "prompt tokens and markov bias": {"prompt_tokens": True, "markov_rank": 64},
    "all of it": {"kv_layers": (29, -1), "markov_rank": 32, "taps": (19,), "positions": 3},
}


def make_head(session, folder, variant):
    """A random head, large enough in its attention that a wrong mask or position shows."""
    spec = session.backbone.spec
    config = HeadConfig(
        d_model=spec.d_model, d_ff=256, n_heads=spec.n_heads, n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim, vocab_size=spec.vocab_size, draft_vocab_size=4096,
        rms_eps=spec.rms_eps, rope_base=spec.rope_base, trained_steps=3,
        **{"kv_layers": KV_LAYERS, **variant},
        target=TargetId("b", spec.architecture, session.backbone.fingerprint,
                        session.backbone.tokenizer_fingerprint),
    )  # fmt: skip
    torch.manual_seed(3)
    module = FrozenMtpHead(config)
    with torch.no_grad():
        for layer in module.model.layers:
            if layer.self_attn is None:
                continue
            layer.self_attn.o_proj.weight *= 4
            if config.qk_norm:
                layer.self_attn.q_proj.bias.normal_()
                layer.self_attn.q_norm.weight.uniform_(0.5, 4)
        module.model.norm.weight *= 3
        if module.markov is not None:
            module.markov.previous.weight.normal_()
            # Tokens of the text have no bias: a large one would leave them no chance.
            module.markov.next.weight.normal_(std=0.2 if config.prompt_tokens else 1)
    weights = {name: value.numpy() for name, value in module.state_dict().items()}
    package = export(folder, config, weights, np.arange(4096))
    for name in config.matrices():
        blocks = dequantize(package.tensors[name], package.tensors[name + "_scale"])
        module.state_dict()[name].copy_(torch.from_numpy(blocks))
    return module, package.build(session.backbone)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_head_in_torch_is_the_head_in_the_core(
    session, answered, features, tmp_path, monkeypatch, variant
):
    """Teacher-forced and native drafts from the same anchors, every step, in the same batch."""
    monkeypatch.setattr(session.backbone, "taps", ())
    module, native = make_head(session, tmp_path / "h", variant)
    taps = variant.get("taps", ())
    assert session.backbone.taps == taps
    reads = [layer for layer in variant.get("kv_layers", KV_LAYERS) if layer >= 0]
    store = FeatureStore(features.folder, session.backbone, answered, reads, taps)
    store.build()
    words = DraftVocabulary(np.arange(4096), session.backbone.spec.vocab_size)
    prompt_tokens = variant.get("prompt_tokens", False)
    same = total = outside = 0
    for index, answer in enumerate(answered):
        text = np.array([*answer.prompt_tokens, *answer.answer])
        groups = np.unique(text // 16).tolist() if prompt_tokens else []
        drafts = []
        for place, (hidden, cache) in enumerate(
            decode_step_by_step(session.backbone, answer, taps)
        ):
            drafts.append(
                native.draft(cache, answer.answer[place], hidden, 3, [0.0], (), groups)[0]
            )
        if not drafts:
            continue
        batch = BatchMaker(
            session.backbone.native, store, answered, words, 3, torch.float32,
            prompt_tokens=prompt_tokens,
        )([index])  # fmt: skip
        fed = np.array(drafts).T  # (K, A): the head feeds itself here, not the answer
        inputs = np.concatenate([batch_inputs(answer), fed[:2]])
        embeddings = session.backbone.native.embed(inputs.reshape(-1).astype(np.int32))
        batch.embeddings_KAD.copy_(torch.from_numpy(embeddings).unflatten(0, inputs.shape))
        batch.inputs_KA.copy_(torch.from_numpy(words.to_index(inputs)))
        ids = np.concatenate([words.token_ids, words.more(text)]) if groups else words.token_ids
        with torch.no_grad():
            rows = module.score_rows(batch.rows_VD)
            chosen = torch.stack([(state @ rows.T).argmax(-1) for state in module(batch)])
        same += int((ids[chosen.numpy()] == fed).sum())
        total += fed.size
        outside += int((fed >= 4096).sum())
    assert total > 100 and (outside > 0) == prompt_tokens
    assert same / total > 0.9  # a random head has near-ties, and activations are int8 in the core


def batch_inputs(answer: Answer):
    return anchor_table(answer.prompt_tokens, answer.answer, 1).inputs_KA
