"""`exec` and `reserve` with a real daemon: the GPUs that the environment shows, and long waits."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from sentinel.host.simulation import Registry
from tests.harness.daemon_harness import Daemon, read_line
from tests.harness.gpu_environment import foreign_process
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]

GPUS = 3
#: A command that prints its GPUs.
PRINT = ("--", "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"')
#: One that says that it runs, and lives until it is killed.
JOB = ("--", "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"; exec sleep 600')

#: A shell as the parent of a command.
SHELL = ("sh", "-c", '"$@"; exit $?', "sh")
RESERVE = ("reserve", "--count", "1", "--for", "1h", "--wait", "1h")


@pytest.fixture
def daemon(daemon: Daemon) -> Daemon:
    daemon.start(GPUS, "--workload", "hold")
    return daemon


def run(daemon: Daemon, *words: str) -> tuple[int, str, str]:
    """Run a command in its own process to its end; return its exit code and outputs."""
    with daemon.start_command(*words) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, out, err


def queue(daemon: Daemon) -> list[str]:
    return [one.id for one in daemon.client.queue()]


# --- CUDA_VISIBLE_DEVICES --------------------------------------------------------------------


def test_gpus_are_chosen_among_those_that_the_environment_shows(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuids = [daemon.host.uuid(index) for index in range(GPUS)]
    for value, count, expected in [
        ("2", 1, {2}),
        ("2,1", 2, {1, 2}),
        (uuids[1], 1, {1}),
        (f"{uuids[2][:12]},{uuids[0]}", 2, {0, 2}),
        ("1,9,2", 1, {1}),
    ]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        code, out, err = run(daemon, "exec", "--count", str(count), *PRINT)
        assert code == 0, err
        assert {uuids.index(uuid) for uuid in out.strip().split(",")} == expected, value
        cut = "'9' is no GPU of this host, so CUDA ignores it and all after it; correct it"
        warning = f"sentinel: warning: CUDA_VISIBLE_DEVICES=1,9,2: {cut}, or unset it\n"
        assert err.count(warning) == value.count("9,"), err
        out = daemon.run("reserve", "--count", str(count), "--for", "1h")
        assert {uuids.index(uuid) for uuid in out.split()} == expected, value
        daemon.run("reserve", "--cancel", "all")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("", "no GPU"),
        ("-1", "no GPU"),
        ("MIG-5a1d1b60-52cf-5d03-a2a8-a4f8a1ba2bd6", "no GPU"),
        ("1,1", "no GPU"),
        ("0,9,1", "GPU 0"),
        ("GPU-00000000", "no GPU"),
    ],
)
def test_too_few_visible_gpus_are_refused_at_once(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, value: str, shown: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    what = f"sentinel: 2 GPUs requested, but CUDA_VISIBLE_DEVICES={value} shows {shown} of this"
    code, out, err = run(daemon, "exec", "--count", "2", *PRINT)
    assert (code, out, err.startswith(what)) == (4, "", True), err
    refused = daemon.run_unchecked("reserve", "--count", "2", "--for", "1h")
    assert (refused.code, refused.out, refused.err.startswith(what)) == (4, "", True)
    assert daemon.client.reservations() == ()


def test_a_named_gpu_must_be_visible(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    code, out, err = run(daemon, "exec", "--gpus", "0,2", *PRINT)
    assert (code, out) == (4, "")
    assert err.startswith("sentinel: GPU 0, 2 requested, but CUDA_VISIBLE_DEVICES=2 shows GPU 2")
    assert "CUDA reads" not in err, "nothing of this value is ignored"
    code, out, _ = run(daemon, "exec", "--gpus", "0,2", "--count", "1", *PRINT)
    assert (code, out.strip()) == (0, daemon.host.uuid(2))


def test_a_number_is_a_gpu_of_the_job_and_not_of_the_daemon(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container or a job that has one of the cards, as its number 0."""
    socket = str(daemon.places.socket)
    own = Registry.create(tmp_path / "container", GPUS)
    for index in (0, 2):
        shutil.rmtree(own.folder / daemon.host.uuid(index))
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(own.folder))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    code, out, err = run(daemon, "exec", "--socket", socket, "--count", "1", *PRINT)
    assert (code, out.strip()) == (0, daemon.host.uuid(1)), err
    shutil.rmtree(own.folder)
    code, out, err = run(daemon, "exec", "--socket", socket, "--count", "1", *PRINT)
    assert (code, out) == (2, "")
    assert "CUDA does not report which GPUs these numbers are" in err
    assert "`sentinel status --list`" in err
    assert daemon.host.uuid(2) in daemon.run("status", "--list", "--socket", socket)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", daemon.host.uuid(2))
    code, out, _ = run(daemon, "exec", "--socket", socket, "--count", "1", *PRINT)
    assert (code, out.strip()) == (0, daemon.host.uuid(2))


def test_a_request_waits_for_visible_gpus_only(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [daemon.client.reserve([index], seconds=600) for index in range(GPUS)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    with daemon.start_command("exec", "--count", "1", *JOB) as job:
        eventually(lambda: queue(daemon))
        (shown,) = daemon.client.queue()
        assert (shown.count, shown.indices) == (1, (1, 2))
        assert "has been waiting for 1 of GPU 1, 2" in daemon.run("status")
        held[0].end()
        assert daemon.client.reserve([0], seconds=600).gpus == (daemon.host.uuid(0),)
        assert queue(daemon) == [shown.id], "a GPU that it cannot use is for others"
        held[2].end()
        assert read_line(job) == daemon.host.uuid(2)


# --- waits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [("exec", "--count", "1", "--", "true"), RESERVE])
def test_a_command_of_exec_does_not_wait_for_the_gpus_of_exec(
    daemon: Daemon, inner: tuple[str, ...]
) -> None:
    words = (sys.executable, "-m", "sentinel", *inner)
    code, out, err = run(daemon, "exec", "--count", "2", "--", *words)
    assert (code, out) == (1, "")
    own = r"^sentinel: GPU [-0-2, ]+ are reserved by this command's own `exec` \(PID \d+\)\nRun"
    assert re.search(own, err), err
    code, out, err = run(daemon, "exec", "--count", "1", "--", *SHELL, *words)
    assert (code, out) == (1, "")
    parent = r"^sentinel: GPU [0-2] is reserved by a parent of this command \(PID \d+\)\nRun"
    assert re.search(parent, err), err
    # A process cannot wait for its own end, but a job can for that of a parent.
    unset = ("env", "-u", "CUDA_VISIBLE_DEVICES")
    code, out, err = run(daemon, "exec", "--count", "3", "--", *unset, *words)
    assert (code, re.search(own, err) is not None) == (1, True), err
    follows = (*unset, *words[:3], "exec", "--gpus", "0", "--", "true")
    first = ("sh", "-c", '"$@" & exec sleep 600', "sh", *follows)
    with daemon.start_command("exec", "--gpus", "0", "--", *first) as job:
        eventually(lambda: queue(daemon))
        job.kill()
        eventually(lambda: not queue(daemon))
    eventually(lambda: daemon.client.reservations() == ())


@pytest.mark.parametrize("has_api", [True, False])
def test_exec_that_is_interrupted_leaves_nothing_in_the_queue(
    daemon: Daemon, *, has_api: bool
) -> None:
    held = daemon.client.reserve([0, 1, 2], seconds=600)
    with daemon.start_command("exec", "--count", "1", *JOB) as job:
        eventually(lambda: queue(daemon))
        if not has_api:
            daemon.kill_api()
        job.send_signal(signal.SIGINT)
        out, _ = job.communicate(timeout=TIMEOUT_S)
        assert (job.returncode, out) == (130, "")
    eventually(lambda: not queue(daemon))
    held.end()
    assert daemon.client.reservations() == ()


def test_a_daemon_that_ends_ends_the_wait(daemon: Daemon) -> None:
    daemon.client.reserve([0, 1, 2], seconds=600)
    with (
        daemon.start_command("exec", "--count", "1", *JOB) as stopped,
        daemon.start_command("exec", "--count", "1", *JOB) as killed,
    ):
        eventually(lambda: len(queue(daemon)) == 2)
        daemon.kill()
        for job in (stopped, killed):
            out, err = job.communicate(timeout=TIMEOUT_S)
            assert (job.returncode != 0, out) == (True, "")
            assert "daemon" in err


def test_a_wait_for_memory_says_for_what_it_waits(daemon: Daemon) -> None:
    with foreign_process(daemon.host.registry, 1):
        eventually(lambda: daemon.gpu(1).occupancy == "BUSY")
        with daemon.start_command("exec", "--gpus", "1", *JOB) as job:
            assert job.stderr is not None
            assert "place 1 in the queue" in job.stderr.readline()
            assert re.match(r"  GPU 1 is used by .*\(PID \d+, \w+\)", job.stderr.readline())
    eventually(lambda: not queue(daemon))


def test_giving_up_is_said_with_how_to_wait_longer(daemon: Daemon) -> None:
    daemon.client.reserve([0, 1, 2], reason="maintenance", seconds=600)
    for command, *words in (["exec", *PRINT], ["reserve", "--for", "1h"]):
        began = time.monotonic()
        late = daemon.run_unchecked(command, "--gpus", "1", "--wait", "300ms", *words)
        assert time.monotonic() - began < TIMEOUT_S
        assert (late.code, late.out) == (1, "")
        why, remedy = late.err.splitlines()[-2:]
        assert re.match(
            r"sentinel: gave up after 300 ms: GPU 1 is reserved by \w+ for .* more: maintenance",
            why,
        )
        assert remedy == "Wait longer: --wait 8h"
        late = daemon.run_unchecked(command, "--gpus", "1", "--wait", "0", *words)
        assert (late.code, "gave up" in late.err) == (1, False)
    late = daemon.run_unchecked(*RESERVE[:-1], "300ms", "--json")
    assert json.loads(late.out)["remedy"] == "Wait longer: --wait 8h"
