"""A standby stressor loads torch in advance, and becomes the stressor of any GPU."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sentinel.core.observation import ChildFacts, ProcessFacts
from sentinel.core.step import Start
from sentinel.errors import ChildExitCode
from sentinel.host.simulation import Registry
from sentinel.protocol.stressor import Failed, MemoryTarget, Ready, StandbySpec, StressorSpec
from sentinel.supervisor.stressor_pool import LONG_LEASE_S, StressorPool
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.narrowing import not_none
from tests.harness.sentinel_process import eventually, gone
from tests.harness.timing import MACHINE_SLOWNESS, TIMEOUT_S


class Bench:
    """A pool over one simulated GPU, with the test as its supervisor."""

    def __init__(self, folder: Path) -> None:
        self.registry = Registry.create(folder, 1)
        (self.gpu,) = self.registry.gpus()
        self.workload = "hold"
        self.options: dict[str, str] = {}
        self.locks: tuple[int, ...] = ()
        self.pool = StressorPool(lambda _: self.spec(), lambda _: self.locks, StandbySpec())
        self.facts: list[ChildFacts] = []

    def spec(self) -> StressorSpec:
        return StressorSpec(
            gpu=self.gpu,
            memory=MemoryTarget(share=0.5),
            chunk=2**29,
            workload=self.workload,
            options=self.options,
            lease=LONG_LEASE_S * MACHINE_SLOWNESS,
            simulation=str(self.registry.folder),
        )

    def start(self) -> None:
        """Start the stressor, from the standby one if there is one."""
        self.pool.start(self.gpu, Start(uuid=self.gpu.uuid, generation=1, standby=True))

    def prepared(self) -> int:
        """Prepare a standby stressor; return its PID."""
        self.pool.standby.start(1)
        facts = self.wait(self.pool.standby.collect, lambda one: one.works or bool(one.exit))
        assert facts == ProcessFacts(generation=1, works=True)
        child = not_none(self.pool.standby._handle.child)
        return child.pid

    def wait(
        self, collect: Callable[[], ProcessFacts | None], until: Callable[[ProcessFacts], bool]
    ) -> ProcessFacts:
        """Collect facts about the standby stressor until they fulfil a condition."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            facts = collect()
            if facts is not None and until(facts):
                return facts
            select.select(self.pool.standby.files(), [], [], 0.1)
        raise AssertionError("the standby stressor did nothing")

    def messages(self, kind: type) -> list[object]:
        """Collect the facts about the stressor; return all its messages of one kind."""
        self.pool.renew_lease(self.gpu.uuid, LONG_LEASE_S * MACHINE_SLOWNESS)
        self.facts += self.pool.collect().values()
        return [
            message
            for facts in self.facts
            for message in facts.messages
            if isinstance(message, kind)
        ]

    def exited(self) -> bool:
        """Check whether the stressor has exited."""
        self.messages(Ready)
        return any(facts.exit is not None for facts in self.facts)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "gpus")
    yield bench
    bench.pool.kill_all()
    assert bench.pool.standby.close()
    eventually(lambda: bench.pool.collect() or not bench.pool.files())


@pytest.mark.long
def test_it_becomes_the_stressor_of_a_gpu(bench: Bench, tmp_path: Path) -> None:
    """With the same process, its own stamps, and the locks of the GPU."""
    pid = bench.prepared()
    threads = psutil.Process(pid).threads()
    nice = {os.getpriority(os.PRIO_PROCESS, thread.id) for thread in threads}
    assert nice == {os.getpriority(os.PRIO_PROCESS, 0)}, "a niced one would free its memory late"
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    bench.locks = (lock,)
    bench.start()
    eventually(lambda: bench.messages(Ready))
    assert not_none(bench.facts[0].child).pid == pid
    assert bench.pool.standby.collect() is None
    assert bench.registry.memory(bench.gpu.uuid).used > 2**32

    os.close(lock)
    other = os.open(tmp_path / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    bench.pool.kill(bench.gpu.uuid, 1)
    eventually(bench.exited)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


@pytest.mark.long
def test_its_first_error_is_reported_like_that_of_any_stressor(bench: Bench) -> None:
    bench.prepared()
    bench.workload = "no.such.module:function"
    bench.start()
    eventually(bench.exited)
    (failed,) = bench.messages(Failed)
    assert isinstance(failed, Failed)
    assert "no.such.module" in failed.reason


@pytest.mark.long
def test_options_that_no_message_has_room_for_are_passed_by_a_spawn(bench: Bench) -> None:
    prepared = bench.prepared()
    bench.options = {"text": "x" * 70_000}
    bench.start()
    eventually(lambda: bench.messages(Failed))
    (failed,) = bench.messages(Failed)
    assert isinstance(failed, Failed)
    assert "text" in failed.reason, "hold takes no options"
    assert not_none(bench.facts[0].child).pid != prepared


@pytest.mark.long
def test_one_that_has_died_unseen_is_not_used(bench: Bench) -> None:
    os.kill(bench.prepared(), signal.SIGKILL)
    child = not_none(bench.pool.standby._handle.child)
    eventually(child.ended)
    bench.start()
    eventually(lambda: bench.messages(Ready))


@pytest.mark.long
def test_one_that_was_stopped_is_not_used(bench: Bench) -> None:
    """It would keep its GPU waiting."""
    pid = bench.prepared()
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    bench.start()
    eventually(lambda: bench.messages(Ready))
    assert not_none(bench.facts[0].child).pid != pid
    eventually(lambda: gone(psutil.Process(pid)) if psutil.pid_exists(pid) else True)


@pytest.mark.long
def test_without_a_prepared_one_a_stressor_is_spawned(bench: Bench) -> None:
    bench.start()
    eventually(lambda: bench.messages(Ready))


@pytest.mark.long
@pytest.mark.parametrize("is_standby", [True, False])
def test_a_program_that_a_workload_starts_keeps_no_file_of_its_stressor(
    bench: Bench, tmp_path: Path, *, is_standby: bool
) -> None:
    """A lock would keep the GPU from the next sentinel."""
    bench.workload = "bad_workloads:starts_a_daemon"
    if is_standby:
        bench.prepared()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        bench.locks = (lock.fileno(),)
        bench.start()
        eventually(lambda: bench.messages(Ready))
    (program,) = psutil.Process(not_none(bench.facts[0].child).pid).children()
    try:
        open_files = {str(file.readlink()) for file in Path(f"/proc/{program.pid}/fd").iterdir()}
        assert not {
            file for file in open_files if file.startswith(("/memfd:", "socket:", str(tmp_path)))
        }
        bench.pool.kill(bench.gpu.uuid, 1)
        eventually(bench.exited)
        with (tmp_path / "lock").open() as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        program.kill()


def test_a_missing_torch_is_the_reason_of_its_failure(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    monkeypatch.syspath_prepend(tmp_path)  # a spawned child gets the path of this process
    bench.pool.standby.start(1)
    facts = bench.wait(bench.pool.standby.collect, lambda one: one.failed is not None)
    assert "no torch here" in str(facts.failed)
    assert not facts.works


@pytest.mark.long
def test_it_ends_with_its_supervisor(bench: Bench) -> None:
    bench.prepared()
    child = not_none(bench.pool.standby._handle.child)
    child.channel.shutdown(socket.SHUT_RDWR)
    facts = bench.wait(bench.pool.standby.collect, lambda one: one.exit is not None)
    assert not_none(facts.exit).code == ChildExitCode.ORPHANED


@pytest.mark.long
def test_a_stressor_is_back_at_once_after_a_newcomer(tmp_path: Path) -> None:
    host = SimulatedHost(tmp_path)
    flags = ("--rearm", "300ms", "--workload", "hold", "--standby", "on")
    with host.sentinel(1, *flags) as sentinel:
        sentinel.wait_for("stressor.ready")
        eventually(lambda: _titles(sentinel.process.pid, "sentinel: standby, becomes"))
        with host.job() as newcomer:
            assert newcomer.got_memory()
        assert sentinel.wait_for("stressor.starting", count=2)["standby"]
        sentinel.wait_for("stressor.ready", count=2)
    assert not _titles(os.getpid(), "sentinel: standby"), "it ends with its supervisor"


def _titles(pid: int, title: str) -> list[str]:
    """List the titles of a process's descendants that begin with ``title``."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return [one for one in found if one.startswith(title)]
