"""A GGUF file made of a freshly trained tokenizer gives that tokenizer's own ids.

The references are the `tokenizers` and `sentencepiece` libraries, fed with the definitions that
the models of each family publish; the vocabularies are small and trained on the golden texts, so
every rule meets text of many scripts, code, digits, white space and emoji.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import gguf_bytes as made
import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from drafthead.gguf.reader import read_gguf
from drafthead.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden"
TEXTS: list[str] = json.loads((GOLDEN / "tokenizer_texts.json").read_text("utf-8"))
CONTROL, FIXED = ["<|endoftext|>", "<|im_end|>"], ["<tool>", "</tool>"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
PIECES = st.lists(st.sampled_from([t for t in TEXTS if 0 < len(t) < 12] + FIXED)).map("".join)

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PLAIN_BYTES = BYTES | {"use_regex": False}
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def chain(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False
    }  # fmt: skip


# As in the tokenizer.json of GPT-2, SmolLM2, Qwen2.5 and Llama 3: pre-tokenizer, normalizer.
PUBLISHED = {
    "gpt-2": (BYTES, None),
    "smollm": (chain({"type": "Digits", "individual_digits": True}, BYTES), None),
    "qwen2": (chain(split(WORDS % ""), PLAIN_BYTES), {"type": "NFC"}),
    "llama-bpe": (chain(split(WORDS % "{1,3}"), PLAIN_BYTES), None),
    "smaug-bpe": (chain(split(WORDS % "{1,3}"), PLAIN_BYTES), None),
}


def written(folder: Path, metadata: dict[str, object]) -> Tokenizer:
    path = folder / "tokenizer.gguf"
    path.write_bytes(made.gguf({f"tokenizer.ggml.{k}": v for k, v in metadata.items()}, {}))
    return Tokenizer.from_gguf(read_gguf(path))


def trained_bytes(pre: str) -> tokenizers.Tokenizer:
    """A reference tokenizer of a family, with 2,000 tokens."""
    pre_tokenizer, normalizer = PUBLISHED[pre]
    definition = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE", "vocab": {}, "merges": [],
            "ignore_merges": pre in ("llama-bpe", "smaug-bpe"),
        },
    }  # fmt: skip
    reference = tokenizers.Tokenizer.from_str(json.dumps(definition))
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2000,
        show_progress=False,
        special_tokens=CONTROL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    reference.train_from_iterator(TEXTS, trainer)
    reference.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in FIXED])
    reference.encode_special_tokens = True  # control tokens are text
    return reference


def as_gguf(reference: tokenizers.Tokenizer, pre: str, folder: Path) -> Tokenizer:
    definition = json.loads(reference.to_str())
    added = {token["content"]: token["id"] for token in definition["added_tokens"]}
    vocab = definition["model"]["vocab"] | added
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = [3 if t in CONTROL else 4 if t in FIXED else 1 for t in tokens]
    merges = [m if isinstance(m, str) else " ".join(m) for m in definition["model"]["merges"]]
    return written(
        folder,
        {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": merges},
    )


@pytest.fixture(scope="module", params=sorted(PUBLISHED))
def byte_pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    reference = trained_bytes(request.param)
    return as_gguf(reference, request.param, tmp_path_factory.mktemp("bytes")), reference


def test_byte_level_ids_are_the_references(
    byte_pair: tuple[Tokenizer, tokenizers.Tokenizer],
) -> None:
    """Each pre-tokenizer on every golden text."""
    tokenizer, reference = byte_pair
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text, add_special_tokens=False).ids, repr(text)


@given(text=st.one_of(TEXT, PIECES))
@settings(max_examples=200, deadline=None)
def test_byte_level_ids_of_any_text(
    byte_pair: tuple[Tokenizer, tokenizers.Tokenizer], text: str
) -> None:
    """And on whatever else there is."""
    tokenizer, reference = byte_pair
    assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False).ids


def test_a_word_that_is_a_token_needs_no_merges(tmp_path: Path) -> None:
    """Llama 3 takes a whole word from the vocabulary first; the others only follow merges."""
    vocabulary = {
        "tokens": [*made.byte_alphabet(), "ab", "abc"],
        "token_type": [1] * 258,
        "merges": ["a b"],
    }
    expected = {"llama-bpe": [257], "smaug-bpe": [257], "qwen2": [256, ord("c")]}
    for pre, ids in expected.items():
        tokenizer = written(tmp_path, {"model": "gpt2", "pre": pre, **vocabulary})
        assert tokenizer.encode("abc") == ids, pre


def trained_pieces(**options: object) -> sentencepiece.SentencePieceProcessor:
    """A reference tokenizer of 2,000 pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([t for t in TEXTS if "\x00" not in t]),
        model_writer=model,
        model_type="bpe",
        vocab_size=2000,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=3,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def pieces_as_gguf(
    reference: sentencepiece.SentencePieceProcessor, folder: Path, fixed: list[str], prefix: bool
) -> Tokenizer:
    ids = range(reference.get_piece_size())
    tokens = [reference.id_to_piece(i) for i in ids]
    kinds = [
        2 if reference.is_unknown(i)
        else 3 if reference.is_control(i)
        else 6 if reference.is_byte(i)
        else 4 if tokens[i] in fixed
        else 1
        for i in ids
    ]  # fmt: skip
    # GGUF files write the spaces of user-defined pieces as spaces.
    tokens = [t.replace("\u2581", " ") if k == 4 else t for t, k in zip(tokens, kinds, strict=True)]
    return written(
        folder,
        {
            "model": "llama",
            "tokens": tokens,
            "token_type": kinds,
            "scores": [float(reference.get_score(i)) for i in ids],
            "add_space_prefix": prefix,
        },
    )


SPACES = ["\u2581" * n for n in range(2, 12)]
KINDS = {
    "llama": ({"add_dummy_prefix": True, "split_digits": True}, []),
    "gemma": (
        {
            "add_dummy_prefix": False, "split_digits": True,
            "user_defined_symbols": [*SPACES, "\t\t", "\t", "\n\n", "\n", "<b>", "</b>"],
        },
        [*SPACES, "\t\t", "\t", "\n\n", "\n", "<b>", "</b>"],
    ),
    "across words": ({"add_dummy_prefix": True, "split_by_whitespace": False}, []),
    "few across words": (
        {"add_dummy_prefix": False, "split_by_whitespace": False, "max_sentencepiece_length": 3}, []
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=sorted(KINDS))
def piece_pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, sentencepiece.SentencePieceProcessor]:
    options, fixed = KINDS[request.param]
    reference = trained_pieces(**options)
    folder = tmp_path_factory.mktemp("pieces")
    return pieces_as_gguf(reference, folder, fixed, bool(options["add_dummy_prefix"])), reference


def test_sentencepiece_ids_are_the_references(
    piece_pair: tuple[Tokenizer, sentencepiece.SentencePieceProcessor],
) -> None:
    """Ids and the text that comes back, on every golden text."""
    tokenizer, reference = piece_pair
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text), repr(text)
        assert tokenizer.decode(ids) == reference.decode(ids), repr(text)


@given(text=st.one_of(TEXT, PIECES))
@settings(max_examples=300, deadline=None)
def test_sentencepiece_ids_of_any_text(
    piece_pair: tuple[Tokenizer, sentencepiece.SentencePieceProcessor], text: str
) -> None:
    """And on whatever else there is."""
    tokenizer, reference = piece_pair
    assert tokenizer.encode(text) == reference.encode(text)
