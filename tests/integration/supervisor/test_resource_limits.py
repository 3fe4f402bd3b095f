"""Limits of processes and of memory that Sentinel's own processes reach while they run."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from sentinel.host.registry import running
from tests.harness.daemon_harness import Daemon
from tests.harness.gpu_environment import ROOT, SimulatedHost, replace_torch
from tests.harness.programs import run_program
from tests.harness.sentinel_process import SentinelProcess, eventually, gone
from tests.harness.timing import TIMEOUT_S

QUICK = ("--rearm", "300ms", "--poll", "100ms", "--workload", "hold")
#: A user without any other process, also in another test: the limit is one of a user's processes.
USER = 100_000 + os.getpid()
#: The right to read this Python, which is in root's home on some hosts; it lifts no limit.
READS = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *READS)
#: The controller of memory, of version 1 or 2, and its files.
CGROUPS = {
    Path("/sys/fs/cgroup/memory"): ("memory.limit_in_bytes", "memory.oom_control"),
    Path("/sys/fs/cgroup"): ("memory.max", "memory.events"),
}

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.getuid() != 0, reason="only root sets other users and cgroups"),
]


# --- processes of a user ---------------------------------------------------------------------


@pytest.fixture
def of_user(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedHost]:
    """Provide simulated GPUs of a user without privileges, in a folder that it can enter."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        replace_torch(folder, monkeypatch)
        host = SimulatedHost(folder)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER, follow_symlinks=False)
        imports = [*AS_USER, sys.executable, "-c", "import sentinel.cli.main, torch"]
        done = subprocess.run(imports, env=host.environment(), capture_output=True, check=False)
        if done.returncode:
            pytest.skip("another user cannot import this installation")
        monkeypatch.chdir(folder)
        monkeypatch.setenv("XDG_STATE_HOME", str(folder))
        yield host


def test_while_processes_are_refused_what_is_held_is_yielded_and_all_are_retried(
    of_user: SimulatedHost,
) -> None:
    """The API process, a stressor, and then both probes; newcomers come without any of them."""
    with of_user.sentinel(2, *QUICK, api=True, within=AS_USER) as sentinel:
        pid = sentinel.process.pid
        for gpu in (0, 1):
            sentinel.wait_for("stressor.ready", gpu=gpu)
        sentinel.wait_for("service.ready")
        eventually(lambda: len(sentinel.children()) >= 6)  # with the spare probe and the tracker
        limit_processes(pid, 1)

        kill(sentinel, "api, answers")
        wait_for_refusal(sentinel, "service.failed")
        take_memory(of_user, gpu=1)
        wait_for_refusal(sentinel, "stressor.failed")
        kill(sentinel, "spare probe")
        kill(sentinel, "probe, reads")
        wait_for_refusal(sentinel, "probe.exited")
        take_memory(of_user, gpu=0)
        assert "stressor.fatal" not in sentinel.names()

        counts = {name: sentinel.names().count(name) for name in ("service.ready", "probe.ready")}
        limit_processes(pid, None)
        for name, count in counts.items():
            sentinel.wait_for(name, count=count + 1)
        for gpu in (0, 1):
            sentinel.wait_for("stressor.ready", gpu=gpu, count=2)
        assert sentinel.stop() == 0
    assert sentinel.errors == ""


def take_memory(host: SimulatedHost, gpu: int) -> None:
    """Be a newcomer that gets its memory and goes."""
    with host.job(gpu, stay=0.1, within=AS_USER) as newcomer:
        assert newcomer.got_memory()
        newcomer.wait_for_exit()


@pytest.mark.parametrize("number", [1, 3, 6])
def test_a_limit_of_processes_at_the_start_is_named(of_user: SimulatedHost, number: int) -> None:
    """The probe cannot be spawned; the supervisor has no thread; the probe has too few."""
    within = ("prlimit", f"--nproc={number}", *AS_USER)
    with of_user.sentinel(1, *QUICK, within=within) as sentinel:
        eventually(
            lambda: (
                sentinel.process.poll() is not None
                or any("ulimit -u" in str(event.get("reason")) for event in sentinel.events)
            )
        )
        if sentinel.process.poll() is None:
            assert sentinel.stop() == 0
            assert sentinel.errors == ""
            return
        assert sentinel.wait_for_exit() == 2
        assert "ulimit -u" in sentinel.errors
        assert not any(word in sentinel.errors for word in ("Traceback", "bug"))


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_start_under_a_limit_of_processes_names_it_and_leaves_nothing(
    of_user: SimulatedHost, number: int
) -> None:
    """No daemon can be spawned; the daemon has no thread; the probe cannot be spawned."""
    folder = str(of_user.folder)
    more = {"HOME": folder, "STATE_DIRECTORY": folder, "SENTINEL_SOCKET": f"{folder}/run/sock"}
    environment = of_user.environment(**more)

    def sentinel(*words: str, within: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        command = [*within, *AS_USER, sys.executable, "-m", "sentinel", *words]
        return run_program(*command, env=environment, cwd=of_user.folder)

    eventually(lambda: not any(map(is_of_user, psutil.process_iter())))
    within = ("prlimit", f"--nproc={number}")
    done = sentinel("start", "--simulate", "1", *QUICK, within=within)
    assert "`ulimit -u`" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
    eventually(lambda: not any(map(is_of_user, psutil.process_iter())))
    assert sentinel("status").returncode == 3


def is_of_user(process: psutil.Process) -> bool:
    """Check for a process of the user, also one that has ended and still counts."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.uids().real == USER
    return False


def limit_processes(pid: int, number: int | None) -> None:
    """Set the limit of processes of a running process; None restores it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    soft = "unlimited" if hard == resource.RLIM_INFINITY else hard
    soft = soft if number is None else number
    subprocess.run([*AS_USER, "prlimit", f"--pid={pid}", f"--nproc={soft}:"], check=True)


def kill(sentinel: SentinelProcess, title: str) -> None:
    """Kill the process of a title, and wait until it is gone."""
    process = sentinel.wait_for_process(title)
    process.kill()
    eventually(lambda: gone(process))


def wait_for_refusal(sentinel: SentinelProcess, name: str) -> None:
    """Wait for an event of that name which names the limit."""
    eventually(
        lambda: any(
            "ulimit -u" in str(event.get("reason"))
            for event in sentinel.events
            if event["event"] == name
        )
    )


# --- memory of a cgroup ----------------------------------------------------------------------


class MemoryCgroup:
    """A cgroup with a limit of memory.

    Args:
        limit_bytes: The limit.
    """

    def __init__(self, limit_bytes: int) -> None:
        found = [root for root, (limit, _) in CGROUPS.items() if usable(root, limit)]
        if not found:
            pytest.skip("needs a cgroup with a limit of memory")
        self.folder = found[0] / f"sentinel-test-{os.getpid()}"
        self.folder.mkdir()
        limit, self._events = CGROUPS[found[0]]
        (self.folder / limit).write_text(str(limit_bytes))

    def add(self, pid: int) -> None:
        """Move a process into the cgroup."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def kills(self) -> int:
        """Count the processes that the kernel has killed here."""
        lines = (self.folder / self._events).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def close(self) -> None:
        """Remove the cgroup once it is empty."""

        def removed() -> bool:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            return not self.folder.exists()

        eventually(removed)


def usable(root: Path, limit: str) -> bool:
    """Check that cgroups with a limit can be created in a hierarchy."""
    folder = root / f"sentinel-probe-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        return False
    try:
        return (folder / limit).exists()
    finally:
        folder.rmdir()


@pytest.fixture
def one_page() -> Iterator[MemoryCgroup]:
    """Provide a cgroup in which the next allocation of a process ends it."""
    cgroup = MemoryCgroup(4096)
    try:
        yield cgroup
    finally:
        cgroup.close()


@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize(
    ("title", "event"),
    [
        ("supervisor,", None),
        ("probe, reads", "probe.exited"),
        ("api, answers", "service.failed"),
        ("keeps idle GPU", "stressor.failed"),
    ],
)
def test_a_process_at_its_limit_of_memory_is_killed_and_the_others_go_on(
    simulated: SimulatedHost, one_page: MemoryCgroup, title: str, event: str | None
) -> None:
    with simulated.sentinel(1, *QUICK, api=True) as sentinel:
        sentinel.wait_for("stressor.ready")
        sentinel.wait_for("service.ready")
        victim = sentinel.wait_for_process(title)
        everything = [*sentinel.children(), psutil.Process(sentinel.process.pid)]
        one_page.add(victim.pid)
        with ask_for_status(simulated):  # the API process allocates nothing unless asked
            eventually(lambda: gone(victim))
        assert one_page.kills() == 1
        with simulated.job() as newcomer:
            assert newcomer.got_memory()
        if event is None:
            assert sentinel.wait_for_exit() == -signal.SIGKILL
            eventually(lambda: all(gone(process) for process in everything))
            return
        said = str(dict(sentinel.wait_for(event)))
        assert ("'exit_code': -9" if event == "probe.exited" else "where memory runs out") in said
        sentinel.wait_for("stressor.ready", count=2)
        if event == "service.failed":
            sentinel.wait_for("service.ready", count=2)
        assert sentinel.stop() == 0
        assert sentinel.errors == ""


@pytest.mark.usefixtures("fake_torch")
def test_a_start_whose_daemon_reaches_a_limit_of_memory_says_so_and_leaves_nothing(
    daemon: Daemon, one_page: MemoryCgroup
) -> None:
    with daemon.start_command("start", "--simulate", "1", *QUICK) as command:
        started = psutil.Process(command.pid)
        eventually(started.children)
        (child,) = started.children()
        one_page.add(child.pid)
        _, said = command.communicate(timeout=TIMEOUT_S)
    assert command.returncode == 2
    assert "the daemon was ended by SIGKILL" in said
    assert "where memory runs out" in said
    assert one_page.kills() == 1
    assert running(daemon.places) is None
    assert "where memory runs out" in daemon.run_unchecked("logs").out


@contextlib.contextmanager
def ask_for_status(host: SimulatedHost) -> Iterator[None]:
    """Ask the daemon for its status again and again."""
    script = f'while :; do "{sys.executable}" -m sentinel status; done'
    process = subprocess.Popen(
        ["bash", "-c", script],
        env=host.environment(),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.usefixtures("fake_torch")
def test_the_kernel_chooses_the_stressor_of_a_full_cgroup(simulated: SimulatedHost) -> None:
    """One limit for all processes, as of a container; only the stressor's memory grows."""
    cgroup = MemoryCgroup(400 * 2**20)
    flags = (*QUICK, "--workload", "bad_workloads:eats_host_memory:mebibytes=1024")
    join = f'echo $$ > {cgroup.folder}/cgroup.procs; exec "$@"'
    try:
        with simulated.sentinel(
            1, *flags, api=True, within=("bash", "-c", join, "bash")
        ) as sentinel:
            eventually(lambda: any("memory runs out" in reason for reason in failures(sentinel)))
            assert cgroup.kills() >= 1
            simulated.take_memory()
            assert not {"probe.exited", "service.failed"} & set(sentinel.names())
            assert sentinel.stop() == 0
    finally:
        cgroup.close()


def failures(sentinel: SentinelProcess) -> list[str]:
    """List the reasons for which stressors have failed so far."""
    return [
        str(event["reason"]) for event in sentinel.events if event["event"] == "stressor.failed"
    ]
