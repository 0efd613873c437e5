"""Hold the sizes of the house: no source file over 600 lines, no tracked file over 20 MB.

Function length is ruff's to check (max-statements). Exit 1 with one line for each file too large.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE_SUFFIXES = {".py", ".pyi", ".h", ".cpp", ".js", ".css", ".html"}
MAX_LINES = 600
MAX_BYTES = 20 * 1024 * 1024


def project_files(root: Path) -> list[Path]:
    """List the files that git tracks or would add, so that ignored build outputs do not count."""
    listing = subprocess.run(
        [
            "git",
            "-c",
            "safe.directory=*",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (root / name for name in listing.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def complaints(root: Path, files: list[Path]) -> list[str]:
    """Give one line for each file that is too long or too large."""
    lines = []
    for path in sorted(files):
        name = path.relative_to(root)
        size_bytes = path.stat().st_size
        if size_bytes > MAX_BYTES:
            lines.append(
                f"{name}: {size_bytes} bytes, at most {MAX_BYTES} belong in the repository"
            )
        elif path.suffix in SOURCE_SUFFIXES:
            count = len(path.read_bytes().splitlines())
            if count > MAX_LINES:
                lines.append(f"{name}: {count} lines, at most {MAX_LINES}; split it by idea")
    return lines


def main() -> int:
    """Run the check and return the exit status."""
    found = complaints(ROOT, project_files(ROOT))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
