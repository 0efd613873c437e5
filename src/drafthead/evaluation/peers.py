"""Other engines beside drafthead: the same file, the same tokens in, the same threads.

llama.cpp is reached through the low-level functions of its Python binding. Logits are read where it
keeps them and not copied, so that what is timed is the engine. Shapes: R output rows, V vocabulary.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from drafthead.errors import CapacityError, FileError, UnsupportedError

PEERS = ("llama.cpp",)
BATCH_ROWS = 512
# Threads of either engine spin for a while after their last pass, on cores that the other needs.
SETTLE_S = 0.02


class Peer(Protocol):
    """An engine with one sequence of at most `context` tokens."""

    name: str
    context: int

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the sequence."""

    def choose(self, tokens: Sequence[int]) -> int:
        """Append tokens and return the greedy choice after the last."""

    def choose_rows(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        """Append a few tokens and return the greedy choice after each."""


class LlamaCpp:
    """One model and one context of llama.cpp."""

    name = "llama.cpp"

    def __init__(self, path: str | Path, threads: int, context: int) -> None:
        """Load a GGUF file.

        Args:
            path: the file.
            threads: of prompts and of decoding.
            context: tokens that the sequence can hold.

        Raises:
            UnsupportedError: llama-cpp-python is not installed or does not load.
            FileError: llama.cpp does not take the file.
        """
        self._api = api = silenced()[0]
        self.version = f"llama-cpp-python {api.__version__}"
        model = api.llama_model_load_from_file(os.fsencode(path), api.llama_model_default_params())
        if not model:
            raise FileError(f"{self.version} cannot load {path}.")
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = context, BATCH_ROWS, BATCH_ROWS
        options.n_threads = options.n_threads_batch = threads
        self._model, self._context = model, api.llama_init_from_model(model, options)
        if not self._context:
            api.llama_model_free(model)
            raise FileError(f"{self.version} cannot make {context} cells for {path}.")
        self.build = " ".join(api.llama_print_system_info().decode().strip(" |").split())
        self.context, self.length, self.threads = context, 0, threads
        self.vocab_size = int(api.llama_vocab_n_tokens(api.llama_model_get_vocab(model)))
        self._memory = api.llama_get_memory(self._context)
        self._batch = batch = api.llama_batch_init(BATCH_ROWS, 0, 1)
        fields = {name: getattr(batch, name) for name in ("token", "pos", "logits", "n_seq_id")}
        self._rows = {
            name: np.ctypeslib.as_array(pointer, (BATCH_ROWS,)) for name, pointer in fields.items()
        }
        self._rows["n_seq_id"][:] = 1
        for row in range(BATCH_ROWS):
            batch.seq_id[row][0] = 0

    def close(self) -> None:
        """Give its memory back; the object is of no use afterwards."""
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the sequence.

        Raises:
            CapacityError: a sliding window has dropped what that would need.
        """
        if not self._api.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise CapacityError(f"llama.cpp cannot roll back from {self.length} to {length}.")
        self.length = length

    def feed(self, tokens: Sequence[int], every_row: bool = False) -> NDArray[np.float32]:
        """Append tokens and return logits (R, V), which the next call overwrites.

        Args:
            tokens: any number for the last row's logits, at most BATCH_ROWS for every row's.
            every_row: logits of all of them, not of the last alone.

        Raises:
            CapacityError: they do not fit.
        """
        for start in range(0, len(tokens), BATCH_ROWS):
            chunk = tokens[start : start + BATCH_ROWS]
            count = self._batch.n_tokens = len(chunk)
            self._rows["token"][:count] = chunk
            self._rows["pos"][:count] = range(self.length, self.length + count)
            self._rows["logits"][:count] = every_row
            self._rows["logits"][count - 1] = start + count == len(tokens)
            if self._api.llama_decode(self._context, self._batch):
                raise CapacityError(
                    f"llama.cpp cannot add {count} tokens to {self.length} of {self.context}."
                )
            self.length += count
        logits = self._api.llama_get_logits(self._context)
        shape = (len(tokens) if every_row else 1, self.vocab_size)
        return np.ctypeslib.as_array(logits, shape)

    def choose(self, tokens: Sequence[int]) -> int:
        """Append tokens and return the greedy choice after the last."""
        return int(self.feed(tokens)[0].argmax())

    def choose_rows(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        """Append at most BATCH_ROWS tokens and return the greedy choice after each."""
        return np.asarray(self.feed(tokens, every_row=True).argmax(axis=1), np.int32)


def llama_cpp() -> ModuleType:
    """The binding.

    Raises:
        UnsupportedError: it is not installed or does not load.
    """
    try:
        return import_module("llama_cpp")
    except ImportError:
        raise UnsupportedError(
            "The peer llama.cpp needs llama-cpp-python, built on this machine: run `CMAKE_ARGS="
            "-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python`."
        ) from None
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UnsupportedError(
            f"llama-cpp-python is installed and does not load: {reason}."
        ) from None


@cache
def silenced() -> tuple[ModuleType, object]:
    """The binding, started and told to print nothing, and the callback that must outlive it."""
    api = llama_cpp()
    callback = api.llama_log_callback(lambda _level, _text, _data: None)
    api.llama_log_set(callback, ctypes.c_void_p(0))
    api.llama_backend_init()
    return api, callback
