"""Every feature of decoding gives the same answer with any drafter, on any model, cold or reused.

Pairwise: every value of every factor meets every value of every other one. An answer is the same
where its tokens, its text, its reason to end, and each log-probability, bit for bit, are those of
plain decoding in a fresh session. DRAFTHEAD_MATRIX_ROUNDS repeats the matrix with other prompts.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import numpy as np
import pytest

from drafthead import session as session_module
from drafthead.backbone.handle import Backbone
from drafthead.decoding.policy import Adaptive, AsDrafted
from drafthead.drafters.jacobi import JacobiDrafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.drafters.ngram import NgramDrafter
from drafthead.heads.package import HeadPackage
from drafthead.session import Session, load
from drafthead.stream import Result
from tests import fakes
from tests.exactness.test_reuse import open_model, session
from tests.pairwise import pairwise
from tests.random_head import write_random_head

ROUNDS = int(os.environ.get("DRAFTHEAD_MATRIX_ROUNDS", "1"))

FACTORS = {
    "model": ["llama", "windowed", "soft-capped"],
    "drafter": [
        "RANDOM", "ORACLE", "ORACLE-1", "ORACLE-3", "SKIPPING", "NaN", "ngram", "jacobi", "mtp",
    ],
    "policy": ["as drafted", "automatic"],
    "cache": ["cold", "reused", "abandoned"],
    "prompt": [1, 30, 600],
    "temperature": [0, 1e-6, 0.3, 1, 2],
    "narrow": [
        {}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"typical_p": 0.7},
        {"top_k": 50, "top_p": 0.95, "min_p": 0.01},
    ],
    "shape": [
        {}, {"repetition_penalty": 1.3}, {"frequency_penalty": 0.6}, {"presence_penalty": -0.5},
        {"logit_bias": {65: 100, 66: 99.5}}, {"logit_bias": {65: -100}, "presence_penalty": 1.5},
    ],
    "tell": [{}, {"logprobs": 0}, {"logprobs": 4}, {"logprobs": 2, "prompt_logprobs": True}],
    "structure": [
        {}, {"regex": "([a-h ]{7}(xyz|\u00e9))+"},
        {"json_schema": {"type": "array", "items": {"type": "string"}, "minItems": 3}},
    ],
    "end": ["limit", "stop text", "stop texts", "stop id", "end of sequence", "ignored", "loop"],
    "tokens": [1, 2, 40, 150],
}  # fmt: skip
CASES = pairwise(FACTORS)


@dataclass
class Model:
    backbone: Backbone
    head: object


@pytest.fixture(scope="module")
def models(tiny_path, tmp_path_factory):
    backbones = {
        "llama": Backbone.open(tiny_path, threads=1),
        "windowed": open_model(16),
        "soft-capped": open_model(0),
    }
    made = {}
    for name, backbone in backbones.items():
        folder = write_random_head(tmp_path_factory.mktemp("heads") / name, backbone)
        made[name] = Model(backbone, HeadPackage.load(folder).build(backbone))
    return made


def bits(logprob):
    return None if logprob is None else struct.pack("d", logprob)


def told(scored):
    return scored.token, bits(scored.logprob), [(o.token, bits(o.logprob)) for o in scored.top]


def everything_said(result: Result):
    events = [(event.text, *told(event)) for event in result.events]
    joined = "".join(event.text for event in result.events)
    prompt = [told(scored) for scored in result.prompt_logprobs]
    assert joined == result.text
    return result.tokens, result.text, result.finish_reason, events, prompt


def undrafted(plain: Session, prompt, **options) -> Result:
    """An answer without any draft: not even what a grammar forces is drafted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_module, "ForcedDrafter", lambda inner, guide: inner)
        result = plain.with_drafter("none").generate(prompt, **options)
    assert result.stats.drafted == 0
    return result


def ending(how, plain: Session, prompt, options):
    """Options that end the answer as asked for, somewhere in the middle where it can."""
    free = plain.generate(prompt, max_tokens=60, ignore_eos=True, **options)
    text, middle = free.text, free.tokens[len(free.tokens) // 2]
    half = len(text) // 2
    return {
        "limit": {},
        "ignored": {"ignore_eos": True},
        "end of sequence": {"eos": middle},
        "stop id": {"stop_ids": [middle, 7]},
        "stop text": {"stop": text[half : half + 3] or "none"},
        "stop texts": {"stop": [text[half : half + 4] + "!", text[half + 1 : half + 3] or "none"]},
        "loop": {"cut_loops": True},
    }[how]


def drafter_of(name, model, expected, prompt):
    at = {
        "answer": expected, "prompt_tokens": len(prompt), "k": 5, "vocab_size": 272,
        "check_hidden": False,
    }  # fmt: skip
    return {
        "RANDOM": lambda: fakes.RandomDrafter(vocab_size=272, check_hidden=False),
        "ORACLE": lambda: fakes.OracleDrafter(**at),
        "ORACLE-1": lambda: fakes.OracleDrafter(right=1, **at),
        "ORACLE-3": lambda: fakes.OracleDrafter(right=3, **at),
        "SKIPPING": lambda: fakes.SkippingDrafter(**at),
        "NaN": lambda: fakes.NanDrafter(**at),
        "ngram": NgramDrafter,
        "jacobi": JacobiDrafter,
        "mtp": lambda: MtpDrafter(model.head, 4, min_confidence=0.0),
    }[name]()


def used(how, drafted: Session, prompt):
    """A session that has answered before, or was left in the middle of an answer."""
    if how == "reused":
        drafted.generate([*prompt[: len(prompt) // 2], 9, 9], max_tokens=10)
    if how == "abandoned":
        stream = drafted.stream(prompt, max_tokens=30, temperature=1, seed=1)
        for _ in range(7):
            next(stream, None)


def compare(case, models, seed):
    """Answer plainly and with drafts; returns the answers' tokens and the drafts' counts."""
    model = models[case["model"]]
    rng = np.random.default_rng(seed)
    prompt = [int(token) for token in rng.integers(0, 256, case["prompt"])]
    options = {"temperature": case["temperature"], "seed": seed, **case["narrow"], **case["shape"]}
    options |= case["structure"]
    plain = session(model.backbone)
    plain.tokenizer.eos_ids = frozenset()
    end = ending(case["end"], plain, prompt, options)
    eos_ids = frozenset({end.pop("eos")}) if "eos" in end else frozenset()
    options |= {**case["tell"], **end, "max_tokens": case["tokens"]}
    plain = session(model.backbone)
    plain.tokenizer.eos_ids = eos_ids
    expected = undrafted(plain, prompt, **options)
    drafted = session(model.backbone, drafter_of(case["drafter"], model, expected.tokens, prompt))
    drafted.policy = {"as drafted": AsDrafted, "automatic": Adaptive}[case["policy"]]()
    used(case["cache"], drafted, prompt)
    drafted.tokenizer.eos_ids = eos_ids
    found = drafted.generate(prompt, **options)
    assert everything_said(found) == everything_said(expected), (case, seed)
    assert found.stats.committed == found.stats.passes + found.stats.accepted - found.stats.cut
    return expected, found


def test_every_pair_of_features_answers_as_plain(models):
    """C1-C7, D1-D8, B8, B9 at once; drafts are accepted and stops met, or it would be no test."""
    tokens = accepted = rejected = 0
    reasons = set()
    for at in range(ROUNDS):
        for index, case in enumerate(CASES):
            expected, found = compare(case, models, seed=1000 * at + index)
            tokens += len(expected.tokens)
            accepted += found.stats.accepted
            rejected += found.stats.drafted - found.stats.accepted
            reasons.add((case["end"], found.finish_reason, bool(case["structure"])))
    print(f"{ROUNDS * len(CASES)} cases, {tokens} tokens, {accepted} accepted, {rejected} rejected")
    assert accepted > tokens / 10
    assert rejected > tokens / 10
    stops = {end for end, reason, structured in reasons if reason == "stop" and not structured}
    assert stops == {"stop text", "stop texts", "stop id", "end of sequence"}


@pytest.mark.backbone
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.3, "seed": 1, "logprobs": 3},
        {"temperature": 1, "seed": 2, "top_p": 0.9, "logprobs": 0, "prompt_logprobs": True},
        {"temperature": 0.7, "seed": 3, "repetition_penalty": 1.2, "stop": [" the", "\n\n"]},
        {"frequency_penalty": 0.5, "logit_bias": {198: -100}, "logprobs": 1},
    ],
)
def test_the_embedded_backbone_and_its_head_answer_as_plain(backbone_path, options):
    """D1, D5: real logits, a real head, text that is accepted."""
    loaded = load(backbone_path, threads=1)
    asked = {"prompt": "Why is the sky blue?", "max_tokens": 40, **options}
    expected = loaded.with_drafter("none").generate(**asked)
    loaded.forget()
    found = loaded.generate(**asked)
    assert everything_said(found) == everything_said(expected)
    assert found.stats.drafted > 0
    print(found.stats.accepted, "accepted of", found.stats.drafted, options)
