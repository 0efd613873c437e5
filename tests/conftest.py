"""Fixtures that several tiers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from drafthead import _native
from drafthead.backbone.handle import Backbone
from drafthead.backbone.registry import resolve
from tests.tiny import write_tiny_llama


@pytest.fixture(scope="session")
def backbone_path() -> Path:
    """The embedded backbone; a clear failure where it was not pulled."""
    return resolve("smollm2-135m")


@pytest.fixture(scope="session")
def backbone(backbone_path: Path) -> Backbone:
    return Backbone.open(backbone_path, threads=2)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of every weight type: small enough for every instruction set."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_llama(path)
    return path


@pytest.fixture
def every_isa():
    """Yields the instruction sets of this machine; the active one is put back."""
    before = _native.active_isa()
    yield _native.available_isas()
    _native.set_isa(before)
