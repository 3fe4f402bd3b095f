"""A simulated GPU behaves like a real one: memory, exits of processes, listing, identity."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from sentinel.errors import ConfigError
from sentinel.host.simulation import DEFAULT_TOTAL, Registry, Timing, default_folder
from sentinel.probe.driver import ReadError
from sentinel.probe.simulated_driver import SimulatedDriver
from sentinel.protocol.gpu import Gpu, Memory
from tests.harness.isolation import OWN_NAMESPACE, needs_namespaces
from tests.harness.narrowing import not_none
from tests.harness.programs import piped_program, run_program, started_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

GIB = 2**30

#: Attaches to a GPU and executes one command per line: ``take N``, ``give N`` or ``leave``.
MEMBER = """
import sys
from pathlib import Path
from sentinel.host.simulation import Registry
member = Registry(Path(sys.argv[1])).attach(sys.argv[2])
print("joined", flush=True)
for line in sys.stdin:
    match line.split():
        case ["take", size]:
            print(member.allocate(int(size)), flush=True)
        case ["give", size]:
            print(member.free(int(size)), flush=True)
        case ["call"]:
            call = member.driver_call()
            print(call.__enter__(), flush=True)
        case ["return"]:
            print(call.__exit__(None, None, None), flush=True)
        case ["leave"]:
            print(member.close(), flush=True)
"""
#: A process on a GPU whose main thread exits alone: it is torn down for as long as a line is
#: awaited.
EXITING = """
import ctypes, sys, threading
from pathlib import Path
from sentinel.host.simulation import Registry
member = Registry(Path(sys.argv[1])).attach(sys.argv[2])
print(member.allocate(int(sys.argv[3])), flush=True)
if sys.argv[4] == "in-call":
    call = member.driver_call()
    call.__enter__()
threading.Thread(target=sys.stdin.readline).start()
ctypes.CDLL(None).syscall(SYS_EXIT, 0)
""".replace("SYS_EXIT", str({"x86_64": 60, "aarch64": 93}.get(platform.machine())))


class Member:
    """A process on a GPU, controlled through its standard input."""

    def __init__(self, registry: Registry, gpu: Gpu, within: tuple[str, ...]) -> None:
        self.process = piped_program(
            *within, sys.executable, "-c", MEMBER, str(registry.folder), gpu.uuid
        )
        self.pid = self.process.pid
        assert self.read_result() == "joined"

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def read_result(self) -> str:
        return not_none(self.process.stdout).readline().strip()

    def do(self, line: str) -> str:
        self.send(line)
        return self.read_result()

    def take(self, size: int) -> bool:
        return self.do(f"take {size}") == "True"

    def close(self) -> None:
        with self.process:
            self.process.kill()


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry.create(tmp_path, 2)


@pytest.fixture
def gpu(registry: Registry) -> Gpu:
    return registry.gpus()[0]


@pytest.fixture
def join(registry: Registry, gpu: Gpu) -> Iterator[Callable[..., Member]]:
    """Return a function that starts a process on the first GPU, optionally in a namespace."""
    with ExitStack() as stack:

        def start(*within: str) -> Member:
            member = Member(registry, gpu, within)
            stack.callback(member.close)
            return member

        yield start


# --- identity --------------------------------------------------------------------------------


def test_the_uuids_are_the_same_in_every_folder(tmp_path: Path) -> None:
    first = Registry.create(tmp_path / "a", 3).gpus()
    second = Registry.create(tmp_path / "b", 3).gpus()
    assert first == second


def test_the_gpus_are_ordered_by_index(tmp_path: Path) -> None:
    gpus = Registry.create(tmp_path, 12).gpus()
    assert [gpu.index for gpu in gpus] == list(range(12))
    assert len({gpu.uuid for gpu in gpus}) == 12
    assert len({gpu.pci_bus_id for gpu in gpus}) == 12
    # Short prefixes of UUIDs are unique.
    assert len({gpu.uuid[:8] for gpu in gpus}) == 12


def test_gpus_can_be_added_without_effect_on_those_in_use(registry: Registry, gpu: Gpu) -> None:
    registry.attach(gpu.uuid).allocate(GIB)
    more = Registry.create(registry.folder, 4, total=GIB)
    assert len(more.gpus()) == 4
    assert more.memory(gpu.uuid) == Memory(total=DEFAULT_TOTAL, used=GIB, free=DEFAULT_TOTAL - GIB)


def test_a_missing_folder_has_no_gpus(tmp_path: Path) -> None:
    assert Registry(tmp_path / "nowhere").gpus() == ()


def test_the_default_folder_is_the_same_for_all_processes_of_a_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SENTINEL_SIM_DIR", raising=False)
    assert str(os.getuid()) in default_folder().name
    monkeypatch.setenv("SENTINEL_SIM_DIR", "/somewhere/else")
    assert default_folder() == Path("/somewhere/else")


# --- memory ----------------------------------------------------------------------------------


def test_an_allocation_succeeds_up_to_the_free_memory(registry: Registry, gpu: Gpu) -> None:
    member = registry.attach(gpu.uuid)
    assert not member.allocate(DEFAULT_TOTAL + 1)
    assert member.held == 0
    assert registry.memory(gpu.uuid).used == 0
    assert member.allocate(DEFAULT_TOTAL)
    assert not member.allocate(1)
    assert registry.memory(gpu.uuid) == Memory(total=DEFAULT_TOTAL, used=DEFAULT_TOTAL, free=0)


def test_freed_memory_is_available_to_other_processes(registry: Registry, gpu: Gpu) -> None:
    member = registry.attach(gpu.uuid)
    assert member.allocate(DEFAULT_TOTAL)
    member.free(3 * GIB)
    assert registry.memory(gpu.uuid).free == 3 * GIB
    member.close()
    assert registry.memory(gpu.uuid).free == DEFAULT_TOTAL
    assert registry.processes(gpu.uuid) == ()


def test_the_memory_of_each_gpu_is_separate(registry: Registry) -> None:
    first, second = registry.gpus()
    registry.attach(first.uuid).allocate(GIB)
    assert registry.memory(second.uuid).used == 0
    assert registry.processes(second.uuid) == ()


def test_concurrent_processes_never_get_more_than_the_total_memory(
    registry: Registry, gpu: Gpu, join: Callable[[], Member]
) -> None:
    members = [join(), join(), join()]
    rounds = 10
    for _ in range(rounds):
        for member in members:
            member.send(f"take {DEFAULT_TOTAL // 2 + 1}")
        results = [member.read_result() == "True" for member in members]
        assert results.count(True) == 1
        winner = members[results.index(True)]
        winner.send(f"give {DEFAULT_TOTAL // 2 + 1}")
        winner.read_result()


def test_the_memory_of_a_killed_process_is_free_as_soon_as_it_is_dead(
    registry: Registry, gpu: Gpu, join: Callable[[], Member]
) -> None:
    member = join()
    assert member.take(DEFAULT_TOTAL)
    assert registry.memory(gpu.uuid).free == 0
    os.kill(member.pid, signal.SIGKILL)
    # The process has exited and is not reaped: a zombie holds no memory.
    os.waitid(os.P_PID, member.pid, os.WEXITED | os.WNOWAIT)
    assert registry.memory(gpu.uuid).free == DEFAULT_TOTAL
    assert registry.attach(gpu.uuid).allocate(DEFAULT_TOTAL)


def test_the_memory_of_a_process_killed_in_a_call_of_the_driver_is_free_later(
    registry: Registry, gpu: Gpu, join: Callable[[], Member]
) -> None:
    registry.set_timing(gpu.uuid, Timing(release_s=3600.0))
    member = join()
    assert member.take(DEFAULT_TOTAL - GIB)
    eventually(lambda: registry.processes(gpu.uuid))
    member.do("call")
    os.kill(member.pid, signal.SIGKILL)
    os.waitid(os.P_PID, member.pid, os.WEXITED | os.WNOWAIT)
    other = registry.attach(gpu.uuid)
    assert registry.memory(gpu.uuid).free == GIB
    assert (registry.processes(gpu.uuid), registry.hidden(gpu.uuid)) == ((), 0)
    assert registry.work(gpu.uuid) == {}
    assert other.allocate(GIB)
    assert not other.allocate(1), "it waits for no teardown that has not begun"
    registry.set_timing(gpu.uuid, Timing(release_s=0.0))
    assert other.allocate(DEFAULT_TOTAL - GIB)
    other.close()


def test_no_look_at_the_memory_prolongs_its_release(
    registry: Registry, gpu: Gpu, join: Callable[[], Member]
) -> None:
    registry.set_timing(gpu.uuid, Timing(release_s=0.2))
    member = join()
    assert member.take(GIB)
    member.do("call")
    before = time.monotonic()
    os.kill(member.pid, signal.SIGKILL)
    eventually(lambda: registry.memory(gpu.uuid).used == 0)
    assert time.monotonic() >= before + 0.2


def test_a_finished_call_of_the_driver_delays_nothing(
    registry: Registry, gpu: Gpu, join: Callable[[], Member]
) -> None:
    registry.set_timing(gpu.uuid, Timing(release_s=3600.0))
    member = join()
    assert member.take(GIB)
    member.do("call")
    member.do("return")
    os.kill(member.pid, signal.SIGKILL)
    os.waitid(os.P_PID, member.pid, os.WEXITED | os.WNOWAIT)
    assert registry.memory(gpu.uuid).used == 0


@pytest.mark.parametrize("place", ["in-call", "outside"])
def test_an_allocation_waits_for_a_teardown_unless_a_call_of_the_driver_holds_it_up(
    registry: Registry, gpu: Gpu, place: str
) -> None:
    words = (str(registry.folder), gpu.uuid, str(DEFAULT_TOTAL), place)
    pipe = {"stdin": subprocess.PIPE}
    with (
        started_program(sys.executable, "-c", EXITING, *words, **pipe) as exiting,
        contextlib.closing(registry.attach(gpu.uuid)) as newcomer,
        ThreadPoolExecutor(1) as pool,
    ):
        assert exiting.stdout is not None
        assert exiting.stdin is not None
        assert exiting.stdout.readline() == "True\n"
        eventually(lambda: psutil.Process(exiting.pid).status() == psutil.STATUS_ZOMBIE)
        assert registry.memory(gpu.uuid).free == 0
        if place == "in-call":
            assert not newcomer.allocate(DEFAULT_TOTAL)
            return
        allocation = pool.submit(newcomer.allocate, DEFAULT_TOTAL)
        with pytest.raises(TimeoutError):
            allocation.result(0.1)
        exiting.stdin.write("\n")
        exiting.stdin.flush()
        assert allocation.result(TIMEOUT_S)


def test_a_stopped_process_keeps_its_memory(
    registry: Registry, gpu: Gpu, join: Callable[[], Member]
) -> None:
    member = join()
    assert member.take(GIB)
    os.kill(member.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, member.pid, os.WSTOPPED)
    assert registry.memory(gpu.uuid).used == GIB


def test_a_forked_child_holds_no_memory_and_its_parent_keeps_its_own(
    registry: Registry, gpu: Gpu, join: Callable[[], Member]
) -> None:
    """A query by the child neither frees the parent's memory nor counts the child."""
    member = join()
    assert member.take(GIB)
    assert registry.attach(gpu.uuid).allocate(GIB)
    child = os.fork()
    if not child:
        seen = registry.memory(gpu.uuid).used
        os._exit(0 if seen == 2 * GIB else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert registry.memory(gpu.uuid).used == 2 * GIB


#: A process on a GPU that forks below Python, closes what a forked process of a stressor closes if
#: told so, and is killed.
FORKING = """
import ctypes, os, signal, sys
from pathlib import Path
from sentinel.host.simulation import Registry
from sentinel.stressor import forked_children
member = Registry(Path(sys.argv[1])).attach(sys.argv[2])
member.allocate(int(sys.argv[3]))
child = ctypes.PyDLL(None).fork()
if not child:
    if sys.argv[4] == "closes":
        forked_children._detach([], sys.argv[1])
    print(os.getpid(), flush=True)
    signal.pause()
signal.pause()
"""


@pytest.mark.parametrize("closes", [True, False])
def test_the_memory_is_free_when_the_last_process_has_closed_the_device(
    registry: Registry, gpu: Gpu, *, closes: bool
) -> None:
    arguments = (str(registry.folder), gpu.uuid, str(GIB), "closes" if closes else "keeps")
    with started_program(sys.executable, "-c", FORKING, *arguments) as parent:
        child = psutil.Process(int(not_none(parent.stdout).readline()))
        try:
            parent.kill()
            parent.wait()
            assert registry.memory(gpu.uuid).used == (0 if closes else GIB)
            assert registry.attach(gpu.uuid).allocate(DEFAULT_TOTAL) is closes
            assert not registry.processes(gpu.uuid), "it never was listed"
        finally:
            child.kill()
        own = DEFAULT_TOTAL if closes else 0
        eventually(lambda: registry.memory(gpu.uuid).used == own)


@needs_namespaces
def test_the_memory_but_not_the_process_is_visible_in_another_pid_namespace(
    registry: Registry, gpu: Gpu, join: Callable[[], Member]
) -> None:
    member = join()
    assert member.take(GIB)
    eventually(lambda: registry.processes(gpu.uuid))
    script = (
        "import sys; from pathlib import Path; from sentinel.host.simulation import Registry\n"
        "registry, gpu = Registry(Path(sys.argv[1])), sys.argv[2]\n"
        "print(registry.memory(gpu).used, len(registry.processes(gpu)), registry.hidden(gpu))"
    )
    command = [*OWN_NAMESPACE, sys.executable, "-c", script, str(registry.folder), gpu.uuid]
    done = run_program(*command, check=True)
    assert done.stdout.split() == [str(GIB), "0", "1"]


@needs_namespaces
def test_the_host_lists_a_process_of_a_pid_namespace_by_its_host_pid(
    registry: Registry, gpu: Gpu, join: Callable[..., Member]
) -> None:
    member = join(*OWN_NAMESPACE)
    assert member.take(GIB)
    eventually(lambda: registry.processes(gpu.uuid))
    (process,) = registry.processes(gpu.uuid)
    assert Path(f"/proc/{process.pid}/task/{process.pid}/children").exists()
    assert process.pid not in {1, member.pid}
    member.close()
    eventually(lambda: registry.memory(gpu.uuid).used == 0)


def test_changes_are_atomic_for_readers(
    registry: Registry, gpu: Gpu, join: Callable[[], Member]
) -> None:
    members = [join(), join()]
    for member in members:
        assert member.take(GIB)  # always at least this much, so a partial file would be visible
    done = threading.Event()

    def change_memory(member: Member) -> None:
        for _ in range(100):
            assert member.take(GIB)
            member.send(f"give {GIB}")
            member.read_result()

    def work() -> None:
        threads = [threading.Thread(target=change_memory, args=(member,)) for member in members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    seen = set()
    while not done.is_set():
        seen.add(registry.memory(gpu.uuid).used)
    worker.join()
    assert seen <= {2 * GIB, 3 * GIB, 4 * GIB}
    assert len(seen) > 1


# --- listing ---------------------------------------------------------------------------------


def test_memory_is_visible_at_once_and_the_process_after_the_listing_delay(
    registry: Registry, gpu: Gpu, join: Callable[[], Member]
) -> None:
    before = time.monotonic()
    member = join()
    assert member.take(GIB)
    assert registry.memory(gpu.uuid).used == GIB
    eventually(lambda: registry.processes(gpu.uuid))
    assert time.monotonic() - before >= Timing().listing_s
    (process,) = registry.processes(gpu.uuid)
    assert process.pid == member.pid
    assert process.memory == GIB


def test_a_process_without_memory_is_not_listed(registry: Registry, gpu: Gpu) -> None:
    registry.attach(gpu.uuid)
    assert registry.processes(gpu.uuid) == ()
    assert registry.memory(gpu.uuid).used == 0


# --- faults ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["error", "lost", "hang"])
def test_an_injected_fault_affects_its_gpu_until_it_is_removed(
    registry: Registry, fault: str
) -> None:
    first, second = registry.gpus()
    registry.inject(first.uuid, fault)
    assert registry.fault(first.uuid) == fault
    assert registry.fault(second.uuid) is None
    registry.inject(first.uuid, None)
    assert registry.fault(first.uuid) is None
    registry.inject(first.uuid, None)


def test_figures_that_are_no_object_make_their_gpu_unreadable(registry: Registry, gpu: Gpu) -> None:
    """Any other error ends the probe, for all GPUs."""
    (registry.folder / gpu.uuid / "figures").write_text("garbage")
    with pytest.raises(ReadError):
        SimulatedDriver(registry).mig(gpu.uuid)


def test_every_gpu_has_a_device_node_that_can_be_watched_and_opened(registry: Registry) -> None:
    nodes = {registry.node(gpu.uuid) for gpu in registry.gpus()}
    assert len(nodes) == 2
    for node in nodes:
        assert node.read_bytes() == b""


def test_utilization_is_the_share_counted_by_stressors_or_full_for_other_processes(
    registry: Registry, gpu: Gpu
) -> None:
    driver = SimulatedDriver(registry)
    member = registry.attach(gpu.uuid)
    assert member.allocate(GIB)
    member.count_work(0.0, 0.0)
    driver.utilization(gpu.uuid)
    began = time.monotonic()
    # Only the elapsed part of an announced hour of work counts.
    member.count_work(3600.0, began + 3600.0)
    eventually(lambda: driver.utilization(gpu.uuid) == pytest.approx(1.0, abs=0.01))
    assert driver.sm_clock(gpu.uuid) == 1980
    member.count_work(0.0, 0.0)
    eventually(lambda: driver.utilization(gpu.uuid) == 0.0)
    assert (driver.power(gpu.uuid), driver.temperature(gpu.uuid)) == (80.0, 32)
    with contextlib.closing(registry.attach(gpu.uuid)) as other:
        assert other.allocate(GIB)
        eventually(lambda: driver.utilization(gpu.uuid) == 1.0)
    member.close()
    assert registry.work(gpu.uuid) == {}


def test_the_readings_of_one_moment_have_one_utilization(
    registry: Registry, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the work may begin between two of them."""
    driver = SimulatedDriver(registry)
    shares = iter([0.0, 1.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(driver, "utilization", lambda _: next(shares))
    found = driver.telemetry(gpu.uuid)
    assert (found.temperature_c, found.power_w, found.sm_clock_mhz) == (32, 80.0, 345)


def test_the_files_of_a_dead_process_are_removed(
    registry: Registry, gpu: Gpu, join: Callable[[], Member]
) -> None:
    folder = registry.folder / gpu.uuid
    before = set(folder.iterdir())
    member = join()
    assert member.take(10)
    assert list(registry.work(gpu.uuid).values()) == [None]
    assert len(set(folder.iterdir()) - before) > 1
    member.close()
    eventually(lambda: registry.work(gpu.uuid) == {})
    assert set(folder.iterdir()) - before == {folder / "allocation.lock"}


@pytest.mark.parametrize("below", ["file/gpus", "file"])
def test_a_folder_that_cannot_be_created_is_named_with_its_variable(
    tmp_path: Path, below: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"{tmp_path}/{below} of simulated GPUs cannot") as caught:
        Registry.create(tmp_path / below, 1)
    assert caught.value.remedy == "Set SENTINEL_SIM_DIR to a folder that you can write."
