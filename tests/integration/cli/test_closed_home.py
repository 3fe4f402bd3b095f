"""Commands of a user whose home is another user's, as in a container with a user of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.gpu_environment import ROOT
from tests.harness.programs import run_program

#: Root without the capability to enter every folder is a user like any other.
WITHOUT_RIGHTS = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all")


@pytest.fixture(params=["home", "home/of/another"])
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Create a home in, or as, a folder that this user cannot enter."""
    closed = tmp_path / "home"
    closed.mkdir(mode=0o000)
    yield tmp_path / request.param
    closed.chmod(0o700)


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("status", 3, "no sentinel daemon runs"),
        pytest.param("health", 2, "cannot be read", marks=pytest.mark.long),
        ("health --npd", 2, "/"),  # the line is cut
        ("run --simulate 1", 2, "config.toml: cannot be read: Permission denied"),
    ],
)
def test_a_home_that_cannot_be_entered_is_no_bug(
    home: Path, tmp_path: Path, words: str, code: int, text: str
) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    variables = {"HOME": home, "XDG_STATE_HOME": home / "state", "XDG_CONFIG_HOME": home / "config"}
    variables |= {"XDG_RUNTIME_DIR": tmp_path / "run", "RUNTIME_DIRECTORY": tmp_path / "run"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SENTINEL_")}
    environment.pop("STATE_DIRECTORY", None)
    if os.getuid() == 0:  # whose state is in no home
        state = home / "state" if words.startswith("health") else tmp_path / "state"
        environment["STATE_DIRECTORY"] = str(state)
    command = [
        *(WITHOUT_RIGHTS * (os.getuid() == 0)),
        sys.executable,
        "-m",
        "sentinel",
        *words.split(),
    ]
    done = run_program(
        *command,
        env=environment | {name: str(value) for name, value in variables.items()},
        cwd=ROOT,
    )
    output = done.stdout + done.stderr
    assert "Traceback" not in output
    assert text in output
    assert done.returncode == code
