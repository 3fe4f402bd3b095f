"""The probe: a real process over simulated GPUs, seen from the supervisor's end of its socket."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sentinel.host.procfs import ancestors_of, own_stat
from sentinel.host.simulation import Registry
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind, Reading
from sentinel.protocol.inflight_calls import gpu_of
from sentinel.protocol.probe import Inventory, ProbeSpec, Unavailable
from tests.harness.probe_harness import NEVER, ProbeHarness, open_nodes, until
from tests.harness.timing import TIMEOUT_S

MIB = 2**20
Start = Callable[..., ProbeHarness]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Return two simulated GPUs."""
    return Registry.create(tmp_path / "gpus", 2)


@pytest.fixture
def start(registry: Registry) -> Iterator[Start]:
    """Return a function that starts a probe; all of them are ended after the test."""
    started: list[ProbeHarness] = []

    def start_one(
        *,
        poll: float = 0.05,
        watch_interval: float = 0.025,
        skip: tuple[str, ...] = (),
        utilization: bool = False,
        send_buffer: int | None = None,
    ) -> ProbeHarness:
        spec = ProbeSpec(
            utilization=utilization,
            poll=poll,
            watch_interval=watch_interval,
            skip=skip,
            simulation=str(registry.folder),
        )
        started.append(ProbeHarness(spec, send_buffer))
        return started[-1]

    yield start_one
    for supervisor in started:
        supervisor.close()


def of(gpu: Gpu) -> Callable[[Reading], bool]:
    """Tell the readings of ``gpu``."""
    return lambda reading: reading.uuid == gpu.uuid


def since(moment: float) -> Callable[[Reading], bool]:
    """Tell the readings that began at ``moment`` or later."""
    return lambda reading: reading.at >= moment


# --- what it says ----------------------------------------------------------------------------


def test_the_first_message_is_the_inventory(registry: Registry, start: Start) -> None:
    """The first message names all GPUs and the driver."""
    assert start().inventory() == Inventory(gpus=registry.gpus(), driver="simulated")


def test_every_gpu_is_published_at_every_poll(registry: Registry, start: Start) -> None:
    """Readings of idle GPUs keep coming, complete and stamped before each call."""
    supervisor = start()
    supervisor.inventory()
    for gpu in registry.gpus():
        latest = 0.0
        for _ in range(3):
            reading = supervisor.reading(of(gpu))
            total = gpu.memory_total
            assert reading.memory == Memory(total=total, used=0, free=total)
            assert (reading.processes, reading.exclusive, reading.mig) == ((), False, False)
            assert latest < reading.at <= reading.processes_at <= time.monotonic()
            latest = reading.at


def test_all_gpus_are_polled_at_the_same_time(registry: Registry, start: Start) -> None:
    """The supervisor is woken once per poll and not once per GPU."""
    poll = 0.25
    supervisor = start(poll=poll)
    supervisor.inventory()
    late = poll
    until = time.monotonic() + TIMEOUT_S
    while late >= poll / 2:  # on a busy machine, some polls start late
        assert time.monotonic() < until, "the readings do not start with the poll"
        late = max(supervisor.reading(of(gpu)).at % poll for gpu in registry.gpus())


def test_growth_on_a_held_gpu_is_published_at_once(registry: Registry, start: Start) -> None:
    """Not the poll but the watch sees a newcomer's memory, and its process soon after that."""
    supervisor = start(poll=NEVER)
    first, second = supervisor.inventory().gpus
    supervisor.watch((first, second), held=(first,))
    supervisor.reading(lambda r: r.uuid == first.uuid and r.processes == ())
    newcomer = registry.attach(first.uuid)
    asked = time.monotonic()
    assert newcomer.allocate(MIB)
    grown = supervisor.reading(lambda r: r.memory is not None and r.memory.used == MIB)
    assert grown.uuid == first.uuid
    named = supervisor.reading(lambda r: bool(r.processes))
    assert named.processes is not None
    assert [process.pid for process in named.processes] == [os.getpid()]
    assert named.processes_at > asked
    newcomer.close()
    supervisor.reading(lambda r: r.processes == () and r.memory is not None and not r.memory.used)


def test_a_change_of_held_gpus_triggers_a_reading(registry: Registry, start: Start) -> None:
    """Who becomes held, and who stops being held, is read in full without waiting for a poll."""
    supervisor = start(poll=NEVER)
    first, second = supervisor.inventory().gpus
    supervisor.read_all((first, second))
    with_member = registry.attach(second.uuid)
    for held in ((second,), ()):
        assert with_member.allocate(MIB)
        asked = time.monotonic()
        supervisor.watch((first, second), held=held)
        reading = supervisor.reading(since(asked))
        assert reading.uuid == second.uuid
        assert reading.memory is not None
        assert reading.memory.used == with_member.held


def test_utilization_by_others_is_published_on_request(registry: Registry, start: Start) -> None:
    """Not that of a GPU that we hold: our own load would be in it."""
    supervisor = start(utilization=True)
    first, second = supervisor.inventory().gpus
    with contextlib.closing(registry.attach(first.uuid)) as member:
        assert member.allocate(MIB)
        supervisor.reading(lambda r: of(first)(r) and r.utilization == 1.0)
        assert supervisor.reading(of(second)).utilization == 0.0
        supervisor.watch((first, second), held=(first,))
        supervisor.reading(lambda r: of(first)(r) and r.utilization is None)
        assert supervisor.reading(of(second)).utilization == 0.0


def test_a_process_is_published_with_its_details(registry: Registry, start: Start) -> None:
    """Its start, session and name come with its first reading; its user as soon as it is known."""
    with contextlib.closing(registry.attach(registry.gpus()[0].uuid)) as member:
        assert member.allocate(MIB)
        supervisor = start()
        supervisor.inventory()
        reading = supervisor.reading(lambda r: any(p.user for p in r.processes or ()))
    stat = own_stat()
    assert reading.processes == (
        GpuProcess(
            pid=os.getpid(),
            kind=ProcessKind.COMPUTE,
            memory=MIB,
            started=stat.started,
            session=os.getsid(0),
            name=stat.name,
            user=getpass.getuser(),
            ancestors=ancestors_of(stat),
        ),
    )


def test_opens_of_a_device_node_boost_the_reads_of_a_held_gpu(
    registry: Registry, start: Start
) -> None:
    """A burst such as a CUDA program makes brings growth to light that nothing else would see."""
    supervisor = start(poll=NEVER, watch_interval=NEVER)
    first, second = supervisor.inventory().gpus
    supervisor.watch((first, second), held=(first,))
    asked = time.monotonic()
    supervisor.reading(lambda r: r.uuid == first.uuid and r.at >= asked)
    assert registry.attach(first.uuid).allocate(MIB)
    done = threading.Event()

    def open_often() -> None:
        while not done.wait(0.05):
            open_nodes(registry.node(first.uuid), registry.node(second.uuid))

    opener = threading.Thread(target=open_often)
    opener.start()
    try:
        reading = supervisor.reading(lambda r: r.memory is not None and r.memory.used == MIB)
    finally:
        done.set()
        opener.join()
    assert reading.uuid == first.uuid


# --- what goes wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "lost"), [("error", False), ("lost", True)])
def test_a_fault_is_published_as_a_reading(
    registry: Registry, start: Start, *, fault: str, lost: bool
) -> None:
    """A broken GPU is published as such, the other one is still read, and a repair is seen."""
    supervisor = start()
    first, second = supervisor.inventory().gpus
    registry.plant(first.uuid, fault)
    for _ in range(2):
        broken = supervisor.reading(lambda r: r.fault is not None)
        assert (broken.uuid, broken.lost) == (first.uuid, lost)
        assert (broken.memory, broken.processes) == (None, None)
        assert supervisor.reading(of(second)).fault is None
    registry.plant(first.uuid, None)
    mended = supervisor.reading(lambda r: r.uuid == first.uuid and r.fault is None)
    assert mended.memory is not None


def test_a_hanging_call_is_announced_and_delays_no_other_gpu(
    registry: Registry, start: Start
) -> None:
    """The board names the GPU and the call; the other GPU is read on; the end still ends it."""
    supervisor = start()
    first, second = supervisor.inventory().gpus
    supervisor.reading(of(first))
    before = time.monotonic()
    registry.plant(first.uuid, "hang")
    until(lambda: any(gpu_of(slot) == 0 and since > before for slot, _, since in hung(supervisor)))
    slot, call, began = hung(supervisor)[0]
    assert (gpu_of(slot), call) == (0, "memory")
    for _ in range(5):
        supervisor.reading(of(second))
    assert (slot, "memory", began) in supervisor.inflight_calls.outstanding()
    supervisor.channel.close()
    supervisor.process.join(TIMEOUT_S)
    assert supervisor.process.exitcode == 0


def hung(supervisor: ProbeHarness) -> tuple[tuple[int, str, float], ...]:
    """Return the announced calls that are older than any healthy one."""
    calls = supervisor.inflight_calls.outstanding()
    return tuple(call for call in calls if time.monotonic() - call[2] > 0.2)


def test_the_call_of_a_crash_remains_in_shared_memory(registry: Registry, start: Start) -> None:
    """When a driver call takes the process down, the board still says which it was."""
    supervisor = start(poll=NEVER)
    first, second = supervisor.inventory().gpus
    supervisor.read_all((first, second))
    registry.plant(second.uuid, "crash")
    supervisor.watch((first, second), held=(second,))
    supervisor.process.join(TIMEOUT_S)
    assert supervisor.process.exitcode == -signal.SIGABRT
    assert [(gpu_of(slot), call) for slot, call in supervisor.announced()] == [(1, "memory")]


def test_a_skipped_gpu_is_not_called_until_a_watch_names_it(
    registry: Registry, start: Start
) -> None:
    """It stays in the inventory; a call that would be fatal is made only when a Watch names it."""
    first, second = registry.gpus()
    registry.plant(first.uuid, "crash")
    supervisor = start(skip=(first.uuid,))
    assert supervisor.inventory().gpus == (first, second)
    for watched in ((), (second,)):
        supervisor.watch((second,), held=watched)
        for _ in range(5):
            assert supervisor.reading(lambda _: True).uuid == second.uuid
    registry.plant(first.uuid, None)
    supervisor.watch((first, second))
    assert supervisor.reading(of(first)).fault is None


def test_a_full_socket_does_not_block_reads(registry: Registry, start: Start) -> None:
    """The probe reads on, leaves out what does not fit, and is fresh again once it is read."""
    supervisor = start(poll=0.002, send_buffer=4096)
    seen: set[float] = set()
    end = time.monotonic() + TIMEOUT_S
    while len(seen) < 30:  # without a pause, since a call on a simulated GPU takes microseconds
        seen.update(since for _, _, since in supervisor.inflight_calls.outstanding())
        assert time.monotonic() < end, "it does not go on"
    with contextlib.closing(registry.attach(registry.gpus()[0].uuid)) as member:
        assert member.allocate(MIB)
        marked = time.monotonic()
        supervisor.inventory()
        backlog = 0
        while supervisor.reading(lambda _: True).at < marked:
            backlog += 1
        assert backlog < 30, "what did not fit was kept"
        supervisor.reading(lambda r: r.memory is not None and r.memory.used == MIB)


def test_the_probe_ends_when_the_socket_is_closed(start: Start) -> None:
    """A supervisor that died leaves no probe behind."""
    supervisor = start()
    supervisor.inventory()
    supervisor.channel.close()
    supervisor.process.join(TIMEOUT_S)
    assert supervisor.process.exitcode == 0


def test_a_missing_driver_is_reported_and_exits_with_zero(registry: Registry, start: Start) -> None:
    """Without a driver the probe says so and ends in order."""
    registry.folder.rename(registry.folder.with_name("gone"))
    supervisor = start()
    message = supervisor.next_message()
    assert isinstance(message, Unavailable)
    assert message.code == "no_registry"
    assert str(registry.folder) in message.reason
    supervisor.process.join(TIMEOUT_S)
    assert supervisor.process.exitcode == 0


def test_the_probe_stays_small(start: Start) -> None:
    """Neither torch nor anything of its size is in the probe, and it leads its own session."""
    supervisor = start()
    supervisor.inventory()
    supervisor.reading(lambda _: True)
    status = Path(f"/proc/{supervisor.process.pid}/status").read_text().splitlines()
    resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    assert resident < 40 * 1024, "kB"
    assert "torch" not in Path(f"/proc/{supervisor.process.pid}/maps").read_text()
    assert supervisor.process.pid is not None
    assert os.getsid(supervisor.process.pid) == supervisor.process.pid


def test_importing_the_main_module_imports_no_driver() -> None:
    """The supervisor imports this module to name its function, and stays without NVML."""
    heavy = "{'torch', 'numpy', 'pynvml', 'psutil', 'inotify_simple', 'sentinel.probe.nvml.driver'}"
    code = f"import sys, sentinel.probe.main; sys.exit({heavy} & set(sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
