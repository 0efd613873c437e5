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
    from drafthead.session import Result, Session, Stream, load

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
    if name in ("Result", "Session", "Stream", "load"):
        from drafthead import session

        return getattr(session, name)
    raise AttributeError(f"module 'drafthead' has no attribute {name!r}")
