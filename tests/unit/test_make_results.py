"""What the README says was measured is what docs/results.json holds."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_results.py"
README = """# x
<!-- TRANSCRIPT -->
old
<!-- /TRANSCRIPT -->
<!-- RESULTS -->
<!-- /RESULTS -->
end
"""


def arm(drafter, **changed):
    return {
        "drafter": drafter, "task": "all", "prompts": 3, "tokens": 90, "looped": 1, "passes": 36,
        "drafted": 0, "accepted": 0, "tau": 1.0, "accept_at": [], "ttft_ms": 4.25,
        "tok_s": {"median": 100.0, "p10": 90.0, "p90": 110.0},
        "speedup_vs_plain": {"median": 1.0, "p10": 1.0, "p90": 1.0}, "identical": True,
        "cpu_s_per_token": 0.01, "joules_per_token": None,
    } | changed  # fmt: skip


RESULTS = {
    "machine": {
        "cpu": "CPU-1", "cores": 2, "isa": "scalar", "threads": 2, "memory_read_gb_s": 10.04,
    },
    "backbone": {"name": "tiny"},
    "drafthead": "0.0.1",
    "cost": {
        "rows_ms": {"1": 2.0, "4": 3.0}, "draft_step_ms": {"plain": None, "mtp": 0.5},
        "bytes_per_token": 1000,
    },
    "arms": [
        arm("plain"),
        arm("mtp", drafted=80, accepted=54, tau=2.5, accept_at=[0.8, 0.7], identical=False,
            tok_s={"median": 150.0, "p10": 140.0, "p90": 160.0},
            speedup_vs_plain={"median": 1.5, "p10": 1.4, "p90": 1.6}),
    ],
    "memory": {
        "backbone_bytes": 5000, "kv_bytes_per_token": 64,
        "drafters": {"mtp": {"weights_bytes": 300, "kv_bytes_per_token": 0, "peak_bytes": 400}},
    },
}  # fmt: skip


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("make_results", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path):
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    (tmp_path / "docs").mkdir()
    return tmp_path


def test_blocks_say_so_when_nothing_was_measured(script, project):
    """No number is invented, and there is no results page."""
    pages = script.render(project)
    assert set(pages) == {project / "README.md"}
    assert script.NOT_MEASURED in pages[project / "README.md"]
    assert script.NOT_RECORDED in pages[project / "README.md"]


def test_numbers_are_those_of_the_file(script, project):
    """Each drafting arm stands beside the plain arm of its task; a difference in tokens shows."""
    (project / "docs" / "results.json").write_text(json.dumps(RESULTS), encoding="utf-8")
    (project / "docs" / "transcript.txt").write_text("a demo\n", encoding="utf-8")
    pages = script.render(project)
    readme, page = pages[project / "README.md"], pages[project / "docs" / "results.md"]
    row = "| all | mtp | 3 | 2.50 | 100 | 150 | 1.50 (1.40-1.60) | NO |"
    assert row in readme
    assert row in page
    assert "```text\na demo\n```" in readme
    assert "CPU-1: 2 cores, 2 threads, scalar, 10.0 GB/s" in readme
    assert "| pass of 4 rows | 3.000 | 1.50 |" in page
    assert "| draft step of plain | - | - |" in page
    assert "| mtp | 300 | 0 | 400 |" in page


def test_rendering_twice_changes_nothing(script, project):
    """What `make docs` wrote passes the check."""
    (project / "docs" / "results.json").write_text(json.dumps(RESULTS), encoding="utf-8")
    first = script.render(project)
    for path, text in first.items():
        path.write_text(text, encoding="utf-8")
    assert script.render(project) == first
    assert first[project / "README.md"].endswith("end\n")


def test_a_readme_without_the_block_is_refused(script, project):
    """A block that was deleted by hand is named instead of being skipped."""
    (project / "README.md").write_text("# x\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="one <!-- TRANSCRIPT -->"):
        script.render(project)
