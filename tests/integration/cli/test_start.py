"""`start` exits 0 when a stressor is ready or none is to be, and refuses wrong options before."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest

from sentinel.burnin.levels import LEVELS, load_plan
from sentinel.diagnostics.workload_catalog import workload_errors, workloads_of_plan
from sentinel.host.paths import stderr_file
from sentinel.host.registry import running
from sentinel.protocol.commands import Given
from tests.harness.daemon_harness import QUICK, Daemon, isolated_daemon, settings_file
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

SIMULATE = ("--simulate", "1")
PLAN = """
spec = "sentinel-plan-v1"
name = "mine"
[[phase]]
name = "warm"
workload = "gemm"
seconds = 1
[[phase]]
name = "memory"
workload = "memtest:retention=3s"
passes = 1
"""


@pytest.fixture
def daemon(simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setenv("PYTHONPATH", simulated.environment()["PYTHONPATH"])
    with isolated_daemon(simulated, monkeypatch) as daemon:
        yield daemon


@pytest.mark.long
def test_it_waits_until_a_stressor_is_ready(daemon: Daemon) -> None:
    done = daemon.run("start", *SIMULATE, *QUICK)
    assert daemon.gpu().occupied
    assert done.startswith(f"sentinel started: pid {daemon.pid}; it occupies GPU 0\n")
    daemon.run("pause", "--wait", f"{TIMEOUT_S:.0f}s")
    again = json.loads(daemon.run("start", "--json"))
    assert (again["started"], again["occupied"]) == (False, [])


@pytest.mark.long
def test_a_daemon_that_is_started_paused_occupies_nothing_until_it_is_resumed(
    daemon: Daemon,
) -> None:
    done = daemon.run("start", *SIMULATE, *QUICK, "--paused")
    assert "it starts no stressor: GPU 0: paused until sentinel resume" in done
    assert (daemon.gpu().rule, daemon.gpu().starts) == ("paused", 0)
    again = daemon.run_unchecked("start", *SIMULATE, "--paused")
    assert again.code != 0
    assert "use: sentinel pause" in again.err
    assert "GPU 0: paused until sentinel resume" in daemon.run("start")
    daemon.run("resume")
    daemon.wait_until_occupied(0)


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_gpus_are_occupied_only_in_the_hours_which_set_keeps(daemon: Daemon) -> None:
    now = datetime.now()  # noqa: DTZ005 - hours are in local time
    later, soon, before = (f"{now + timedelta(hours=hours):%H:%M}" for hours in (3, 2, -1))
    done = daemon.run("start", *SIMULATE, *QUICK, "--hours", f"{soon}-{later}")
    assert f"it starts no stressor: GPU 0: occupied only {soon}-{later}, next at {soon} (" in done
    assert f"GPU 0: occupied only {soon}-{later}, next at {soon} (" in daemon.run("status")
    daemon.run("set", "--save", f"hours={before}-{soon}")
    daemon.wait_until_occupied(0)
    daemon.run("stop")
    assert "it occupies GPU 0" in daemon.run("start", *SIMULATE, *QUICK)
    assert f'"{before}-{soon}"' in daemon.run("config", "show")
    daemon.run("set", f"quiet={before}-{soon}")
    eventually(lambda: daemon.gpu().reason == f"quiet hours until {soon}")


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_what_cuda_ignores_is_said_at_the_start_and_in_the_status(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,9,1")
    text = "CUDA_VISIBLE_DEVICES=0,9,1: '9' is no GPU of this host, so CUDA ignores it and all"
    started = daemon.run_unchecked("start", "--simulate", "2", *QUICK)
    assert started.err.startswith(f"sentinel: warning: {text}")
    assert f"\n{text} after it; correct it, or unset it\n" in daemon.run("status")
    daemon.run("stop")
    once = daemon.run_unchecked("run", "--once", "--simulate", "2")
    assert once.err.startswith(f"sentinel: warning: {text}")
    found = json.loads(daemon.run_unchecked("doctor", "--simulate", "2", "--json").out)
    (line,) = [one for one in found["lines"] if one["check"] == "GPUs"]
    assert (line["level"], line["found"]) == ("warning", "1 of 2")
    assert line["do"].startswith(text)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,1")
    refused = daemon.run_unchecked("start", "--simulate", "2")
    assert "it has '1' twice, so CUDA shows no GPU; name each GPU once, or unset it" in refused.err


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_gpu_that_a_stray_process_holds_is_named_at_the_start_and_by_doctor(
    daemon: Daemon,
) -> None:
    daemon.run("start", "--simulate", "2", *QUICK)
    daemon.run("stop")
    locks = daemon.host.registry.folder / "locks"
    with (locks / f"{daemon.host.uuid(0)}.{os.getuid()}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        started = daemon.run_unchecked("start", "--simulate", "2", *QUICK)
        assert "it occupies GPU 1\n" in started.out
        stray = f"held by pid {os.getpid()} ("
        assert started.err.startswith(f"sentinel: warning: GPU 0: not used: {stray}")
        with daemon.start_command("doctor", "--simulate", "2", "--json") as doctor:
            found = json.loads(doctor.communicate()[0])
        (line,) = [one for one in found["lines"] if one["do"] == f"End it: kill {os.getpid()}"]
        assert (line["gpu"], line["found"].startswith(stray)) == (daemon.host.uuid(0), True)


@pytest.mark.long
def test_a_stop_names_the_gpu_whose_memory_a_process_of_its_workload_keeps(
    daemon: Daemon,
) -> None:
    workload = "tests.harness.bad_workloads:leaves_a_process_behind:keeps_memory=true"
    daemon.run(
        "start", "--simulate", "2", "--gpus", "1", "--workload", workload, "--rearm", "100ms"
    )
    uuid = daemon.host.uuid(1)
    eventually(lambda: len(holders_of(daemon, uuid)) > 1)
    stopped = daemon.run_unchecked("stop")
    assert (stopped.code, stopped.out) == (1, "")
    assert "the daemon has ended, but memory of GPU 1 is still in use" in stopped.err
    for pid in holders_of(daemon, uuid):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not holders_of(daemon, uuid))
    daemon.run("start", "--simulate", "2", "--gpus", "1", *QUICK)
    assert daemon.run("stop") == "all GPUs are free, the daemon has ended\n"


def holders_of(daemon: Daemon, uuid: str) -> set[int]:
    """Return the processes of a workload that use a simulated GPU."""
    folder = daemon.host.registry.folder / uuid
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(Path(file.path).parent == folder for file in process.open_files()):
                found.add(process.pid)
    return found


@pytest.mark.long
def test_a_restart_starts_the_daemon_again_with_what_it_was_given(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTINEL_GRACE", "3s")
    pid = daemon.start(1, "--chunk", "256MiB")
    monkeypatch.delenv("SENTINEL_GRACE")
    daemon.client.reserve([0], seconds=3600, reason="kept")
    daemon.run("set", "chunk=512MiB")
    began = daemon.client.status().daemon.since
    done = daemon.run("restart")
    assert f"sentinel restarted: pid {pid}; it starts no stressor: GPU 0: reserved" in done
    status = daemon.client.status()
    assert (status.daemon.pid, status.daemon.since > began) == (pid, True)
    settings = {value.key: value.text for value in daemon.client.settings().settings}
    assert (settings["memory.chunk"], settings["grace"]) == ("256MiB", "3s")
    assert [kept.reason for kept in status.reservations] == ["kept"]
    (output,) = {Path(f"/proc/{pid}/fd/{number}").readlink() for number in (1, 2)}
    assert output == stderr_file(daemon.places.log)


@pytest.mark.long
def test_a_resume_outlives_a_restart_and_the_first_pause_too_without_one(daemon: Daemon) -> None:
    daemon.start(1, "--paused")
    daemon.run("restart")
    assert daemon.gpu(0).admin == "PAUSED"
    daemon.run("resume")
    daemon.run("restart", "--wait", "0")
    assert daemon.gpu(0).admin == "ENABLED"


@pytest.mark.long
def test_a_restart_with_settings_that_are_wrong_now_reports_why(daemon: Daemon) -> None:
    file = settings_file(daemon.host.folder)
    daemon.start(1, "--config", str(file))
    file.write_text('chunk = "never"\n')
    failed = daemon.run_unchecked("restart")
    assert (failed.code, "did not start again" in failed.err) == (2, True)
    daemon.wait_until_gone()


@pytest.mark.long
@pytest.mark.parametrize(
    ("workload", "why"),
    [
        ("bad_workloads:raises:early=true", "no stressor has started: GPU 0: the stressor ended"),
        # The matrices do not fit into the memory of any GPU, which only the stressor finds.
        ("gemm:size=6400000", "the daemon "),
    ],
)
def test_a_stressor_that_fails_makes_it_fail(daemon: Daemon, workload: str, why: str) -> None:
    done = daemon.run_unchecked("start", *SIMULATE, *QUICK, "--workload", workload)
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith(f"sentinel: {why}")
    assert str(daemon.places.log) in done.err


@pytest.mark.long
@pytest.mark.parametrize("command", ["start", "run", "burnin"])
def test_a_wrong_option_in_a_plan_is_refused_before_anything_starts(
    daemon: Daemon, tmp_path: Path, command: str
) -> None:
    plan = tmp_path / "mine.toml"
    plan.write_text(PLAN)
    done = daemon.run_unchecked(command, *SIMULATE, "--plan", str(plan))
    assert done.code == 2
    assert f"--plan {plan}: phase 'memory': workload memtest: option retention='3s'" in done.err
    assert "is not a number" in done.err
    assert running(daemon.places) is None
    assert daemon.host.empty()


@pytest.mark.long
def test_all_wrong_workloads_are_reported_with_their_places(tmp_path: Path) -> None:
    texts = {
        "gemm": None,
        "gemm:sise=3": "workload gemm has no option 'sise'",
        "gemm:size=100": "size=100 is not a positive multiple of 64",
        "memtest:retention=0.5": "retention=0.5 is out of range",
        "memtest:patterns=ones+nothing": "has 'nothing' in it",
        "pulse:hz=101": "hz=101 is out of range",
        "mixed:plan=bf16+nothing": "there is no 'nothing'",
        "mixed:seconds=0": "seconds=0 is out of range",
        "nothing": "there is no workload 'nothing'",
        "no_such_module:work": "cannot be imported: ModuleNotFoundError",
        "bad_workloads:well_behaved": None,
        "bad_workloads:well_behaved:rest=long": "option rest='long' is not a number",
    }
    named = [_named(text, f"place {n}") for n, text in enumerate(texts)]
    errors = [str(error) for error in workload_errors(named)]
    expected = {f"place {n}": why for n, why in enumerate(texts.values()) if why is not None}
    assert {error.partition(":")[0] for error in errors} == set(expected)
    for error in errors:
        assert expected[error.partition(":")[0]] in error


def _named(text: str, source: str) -> Given:
    return Given(key="workload", text=text, source=source)


@pytest.mark.long
def test_the_workloads_of_all_levels_take_their_options() -> None:
    named = [one for level in LEVELS for one in workloads_of_plan(load_plan(level, None), level)]
    assert len(named) > len(LEVELS)
    assert workload_errors(named) == []


def test_a_built_in_workload_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("sentinel.diagnostics.workload_catalog.describe_workloads", refuse)
    named = [_named(text, "x") for text in ("gemm", "gemm:size=64", "gemm:a=1")]
    assert [str(error).partition(";")[0] for error in workload_errors(named)] == [
        "x: workload gemm has no option 'a'"
    ]


@pytest.mark.long
def test_beside_a_running_daemon_it_prints_the_log_of_that_one(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.start(1)
    monkeypatch.setenv("LOGS_DIRECTORY", str(tmp_path / "elsewhere"))
    shown = json.loads(daemon.run("start", "--json", "--wait", "0"))
    assert shown["log"] == str(daemon.places.log)
    assert f"log    {daemon.places.log}\n" in daemon.run("start", "--wait", "0")


@pytest.mark.long
def test_beside_a_daemon_in_the_foreground_it_names_no_log(daemon: Daemon) -> None:
    with daemon.start_command("run", *SIMULATE, *QUICK):
        eventually(lambda: bool(running(daemon.places)))
        eventually(lambda: daemon.run_unchecked("status").code == 0)
        assert json.loads(daemon.run("start", "--json", "--wait", "0"))["log"] is None
        assert "log    none: it runs in the foreground" in daemon.run("start", "--wait", "0")
        daemon.close()


MINE = """
def invert(ctx):
    raise RuntimeError("inverted")


def rest(ctx):
    while True:
        ctx.pace()
"""


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_change_of_the_workload_waits_for_its_first_stressor(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module is found in the folder of the command, and by a restart in another folder."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(MINE)
    daemon.run("start", "--simulate", "2", *QUICK)
    failed = daemon.run_unchecked("set", "workload=mine:invert")
    assert failed.code == 1
    assert "no stressor has started: GPU 0-1: the stressor failed" in failed.err
    assert "A module is found if it is installed" in failed.err
    monkeypatch.chdir(code)
    failed = daemon.run_unchecked("set", "workload=mine:invert", "--gpus", "0")
    assert failed.code == 1
    assert f"{code}/mine:invert raised RuntimeError: inverted" in failed.err
    right = daemon.run_unchecked("set", "workload=mine:rest", "--save")
    assert f'workload = "{code}/mine:rest"' in right.out
    assert "the daemon occupies GPU 1" in right.err
    failed = daemon.run_unchecked("session", "start", "a", "--gpus", "1", "--workload", "no:x")
    assert (failed.code, "No module named 'no'" in failed.err) == (1, True)
    assert "\nThe session stays; `sentinel session stop a` ends it." in failed.err
    daemon.run("session", "stop", "a")
    monkeypatch.chdir(tmp_path)
    assert "it occupies GPU" in daemon.run("restart")


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_reload_that_changes_the_workload_waits_for_its_first_stressor(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    file = tmp_path / "reloaded.toml"
    file.write_text('workload = "hold"')
    daemon.run("start", *SIMULATE, *QUICK[:4], "--config", str(file))
    monkeypatch.chdir(tmp_path)
    file.write_text('workload = "mine:rest"')
    failed = daemon.run_unchecked("reload")
    assert failed.code == 1
    assert "the settings were applied, and no stressor has started: GPU 0" in failed.err
    file.write_text(f'workload = "{tmp_path}/mine:rest"')
    assert "the daemon occupies GPU 0" in daemon.run_unchecked("reload").err


@pytest.mark.long
@pytest.mark.parametrize("safe", [[], ["-P"]], ids=["python -m sentinel", "sentinel"])
def test_a_file_names_the_folder_of_a_workload_for_every_command(
    tmp_path: Path, safe: list[str]
) -> None:
    """Where `config check` finds a module, a detached daemon finds it, too."""
    (tmp_path / "mine.py").write_text(MINE)

    def check(workload: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "checked.toml"
        file.write_text(f'workload = "{workload}"')
        command = [sys.executable, *safe, "-m", "sentinel", "config", "check", str(file)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    wrong = check("mine:rest")
    assert (wrong.returncode, "No module named 'mine'" in wrong.stderr) == (2, True)
    right = check(f"{tmp_path}/mine:rest")
    assert right.returncode == 0, right.stderr


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize("safe", [[], ["-P"]], ids=["python -m sentinel", "sentinel"])
@pytest.mark.parametrize("named", ["flag", "variable"])
def test_a_workload_is_found_in_the_folder_of_the_command(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, safe: list[str], named: str
) -> None:
    """The program `sentinel` does not search its folder, as `python -P` does not."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(MINE)
    monkeypatch.setenv("SENTINEL_WORKLOAD", "mine:rest" if named == "variable" else "")
    flags = ["--workload", "mine:rest"] if named == "flag" else []
    command = [sys.executable, *safe, "-m", "sentinel", "start", *SIMULATE, *QUICK[:4], *flags]
    done = subprocess.run(command, cwd=code, capture_output=True, text=True, check=False)
    assert "it occupies GPU 0" in done.stdout, done.stderr
    assert daemon.gpu().workload == f"{code}/mine:rest"


@pytest.mark.long
def test_three_shells_may_start_and_stop_the_daemon_at_the_same_time(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTINEL_WORKLOAD", "hold")

    def of_all(*words: str) -> list[tuple[int, str]]:
        with contextlib.ExitStack() as shells:
            started = [shells.enter_context(daemon.start_command(*words)) for _ in range(3)]
            texts = ["".join(one.communicate(timeout=2 * TIMEOUT_S)) for one in started]
            return [(one.returncode, text) for one, text in zip(started, texts, strict=True)]

    for _ in range(2):
        outputs = of_all("start", "--simulate", "4")
        assert [code for code, _ in outputs] == [0, 0, 0], outputs
        first = sorted(text.partition(":")[0] for _, text in outputs)
        assert first == ["sentinel runs already"] * 2 + ["sentinel started"]
        # The fastest may have ended it before another one begins: that finds no daemon.
        outputs = of_all("stop")
        assert {code for code, _ in outputs} <= {0, 3}, outputs
        assert 0 in {code for code, _ in outputs}
        eventually(lambda: running(daemon.places) is None)


@pytest.mark.long
def test_a_start_waits_for_the_end_of_a_daemon_that_is_stopped(daemon: Daemon) -> None:
    pid = daemon.start(1)
    daemon.wait_until_occupied(0)
    daemon.run("stop", "--wait", "0")
    done = daemon.run("start", *SIMULATE, *QUICK, "--wait", "0")
    assert done.startswith("sentinel started: pid ")
    assert daemon.pid != pid


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_simulated_gpus_of_another_user_are_refused(
    daemon: Daemon, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.start(1)
    settings = tmp_path_factory.mktemp("own") / "config.toml"
    settings.touch()
    monkeypatch.setenv("SENTINEL_CONFIG", str(settings))
    for path in (daemon.host.folder, daemon.places.record):
        os.chown(path, 4321, 4321)
    try:
        refused = daemon.run_unchecked("start", *SIMULATE, "--wait", "0")
    finally:
        for path in (daemon.host.folder, daemon.places.record):
            os.chown(path, 0, 0)
    assert (refused.code, refused.out) == (2, "")
    assert f"the folder {daemon.host.folder} belongs to uid 4321, not to uid 0" in refused.err
    assert "Set SENTINEL_SIM_DIR to a folder of your own." in refused.err
