"""Commands of a user whose home is another user's, as in a container with a user of its own."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

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
    variables |= {
        "TMPDIR": tmp_path,
        "XDG_RUNTIME_DIR": tmp_path / "run",
        "RUNTIME_DIRECTORY": tmp_path / "run",
    }
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


@pytest.mark.long
def test_a_daemon_of_simulated_gpus_is_found_without_a_home() -> None:
    with tempfile.TemporaryDirectory() as folder:  # short: the path of a socket is limited
        (Path(folder) / "home").touch()
        names = ("SENTINEL_", "STATE_DIRECTORY", "RUNTIME_DIRECTORY")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(names)}
        environment |= {"XDG_STATE_HOME": f"{folder}/home/state", "TMPDIR": folder}

        def run(*words: str, **variables: str) -> CompletedProcess[str]:
            command = (sys.executable, "-m", "sentinel", *words)
            return run_program(*command, env=environment | variables, cwd=ROOT)

        started = run("start", "--simulate", "1", "--paused", "--wait", "0")
        try:
            assert (started.returncode, started.stderr) == (0, "")
            assert "SIMULATED GPUs" in run("status").stdout
        finally:
            assert run("stop").returncode == 0
        chosen = {"SENTINEL_SIM_DIR": f"{folder}/chosen"}
        started = run("start", "--simulate", "1", "--paused", "--wait", "0", **chosen)
        assert run("stop", **chosen).returncode == 0
        warned = f"other commands find this daemon only with SENTINEL_SIM_DIR={folder}/chosen: "
        assert f"sentinel: warning: {warned}the folder {folder}/home cannot be" in started.stderr
        assert "Set HOME or XDG_STATE_HOME to a folder that you can write." in started.stderr
        session = run("session", "start", "--gpus", "0", "--wait", "0", "--simulated", **chosen)
        assert run("stop", **chosen).returncode == 0
        assert f"sentinel: warning: {warned}" in session.stderr
