"""Every architecture decodes with every drafter as it does without one, on tiny random models.

Four prompts of one token on; windowed layers see 16 cells, and the last answer wraps their rings.
"""

from __future__ import annotations

import pytest

from drafthead.backbone.handle import Backbone
from drafthead.drafters.base import NoDrafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.heads.package import HeadPackage
from tests import hf
from tests.exactness.test_decode import doubles, run
from tests.random_head import write_random_head
from tests.windowed import same_cells

TOKENS = [int(t) % 112 for t in range(7, 700, 5)]


@pytest.fixture(scope="module", params=hf.MODELS)
def family(request, tmp_path_factory):
    """A backbone and a head of random weights that fits it."""
    folder = tmp_path_factory.mktemp("family")
    model = hf.tiny_model(request.param)
    model.model.embed_tokens.weight.data *= 0.05  # or tied ones answer a token with itself for ever
    hf.write_gguf(request.param, model, folder / "tiny.gguf")
    backbone = Backbone.open(folder / "tiny.gguf", threads=1)
    return backbone, HeadPackage.load(write_random_head(folder / "head", backbone)).build(backbone)


@pytest.mark.parametrize("size", [1, 15, 16, 120])
def test_every_family_decodes_as_plain_with_every_drafter(family, size):
    """A1, A5, A7: drafts on every step, on every third, wrong, random or broken:
    the tokens are plain's, and so are the cells."""
    backbone, head = family
    prompt = TOKENS[:size]
    expected, _, plain = run(backbone, NoDrafter(), prompt, 200)
    assert len(set(expected)) > 10
    drafters = [MtpDrafter(head, 4, min_confidence=0.0)]
    drafters += doubles(expected, prompt, backbone.spec.vocab_size, k=3)
    for drafter in drafters:
        tokens, request, cache = run(backbone, drafter, prompt, 200)
        assert tokens == expected, drafter
        assert same_cells(backbone, cache, plain), drafter
        assert request.stats.drafted > 0
