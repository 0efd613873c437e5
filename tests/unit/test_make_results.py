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
    row = "| all | mtp | 3 | 2.50 | 100 | 150 | 1.50 (1.40-1.60) | - | NO |"
    assert row in readme
    assert row in page
    assert "```text\na demo\n```" in readme
    assert "CPU-1: 2 cores, 2 threads, scalar, 10.0 GB/s" in readme
    assert "| pass of 4 rows | 3.000 | 1.50 |" in page
    assert "| draft step of plain | - | - |" in page
    assert "| mtp | 300 | - | 0 | 400 |" in page


def test_each_backbone_has_a_part_and_new_fields_their_columns(script, project):
    """The second file needs no field of the first; the README shows the first alone, in short."""
    second = json.loads(json.dumps(RESULTS))
    second["backbone"]["name"] = "larger"
    second["arms"][1]["speedup_vs_plain"]["ci95"] = [1.3, 1.7]
    second["arms"].append(arm("ngram", drafted=80, accepted=20, acceptance=0.25, task="x"))
    second["arms"].append(arm("plain", task="x"))
    second["task_means"] = {"mtp": {"plain": {"mean": 1.45, "ci95": [1.4, 1.5]}}}
    second["peers"] = [
        {
            "name": "other",
            "version": "binding 1",
            "threads": 2,
            "build": "CPU : AVX2 = 1 | SVE = 0",
            "arms": [arm("plain"), arm("lookup", tau=1.5)],
            "agrees_with_own_plain": {"lookup": {"same_answers": 2, "answers": 3}},
        }
    ]
    second["energy"] = {"source": "rapl", "reason": None}
    second["memory"]["head_saves"] = {
        "context_tokens": 10, "embedding_bytes": 1000, "cache_bytes": 200,
        "standalone_bytes": 1200, "second_cache_bytes": 6400,
    }  # fmt: skip
    (project / "docs" / "results.json").write_text(json.dumps(RESULTS), encoding="utf-8")
    (project / "docs" / "results").mkdir()
    path = project / "docs" / "results" / "larger.json"
    path.write_text(json.dumps(second), encoding="utf-8")
    pages = script.render(project)
    page, readme = pages[project / "docs" / "results.md"], pages[project / "README.md"]
    assert "## tiny\n" in page
    assert "## larger: head and other drafters, policy threshold\n" in page  # as of old reports
    second["settings"] = {"policy": "auto"}
    assert script.part_title(second) == "larger: head and other drafters, policy auto"
    kinds = {**second, "arms": [{**arm("mtp"), "task": task} for task in ("all", *"abcd")]}
    assert script.part_title(kinds) == "larger: 4 kinds of text"
    assert "1.50 (1.40-1.60) | 1.30-1.70 | NO |" in page
    assert "| mtp | plain | 1.45 | 1.40-1.50 |" in page
    assert "| all | other+lookup | 3 | 1.50 | 100 | 100 | 1.00 (1.00-1.00) | - | - |" in page
    assert "other: binding 1, 2 threads, built with AVX2; the same file" in page
    assert "With lookup it gave 2 of 3 answers as without." in page
    assert page.count("Joules were not measured: this report does not say why.") == 1
    assert page.count("Joules are from the source rapl.") == 1
    assert "would add 1,200 bytes" in page and "would take 6,400." in page
    assert "larger" not in readme and "1.30-1.70" not in readme
    (project / "docs" / "results.json").unlink()
    readme = script.render(project)[project / "README.md"]
    assert "1.30-1.70" in readme and "ngram" not in readme


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
