"""Where heads are found: those inside the package, and any folder that is named."""

from __future__ import annotations

from pathlib import Path

from drafthead.errors import HeadError
from drafthead.heads.package import CONFIG, Target, read_config, target_mismatch

EMBEDDED = Path(__file__).parent / "embedded"


def embedded_heads(root: Path = EMBEDDED) -> list[Path]:
    """Folders of the heads that ship with the package, by name."""
    return sorted(path.parent for path in root.glob(f"*/{CONFIG}"))


def find_head(backbone: Target, root: Path = EMBEDDED) -> Path | None:
    """The shipped head of a backbone, matched by fingerprint and not by name; None without one.

    Only the small config of each head is read. A damaged one is passed over: it must not keep
    plain decoding from working.
    """
    for folder in embedded_heads(root):
        try:
            config = read_config(folder)
        except HeadError:
            continue
        if target_mismatch(config, backbone) is None:
            return folder
    return None
