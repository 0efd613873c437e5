"""A frozen language model decodes faster, and every bit of the output stays its own.

import drafthead
session = drafthead.load("smollm2-135m")
print(session.generate("Why is the sky blue?").text)
"""

from typing import TYPE_CHECKING, Any

from drafthead.errors import (
    BackboneMissingError,
    CapacityError,
    DownloadError,
    DraftheadError,
    FileError,
    GgufError,
    HeadError,
    NumericsError,
    RequestError,
    TrainingError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from drafthead.session import Session, load
    from drafthead.stream import Result, Stream

__version__ = "0.1.0"

__all__ = [
    "BackboneMissingError",
    "CapacityError",
    "DownloadError",
    "DraftheadError",
    "FileError",
    "GgufError",
    "HeadError",
    "NumericsError",
    "RequestError",
    "Result",
    "Session",
    "Stream",
    "TrainingError",
    "UnsupportedError",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    """Import the session on first use, so that `drafthead --help` and the errors load quickly."""
    if name in ("Session", "load"):
        from drafthead import session

        return getattr(session, name)
    if name in ("Result", "Stream"):
        from drafthead import stream

        return getattr(stream, name)
    raise AttributeError(f"module 'drafthead' has no attribute {name!r}")
