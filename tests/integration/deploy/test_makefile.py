"""`make demo` installs what the demo needs, and shows it."""

from __future__ import annotations

from pathlib import Path

from tests.harness.gpu_environment import ROOT
from tests.harness.programs import run_program


def planned(target: str, folder: Path) -> list[str]:
    """List the commands of a target on a machine without an environment; run none."""
    words = ("make", "--no-print-directory", "--dry-run", target, f"VENV={folder / 'venv'}")
    done = run_program(*words, cwd=ROOT, check=True)
    return [line for line in done.stdout.splitlines() if "pip " in line]


def test_the_demo_installs_no_tools_of_developers_and_shows_progress(tmp_path: Path) -> None:
    (install,) = planned("demo", tmp_path)
    assert install.endswith("--editable '.[tui]'"), "what the first day uses"
    assert "--quiet" not in install
    assert any("[dev]" in line for line in planned("test", tmp_path))
