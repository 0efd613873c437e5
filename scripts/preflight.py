"""Say in one sentence what this machine lacks for a build, before pip says it in a hundred lines.

Standard library only, because it runs before .venv exists.

    python3 scripts/preflight.py              exit 1 with a sentence where something is missing
    python3 scripts/preflight.py --packages   print the missing Debian packages, one a line
    ... --packages --arm                      those for the tests of the Arm code as well
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

CPP20_PROBE = "#include <concepts>\n#include <span>\ntemplate <std::integral T> T f(T x);\n"


def has_cpp20_compiler() -> bool:
    """Tell whether the compiler that CMake would take compiles C++20."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    compiler = next((found for found in map(shutil.which, names) if found), None)
    if compiler is None:
        return False
    command = [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    probe = subprocess.run(command, input=CPP20_PROBE, text=True, capture_output=True, check=False)
    return probe.returncode == 0


def missing_packages() -> list[str]:
    """List the Debian packages that would give what is missing here."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    present = {
        "python3-venv": importlib.util.find_spec("ensurepip") is not None,
        "python3-dev": headers.exists(),
        "g++": has_cpp20_compiler(),
        "make": shutil.which("make") is not None,
    }
    return [package for package, is_present in present.items() if not is_present]


def missing_arm_packages() -> list[str]:
    """List the Debian packages without which the tests of the Arm code are skipped."""
    tools = {
        "g++-aarch64-linux-gnu": "aarch64-linux-gnu-g++",
        "qemu-user-static": "qemu-aarch64-static",
    }
    return [package for package, tool in tools.items() if shutil.which(tool) is None]


def main() -> int:
    """Run the check and return the exit status."""
    if sys.version_info < (3, 10):  # noqa: UP036  runs on whatever Python is there
        found = ".".join(map(str, sys.version_info[:2]))
        print(
            f"drafthead needs Python 3.10 or newer, and {sys.executable} is {found}: "
            "name another with make PYTHON=/path/to/python3.",
            file=sys.stderr,
        )
        return 1
    missing = missing_packages()
    if "--packages" in sys.argv[1:]:
        print("\n".join(missing + (missing_arm_packages() if "--arm" in sys.argv[1:] else [])))
        return 0
    if missing:
        print(
            f"This machine lacks {', '.join(missing)}: on Debian, run "
            f"'apt-get install {' '.join(missing)}' as root and start again.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
