"""The shells complete values: what the daemon has, what is installed, and the words of settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from sentinel.cli.main import sentinel_command
from tests.harness.parameters import mostly_long
from tests.harness.programs import run_program
from tests.harness.stub_daemon import (
    GPU,
    RESERVATION,
    STATUS,
    Reply,
    StubDaemon,
    stub_daemon,
)

SECOND = {**GPU, "index": 1, "uuid": "GPU-67750949-3d58-58a0-b106-f4bfd7f7c993"}


@pytest.fixture
def daemon(stub: StubDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubDaemon:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    status = {**STATUS, "gpus": [GPU, SECOND], "reservations": [RESERVATION]}
    status["allocations"] = [{"id": "llm", "gpu": GPU["uuid"], "size": 1}]
    status["sessions"] = [{"name": "train", "indices": [0, 1]}]
    stub.replies["GET /v1/status"] = Reply(status)
    return stub


def offered(*words: str) -> dict[str, str | None]:
    """Complete the last word; return the offered values with their descriptions."""
    *before, incomplete = words
    completion = ShellComplete(sentinel_command, {}, "sentinel", "_SENTINEL_COMPLETE")
    return {found.value: found.help for found in completion.get_completions(before, incomplete)}


@pytest.mark.parametrize("command", ["pause", "resume", "status", "reserve", "history", "top"])
@pytest.mark.parametrize("flag", [(), ("--gpus",)])
def test_gpus_are_those_of_the_daemon(
    daemon: StubDaemon, command: str, flag: tuple[str, ...]
) -> None:
    assert offered(command, *flag, "") == {
        "0": "Simulated GPU, occupied",
        "1": "Simulated GPU, occupied",
        "all": "every GPU",
    }
    assert list(offered(command, *flag, "0,")) == ["0,1"]
    assert set(offered(command, *flag, "GPU-6")) == {SECOND["uuid"]}


def test_the_daemon_is_the_one_that_the_options_name(tmp_path: Path, daemon: StubDaemon) -> None:
    with stub_daemon(tmp_path / "other") as other:
        other.replies["GET /v1/status"] = Reply({**STATUS, "gpus": [SECOND]})
        assert list(offered("pause", "--socket", str(other.socket), "")) == ["1", "all"]


def test_without_a_daemon_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "none"))
    assert "all" in offered("pause", "")
    assert offered("reserve", "--cancel", "") == {}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run", "--workload", "m"), {"memtest", "mixed"}),
        (("--workload", "m"), {"memtest", "mixed"}),
        (("--simulate", "2", "--yield", "k"), {"kill"}),
        (("workloads", "try", "ge"), {"gemm"}),
        (("run", "--yield", ""), {"kill", "ask"}),
        (("run", "--plan", "s"), {"screen", "standard", "soak"}),
        (("burnin", "--level", "s"), {"screen", "standard", "soak"}),
        (("status", "--color", "a"), {"auto", "always"}),
        (("reserve", "--cancel", "1"), {"1a2b3c4d"}),
        (("allocate", "--cancel", ""), {"llm"}),
        (("completion", ""), {"bash", "zsh", "fish"}),
        (("top", "--filter", "b"), {"backoff", "busy"}),
    ],
)
def test_values_are_those_that_are_allowed(
    daemon: StubDaemon, words: tuple[str, ...], expected: set[str]
) -> None:
    assert set(offered(*words)) == expected


def test_recorded_runs_are_completed_newest_first(tmp_path: Path, daemon: StubDaemon) -> None:
    for name in ("2026-11-20T10", "2026-11-23T08"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    for words in (("report", "20"), ("burnin", "attach", "20"), ("burnin", "--resume", "20")):
        assert list(offered(*words)) == ["2026-11-23T08", "2026-11-20T10"]


@mostly_long(
    "shell, expected",
    [
        ("bash", "plain,1"),
        ("zsh", "plain\n1\nSimulated GPU, occupied"),
        ("fish", "plain,1\tSimulated GPU, occupied"),
    ],
)
def test_each_shell_has_the_values(daemon: StubDaemon, shell: str, expected: str) -> None:
    words = {"COMP_WORDS": "sentinel pause 1", "COMP_CWORD": "1" if shell == "fish" else "2"}
    command = [sys.executable, "-m", "sentinel"]
    done = run_program(
        *command, env={**os.environ, **words, "_SENTINEL_COMPLETE": f"{shell}_complete"}, check=True
    )
    assert expected in done.stdout


def test_the_keys_of_settings_are_those_that_can_be_changed(daemon: StubDaemon) -> None:
    keys = offered("set", "")
    assert {"workload=", "memory.target=", "quiet="} <= keys.keys()
    assert "poll=" not in keys, "fixed at the start"
    assert keys["power="] is not None
    assert list(offered("set", "memory.t")) == ["memory.target="]
    assert list(offered("set", "--unset", "power,memory.t")) == ["power,memory.target"]
    assert list(offered("set", "--gpus", "0,")) == ["0,1"]
    assert daemon.requests[-1][0] == "GET /v1/status"


def test_the_words_of_a_setting_are_completed_after_its_key() -> None:
    assert list(offered("set", "yield=")) == ["yield=kill", "yield=ask"]
    assert list(offered("set", "yield-to=c")) == ["yield-to=compute"]
    assert "workload=hold" in offered("set", "workload=h")
    assert offered("set", "power=") == {}


def test_sessions_are_those_of_the_daemon(daemon: StubDaemon) -> None:
    assert offered("session", "stop", "") == {"train": "GPU 0,1"}
    assert "--workload" in offered("session", "start", "x", "--work")
    assert daemon.requests == [("GET /v1/status", None)]
