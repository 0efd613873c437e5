"""A head drafts token ids: it belongs to a vocabulary as much as to weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from drafthead.backbone.handle import Backbone
from drafthead.drafting import choose_head
from drafthead.errors import HeadError
from drafthead.heads.package import HeadPackage
from drafthead.heads.store import find_head
from tests.random_head import write_random_head
from tests.unit import gguf_bytes as made


def backbone(folder: Path, **tokenizer: object) -> Backbone:
    """The same weights with another tokenizer."""
    metadata = made.llama_metadata()
    metadata |= {f"tokenizer.ggml.{name}": value for name, value in tokenizer.items()}
    path = folder / "model.gguf"
    path.write_bytes(made.gguf(metadata, made.llama_tensors()))
    return Backbone.open(path, threads=1)


TOKENS = made.tokenizer_metadata()["tokenizer.ggml.tokens"]
OTHERS = {
    "a merge less": {"merges": made.MERGES[:-1]},
    "two merges in another order": {"merges": [*made.MERGES[:-2], *made.MERGES[:-3:-1]]},
    "an added token renamed": {"tokens": ["<|renamed|>", *TOKENS[1:]]},
    "another rule": {"pre": "qwen2"},
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_head_of_another_tokenizer_is_refused_with_the_field_named(tmp_path, other):
    """G1: width and weights fit, and yet the ids may mean something else; auto decodes plainly."""
    first = backbone(tmp_path)
    folder = write_random_head(tmp_path / "heads" / "one", first)
    package = HeadPackage.load(folder)
    package.build(first)
    second = backbone(tmp_path, **OTHERS[other])
    assert second.fingerprint == first.fingerprint
    for use in (package.build, lambda b: choose_head(b, folder)):
        with pytest.raises(HeadError, match="tokenizer_fingerprint is that of"):
            use(second)
    assert find_head(first, folder.parent) == folder
    assert find_head(second, folder.parent) is None
