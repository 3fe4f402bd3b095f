"""The whole daemon on simulated GPUs, controlled by its commands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from sentinel.client.transport import listener_pid
from sentinel.host.log_file import MAX_BYTES
from tests.harness.daemon_harness import (
    Daemon,
    children_of,
    read_line,
    settings_file,
    write_line,
)
from tests.harness.given_settings import texts_of
from tests.harness.gpu_environment import ROOT
from tests.harness.isolation import OWN_NAMESPACE, STRANGER, needs_namespaces
from tests.harness.narrowing import not_none
from tests.harness.programs import run_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

#: A training script: it prints its start and its GPUs, and exits as a line of input requests.
JOB = """
import os, sys
print(os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
sys.exit(int(sys.stdin.readline()))
"""


#: The manifest of a DaemonSet.
MANIFEST = ROOT / "deploy" / "kubernetes" / "base" / "daemonset.yaml"


def hook(name: str) -> list[str]:
    """Read the first command below this name in the manifest."""
    _, _, below = MANIFEST.read_text().partition(f"{name}:")
    found = not_none(re.search(r"command: (\[.*\])", below))
    return [str(word) for word in json.loads(found[1])]


pytestmark = pytest.mark.usefixtures("fake_torch")


def train() -> str:
    """Run the example of a script that reserves a GPU; return its output."""
    script = ROOT / "examples" / "reserve" / "train.py"
    return run_program(sys.executable, script, check=True).stdout


@pytest.mark.long
def test_gpus_are_handed_over_on_request_and_reservations_outlive_the_daemon(
    daemon: Daemon,
) -> None:
    host = daemon.host
    absent = daemon.run_unchecked("status")
    assert (absent.code, absent.out) == (3, "")
    assert "Start one with `sentinel start --simulate N`" in absent.err
    pid = daemon.start(2)
    daemon.wait_until_occupied(0, 1)
    table = daemon.run("status").splitlines()
    assert [row.split()[:2] for row in table[2:4]] == [["0", "occupied"], ["1", "occupied"]]
    assert f"pid {pid} " in "\n".join(table)
    assert all(len(row) <= 80 for row in table[:4])
    assert json.loads(daemon.run("start", "--json"))["pid"] == pid

    # When the command returns, the memory is free, and that of the other GPUs is still held.
    daemon.run("pause", "0")
    assert host.empty(0)
    eventually(lambda: not host.empty(1))
    daemon.run("resume", "0")
    daemon.wait_for_stressor(0)

    uuid = daemon.run("reserve", "--gpus", "0", "--for", "1h", "--reason", "a demo").strip()
    assert (uuid, host.empty(0)) == (host.uuid(0), True)
    with host.job(0, stay=0.1) as job:
        assert job.got_memory()
        job.wait_for_exit()
    # The job has run and exited, and the re-arm time is over.
    eventually(lambda: daemon.gpu().occupancy == "IDLE" and (daemon.gpu().since_s or 0) > 0.6)
    assert (daemon.gpu().stressor, daemon.gpu().admin) == ("STOPPED", "RESERVED")
    eventually(lambda: not host.empty(1))

    # A script reserves the remaining GPU, and exits without an explicit release.
    assert train() == f"training on {host.uuid(1)}\n"
    assert [reservation.reason for reservation in daemon.client.reservations()] == ["a demo"]

    daemon.run("stop")
    assert not daemon.places.socket.exists()
    daemon.wait_until_gone()
    assert daemon.run_unchecked("status").code == 3
    assert train() == "training on all there is\n"

    assert daemon.start(2) != pid
    daemon.wait_for_stressor(1)
    assert host.empty(0)
    assert "a demo" in daemon.run("reserve", "--list")
    daemon.run("reserve", "--cancel", "all")
    daemon.wait_for_stressor(0)
    assert daemon.places.stderr.read_text() == ""


@pytest.mark.long
def test_a_lower_limit_of_held_gpus_releases_down_to_it(daemon: Daemon) -> None:
    daemon.start(2, "--max-gpus", "2")
    eventually(lambda: all(gpu.occupied for gpu in daemon.client.status().gpus))
    changed = daemon.run_unchecked("set", "max-gpus=1", "rearm=1s")
    eventually(lambda: any(gpu.rule == "limits.gpus" for gpu in daemon.client.status().gpus))
    (free,) = [gpu for gpu in daemon.client.status().gpus if not gpu.occupied]
    kept = "A wait that has begun keeps its length."
    assert changed.err.splitlines() == [kept, f"GPU {free.index} is released."]


@pytest.mark.long
def test_a_job_keeps_its_gpus_across_the_death_of_the_daemon(daemon: Daemon) -> None:
    host = daemon.host
    daemon.start(1)
    daemon.wait_until_occupied(0)
    command = ("exec", "--count", "1", "--", sys.executable, "-c", JOB)
    with daemon.start_command("logs", "-f", "-n", "1", "--json") as logs:
        read_line(logs)  # the log is followed from here on
        with daemon.start_command(*command) as job:
            assert read_line(job) == f"{job.pid} {host.uuid()}"
            write_line(job, "7")
            assert job.wait(TIMEOUT_S) == 7
        seen = [json.loads(read_line(logs))["event"]]
        while seen[-1] != "gpu.unreserved":
            seen.append(json.loads(read_line(logs))["event"])
        assert "gpu.reserved" in seen
        logs.send_signal(signal.SIGINT)
        assert logs.wait(TIMEOUT_S) == 130

    with daemon.start_command(*command) as job:
        assert read_line(job) == f"{job.pid} {host.uuid()}"
        daemon.kill()
        assert daemon.places.socket.exists()
        for words in ("status", "stop", "pause", "reserve --count 1 --for 1h"):
            assert daemon.run_unchecked(*words.split()).code == 3
        daemon.start(1)
        # The reservation persists, as the process that it is bound to is alive.
        (held,) = daemon.client.reservations()
        assert (held.bound, held.holder.pid) == (True, job.pid)
        assert job.poll() is None
        assert host.empty()
        job.send_signal(signal.SIGTERM)
        assert job.wait(TIMEOUT_S) == -signal.SIGTERM
    daemon.wait_for_stressor(0)
    assert daemon.client.reservations() == ()


#: The file that sets the next PID of a PID namespace.
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")

#: Shuts the daemon down from a PID namespace where another process has the daemon's PID.
FROM_ELSEWHERE = f"""
import subprocess, sys
from pathlib import Path
import sentinel
client = sentinel.connect()
pid = client.status().daemon.pid
Path("{LAST_PID}").write_text(str(pid - 1))
with subprocess.Popen(["sleep", "600"]) as stranger:
    try:
        assert stranger.pid == pid, stranger.pid
        client.stop(wait={TIMEOUT_S})
        assert stranger.poll() is None
    finally:
        stranger.kill()
"""


@pytest.mark.long
@needs_namespaces
@pytest.mark.skipif(not LAST_PID.exists(), reason="needs a kernel where PIDs can be chosen")
def test_a_client_in_another_pid_namespace_waits_for_the_right_process(daemon: Daemon) -> None:
    daemon.start(1)
    daemon.wait_until_occupied(0)
    command = [*OWN_NAMESPACE, sys.executable, "-c", FROM_ELSEWHERE]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    assert not daemon.places.socket.exists()
    daemon.wait_until_gone()


@pytest.mark.long
def test_the_daemon_survives_changes_of_settings_api_process_and_driver(
    daemon: Daemon, tmp_path: Path
) -> None:
    host, file = daemon.host, settings_file(tmp_path)
    began = file.read_text() if file.exists() else ""
    pid = daemon.start(1)
    daemon.wait_until_occupied(0)
    file.write_text('workload = "pulse"')
    assert _settings(daemon)["workload"] != "pulse", "the file is read on request only"
    file.write_text(began)
    daemon.run("pause")
    assert (host.empty(), daemon.pids_on_gpus()) == (True, [])
    assert daemon.client.status().daemon.phase == "paused"
    daemon.run("start")
    assert host.empty()
    daemon.run("resume")
    daemon.wait_for_stressor(0)

    _settings_change(daemon, file)
    _the_service_is_killed(daemon)
    _settings_are_those_that_hold(daemon, file)
    _, *words = hook("readinessProbe")
    daemon.run(*words)
    _the_driver_is_let_go_of(daemon)
    assert daemon.pid == pid
    daemon.run("stop")
    assert not daemon.places.socket.exists()
    daemon.wait_until_gone()


@pytest.mark.long
def test_sessions_and_saved_settings_outlive_the_daemon_and_others_do_not(
    daemon: Daemon, tmp_path: Path
) -> None:
    daemon.start(3, "--chunk", "512MiB")
    daemon.wait_until_occupied(0, 1, 2)
    workload = "bad_workloads:well_behaved"
    session = ("--gpus", "0,1", "--workload", workload, "--for", "1h")
    daemon.run("session", "start", "train", *session)
    daemon.run("set", "memory=1GiB", "--gpus", "2", "--save")
    daemon.run("set", "grace=7s", "api.tcp=127.0.0.1:0", "--save")
    assert daemon.client.status().daemon.tcp is None
    daemon.run("set", "hang-after=20s", "--gpus", "2")

    def work(index: int) -> str | None:
        gpu = daemon.gpu(index)
        return gpu.workload if gpu.occupied else None

    def in_effect() -> list[str | None]:
        return [work(0), work(1), work(2), daemon.gpu(0).session, daemon.gpu(2).session]

    expected = [workload, workload, "hold", "train", None]
    eventually(lambda: in_effect() == expected)
    eventually(lambda: daemon.gpu(2).held == 2**30)
    held = daemon.gpu(0).pid
    daemon.kill_api()
    (kept,) = daemon.client.sessions()
    assert (kept.name, kept.indices, kept.until is not None) == ("train", (0, 1), True)
    assert _own(daemon, 2) == {"memory.target": "1GiB", "hang_after": "20s"}
    daemon.run("reload")
    assert daemon.gpu(0).pid == held, "no stressor has other settings"

    daemon.kill()
    daemon.start(3)
    eventually(lambda: in_effect() == expected)
    (restored,) = daemon.client.sessions()
    assert replace(restored, since=kept.since, until=kept.until) == kept
    for shown_at, was in ((restored.since, kept.since), (restored.until, kept.until)):
        # A date is cut to the second, so the smallest difference of clocks may be one.
        assert abs(not_none(shown_at) - not_none(was)) <= timedelta(seconds=1)
    assert _own(daemon, 2) == {"memory.target": "1GiB"}
    shown = not_none(daemon.client.settings().get("grace"))
    assert (shown.text, shown.source) == ("7s", f"{daemon.places.state}/settings.toml: grace")
    assert daemon.run("status", "--page").startswith("http://127.0.0.1:")
    daemon.run("reload")
    daemon.run("set", "api.tcp=", "--save")
    assert daemon.client.status().daemon.tcp is not None, "until the next start"
    refused = daemon.run_unchecked("session", "start", "other", "--gpus", "1,2")
    assert refused.code == 1
    assert "GPU 1 is in the session 'train'" in refused.err

    daemon.run("session", "stop", "train")
    eventually(lambda: in_effect() == ["hold", "hold", "hold", None, None])
    daemon.run("stop")
    daemon.wait_until_gone()
    daemon.start(3)
    assert daemon.client.sessions() == ()


@pytest.mark.long
def test_unset_all_removes_what_options_set_for_all_and_for_single_gpus(daemon: Daemon) -> None:
    daemon.start(2)
    daemon.run("set", "memory=1GiB")
    daemon.run("set", "memory=2GiB", "power=300W", "--gpus", "0,1")
    shown = daemon.run("set", "--unset", "all", "--gpus", "1")
    assert [line.split("  ")[0] for line in shown.splitlines()] == [
        'GPU 1: memory.target = "1GiB"',
        "GPU 1: power is not set",
    ]
    assert _own(daemon, 0) == {"memory.target": "2GiB", "power": "300W"}
    shown = daemon.run("set", "--unset", "all", "grace=7s", "--wait", "0")
    assert _own(daemon, 0) == {}
    assert "GPU 0: power is not set" in shown
    assert "2GiB" not in shown
    given = {value.key for value in daemon.client.settings().settings if "--" in value.source}
    assert {"grace", "poll"} <= given, "what is fixed at the start stays"
    assert not {"memory.target", "workload", "rearm"} & given
    assert "grace" in daemon.run("set", "--unset", "all")
    for gpus in ([], ["--gpus", "1"]):
        nothing = daemon.run_unchecked("set", "--unset", "all", *gpus)
        assert (nothing.code, nothing.out) == (0, "")
        assert "no option has set anything" in nothing.err


def _own(daemon: Daemon, index: int) -> dict[str, str]:
    """Read the settings that a GPU has of its own."""
    return texts_of(daemon.client.settings().settings, daemon.host.uuid(index))


def _settings_change(daemon: Daemon, file: Path) -> None:
    """Apply settings in every way, and check that invalid ones are refused."""
    file.write_text('workload = "bad_workloads:WellBehaved"')
    daemon.run("set", "--unset", "workload")
    assert daemon.client.status().daemon.workload == "bad_workloads:WellBehaved"
    daemon.wait_until_occupied(0)

    file.write_text('workload = "hold"\nmemory = "lots"')
    refused = daemon.run_unchecked("reload")
    assert refused.code == 2
    assert "config.toml" in refused.err
    assert daemon.client.status().daemon.workload == "bad_workloads:WellBehaved"
    os.kill(daemon.pid, signal.SIGHUP)
    eventually(lambda: '"about": "settings"' in daemon.places.log.read_text())
    file.write_text('workload = "hold"')
    daemon.run("reload")
    assert daemon.client.status().daemon.workload == "hold"
    file.write_text('workload = "bad_workloads:well_behaved"')
    os.kill(daemon.pid, signal.SIGHUP)
    eventually(lambda: daemon.gpu().workload == "bad_workloads:well_behaved")
    daemon.wait_until_occupied(0)


def _the_service_is_killed(daemon: Daemon) -> None:
    """Kill the API process by SIGKILL: clients wait for the next one; stressors are unaffected."""
    held = daemon.pids_on_gpus()
    service = daemon.kill_api()
    assert daemon.client.status().gpus[0].occupied
    assert daemon.child("sentinel: api") != service
    assert daemon.pids_on_gpus() == held
    assert listener_pid(daemon.client.address, TIMEOUT_S) == daemon.pid


def _settings(daemon: Daemon) -> dict[str, str]:
    """Read some of the settings in use."""
    texts = texts_of(daemon.client.settings().settings)
    return {key: texts[key] for key in ("rearm", "workload", "throttle.hysteresis")}


def _settings_are_those_that_hold(daemon: Daemon, file: Path) -> None:
    """Edit the file and replace the API process: it shows the settings of the supervisor."""
    holds = {
        "rearm": "300ms",
        "workload": "bad_workloads:well_behaved",
        "throttle.hysteresis": "3C",
    }
    daemon.client.request("PATCH", "/v1/settings", {"settings": {"throttle.hysteresis": "3C"}})
    file.write_text('workload = "hold"')
    assert _settings(daemon) == holds
    daemon.kill_api()
    assert _settings(daemon) == holds
    daemon.run("reload")
    assert _settings(daemon) == {**holds, "workload": "hold"}
    daemon.wait_until_occupied(0)


def _the_driver_is_let_go_of(daemon: Daemon) -> None:
    """Release the driver, which also ends the probe; then resume."""
    _, *words = hook("preStop")
    daemon.run(*words)
    assert daemon.host.empty()
    eventually(lambda: not children_of(["sentinel: probe", "keeps idle GPU"], daemon.processes()))
    daemon.run("resume")
    daemon.wait_for_stressor(0)


@pytest.mark.long
def test_a_workload_that_prints_much_fills_no_disk_and_goes_on(daemon: Daemon) -> None:
    daemon.start(1, "--workload", "bad_workloads:prints", "--unwatched-after", "5s")
    eventually(lambda: "printed everything" in daemon.places.stderr.read_text())
    daemon.wait_until_occupied(0)
    assert '"stressor.failed"' not in daemon.places.log.read_text()
    daemon.close()
    assert " bytes of output were dropped here]" in daemon.places.stderr.read_text()
    assert daemon.places.stderr.stat().st_size <= MAX_BYTES


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_code_of_another_user_is_not_imported_and_its_session_is_named(
    daemon: Daemon, tmp_path: Path
) -> None:
    ran, code = tmp_path / "ran", tmp_path / "theirs.py"
    code.write_text(f"open({str(ran)!r}, 'w')\n")
    os.chown(code, STRANGER, STRANGER)
    daemon.start(2, "--workload", "hold")  # it ends where no GPU can be used
    workload = f"{tmp_path}/theirs:work"
    done = daemon.run_unchecked("session", "start", "one", "--gpus", "0", f"workload={workload}")
    assert done.code == 1
    why = f"{code} belongs to uid {STRANGER}"
    assert f"root does not import workload {workload} of session one: {why}" in done.err
    assert not ran.exists()
