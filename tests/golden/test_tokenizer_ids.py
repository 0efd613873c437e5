"""The ids of real files are those of the models' own tokenizers, on more than 1,000 texts.

tokenizer_ids.json names what made them (scripts/make_tokenizer_golden.py); texts on which llama.cpp
differs are listed there, and docs/tokenizers.md says why.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from drafthead.backbone.registry import cache_folder
from drafthead.gguf.reader import read_gguf
from drafthead.text.tokenizer import Tokenizer

FOLDER = Path(__file__).parent
TEXTS: list[str] = json.loads((FOLDER / "tokenizer_texts.json").read_text("utf-8"))
IDS: dict[str, dict[str, Any]] = json.loads((FOLDER / "tokenizer_ids.json").read_text("utf-8"))
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA = "gemma-3-270m-Q4_K_M.gguf"
QWEN = "qwen2.5-coder-{}-instruct-q4_k_m.gguf"


def assert_ids(tokenizer: Tokenizer, expected: list[list[int]]) -> None:
    for text, ids in zip(TEXTS, expected, strict=True):
        assert tokenizer.encode(text) == ids, repr(text)


@pytest.mark.backbone
def test_smollm2(backbone_path: Path) -> None:
    """G3: every id as llama.cpp gives it; no BOS; two ends."""
    tokenizer = Tokenizer.from_gguf(read_gguf(backbone_path))
    assert_ids(tokenizer, IDS[SMOLLM2]["ids"])
    assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in TEXTS)
    assert tokenizer.eos_ids == {0, 2}
    assert not tokenizer.add_bos


@pytest.mark.backbone
@pytest.mark.parametrize("pre", ["default", "gpt-2"])
def test_smollm2_read_by_another_rule(backbone_path: Path, pre: str) -> None:
    """The same vocabulary under another tokenizer.ggml.pre, as llama.cpp reads it."""
    file = read_gguf(backbone_path)
    other = dataclasses.replace(file, metadata=file.metadata | {"tokenizer.ggml.pre": pre})
    changed = IDS[f"{SMOLLM2} as {pre}"]["changed"]
    expected = [changed.get(str(n), usual) for n, usual in enumerate(IDS[SMOLLM2]["ids"])]
    assert_ids(Tokenizer.from_gguf(other), expected)


def optional(name: str) -> Tokenizer:
    """A backbone that these tests can do without."""
    path = cache_folder() / name
    if not path.exists():
        pytest.skip(f"{name} is not in the cache")
    return Tokenizer.from_gguf(read_gguf(path))


@pytest.mark.backbone
@pytest.mark.parametrize("size", ["0.5b", "1.5b"])
def test_qwen(size: str) -> None:
    """G3: every id as the published tokenizer gives it; no BOS though the file names one."""
    tokenizer = optional(QWEN.format(size))
    assert_ids(tokenizer, IDS[QWEN.format("0.5b")]["ids"])
    assert tokenizer.eos_ids == {151643, 151645}
    assert not tokenizer.add_bos


@pytest.mark.backbone
def test_gemma() -> None:
    """G3: every id as the published tokenizer gives it; one BOS; </s> is markup, no end."""
    tokenizer = optional(GEMMA)
    assert_ids(tokenizer, IDS[GEMMA]["ids"])
    assert tokenizer.eos_ids == {1, 106}
    assert (tokenizer.add_bos, tokenizer.bos_id) == (True, 2)
    assert tokenizer.encode("</s>") == [212]
    written = [text for text in TEXTS if "\u2581" not in text]  # U+2581 is read as a space
    assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in written)
