"""Write tests/golden/tokenizer_ids.json: the ids that reference tokenizers give the golden texts.

    make_tokenizer_golden.py tokenizers MODEL.gguf tokenizer.json
    make_tokenizer_golden.py llama.cpp MODEL.gguf [PRE]

The first takes the model's own tokenizer.json, as Hugging Face publishes it, checks that it has
the vocabulary of the file, and keeps of its added tokens those that the file calls user-defined:
no text produces the others here. The second takes llama.cpp (`llama-cpp-python`): for a file that
has an entry already it only notes on which texts llama.cpp differs, otherwise its ids are the
entry. PRE is a value for tokenizer.ggml.pre to read the file with.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
TEXTS, IDS = GOLDEN / "tokenizer_texts.json", GOLDEN / "tokenizer_ids.json"


def from_tokenizers(gguf_path: Path, json_path: Path, texts: list[str]) -> list[list[int]]:
    """Encode with the published tokenizer."""
    import tokenizers

    from drafthead.gguf.reader import read_gguf
    from drafthead.text.vocabulary import USER_DEFINED, read_vocabulary

    published = json.loads(json_path.read_text("utf-8"))
    vocabulary = read_vocabulary(read_gguf(gguf_path))
    fixed = vocabulary.text_ids(USER_DEFINED)
    for token, token_id in published["model"]["vocab"].items():
        if token not in (
            vocabulary.tokens[token_id],
            vocabulary.tokens[token_id].replace(" ", "▁"),
        ):
            raise SystemExit(f"{json_path}: token {token_id} is {token!r}, not the file's.")
    # The others stay in the vocabulary, where no merge leads to them: ids have no gaps.
    added = published["added_tokens"]
    published["model"]["vocab"] |= {token["content"]: token["id"] for token in added}
    published["added_tokens"] = [{**t, "special": False} for t in added if t["id"] in fixed]
    published["post_processor"] = None
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(published))
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def from_llama_cpp(gguf_path: Path, pre: str | None, texts: list[str]) -> list[list[int]]:
    """Encode with llama.cpp."""
    import llama_cpp

    overrides = {"tokenizer.ggml.pre": pre} if pre else None
    model = llama_cpp.Llama(str(gguf_path), vocab_only=True, verbose=False, kv_overrides=overrides)
    # It reports an empty text as a failure.
    return [
        model.tokenize(text.encode(), add_bos=False, special=False) if text else []
        for text in texts
    ]


def compact(entries: dict[str, Any]) -> str:
    """Write one entry of a file a line."""
    lines = (
        f"{json.dumps(name)}:{json.dumps(entry, separators=(',', ':'))}"
        for name, entry in sorted(entries.items())
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(reference: str, gguf: str, *more: str) -> None:
    """Add or complete one entry."""
    texts = json.loads(TEXTS.read_text("utf-8"))
    entries = json.loads(IDS.read_text("utf-8")) if IDS.exists() else {}
    path = Path(gguf)
    if reference == "tokenizers":
        ids = from_tokenizers(path, Path(more[0]), texts)
        entries[path.name] = {"made_by": f"tokenizers {version('tokenizers')}", "ids": ids}
    else:
        ids = from_llama_cpp(path, more[0] if more else None, texts)
        made_by = f"llama.cpp in llama-cpp-python {version('llama-cpp-python')}"
        name = f"{path.name} as {more[0]}" if more else path.name
        own = entries.get(name)
        if more:  # only what the other rule makes of these texts
            usual = entries[path.name]["ids"]
            changed = {n: i for n, (i, u) in enumerate(zip(ids, usual, strict=True)) if i != u}
            entries[name] = {"made_by": made_by, "changed": changed}
        elif own is None or own["made_by"].startswith("llama.cpp"):
            entries[name] = {"made_by": made_by, "ids": ids}
        else:
            differs = [n for n, (i, o) in enumerate(zip(ids, own["ids"], strict=True)) if i != o]
            own |= {"compared_with": made_by, "differs": differs}
    IDS.write_text(compact(entries), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
