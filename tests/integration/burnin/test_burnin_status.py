"""A burn-in in a terminal, and the plan of a daemon, are named by the commands that meet them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest

from sentinel.errors import ExitCode
from tests.harness.burnin_run import CHECKED, plan_of
from tests.harness.daemon_harness import Daemon
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]

PLAN = plan_of("endless", ("first", CHECKED, "seconds = 600"))


@pytest.fixture
def plan(tmp_path: Path) -> str:
    file = tmp_path / "plan.toml"
    file.write_text(PLAN)
    return str(file)


def test_a_burnin_in_a_terminal_is_named_until_it_ends(
    daemon: Daemon, plan: str, tmp_path: Path
) -> None:
    run = tmp_path / "report"
    words = ("burnin", "--simulate", "1", "--plan", plan, "--report", str(run))
    with daemon.start_command(*words) as burnin:
        eventually(lambda: (run / "run.json").exists() and daemon.pids_on_gpus())
        status = daemon.run("burnin", "status")
        assert f", recorded in {run}" in status
        assert f"sentinel burnin attach {run}" in status
        shown = json.loads(daemon.run("burnin", "status", "--json"))
        ((private, folder),) = [(one["pid"], one["run"]) for one in shown["without_daemon"]]
        assert folder == str(run)
        assert burnin.pid in [parent.pid for parent in psutil.Process(private).parents()]
        daemons = json.loads(daemon.run("status", "--daemons", "--json"))["daemons"]
        assert not any(one["pid"] for one in daemons), "a private daemon is not the user's"
        for refused in (("status",), ("status", "--list")):
            answer = daemon.run_unchecked(*refused)
            assert answer.code == ExitCode.NOT_RUNNING
            assert f"recorded in {run}" in answer.err
        second = ("burnin", "--simulate", "1", "--plan", plan, "--report", f"{run}2")
        with daemon.start_command(*second) as rival:
            _, said = rival.communicate(timeout=TIMEOUT_S)
            assert rival.returncode == ExitCode.HELD, said
            assert f"a burn-in in a terminal that is recorded in {run}" in said
        burnin.send_signal(signal.SIGINT)
        burnin.communicate(timeout=TIMEOUT_S)
    assert daemon.run_unchecked("burnin", "status").code == ExitCode.NOT_RUNNING


def test_the_plan_of_a_daemon_is_shown_as_a_burnin(daemon: Daemon, plan: str) -> None:
    daemon.run("start", "--simulate", "2", "--rearm", "300ms", "--poll", "100ms", "--plan", plan)
    eventually(lambda: daemon.gpu().burnin is not None)
    shown = daemon.run("burnin", "status")
    assert "endless, again and again" in shown
    assert shown.count("1 of 1 first") == 2
    assert "no burn-in runs" not in shown
