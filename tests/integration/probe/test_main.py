"""A real probe process over simulated GPUs, observed through its socket."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentinel.errors import ChildExitCode
from sentinel.host.procfs import ancestors_of, own_stat
from sentinel.host.simulation import Registry
from sentinel.protocol.codec import encode
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind, Reading
from sentinel.protocol.probe import Activate, Inventory, ProbeSpec, Standby, Unavailable, simulated
from sentinel.protocol.shared_memory import gpu_of
from tests.harness.narrowing import not_none
from tests.harness.probe_harness import NEVER, ProbeHarness, open_nodes
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

MIB = 2**20
Start = Callable[..., ProbeHarness]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Create two simulated GPUs."""
    return Registry.create(tmp_path / "gpus", 2)


@pytest.fixture
def start(registry: Registry, start_probe: Start) -> Start:
    """Return a function that starts a probe of the simulated GPUs."""
    driver = simulated(str(registry.folder))

    def start_one(*, send_buffer: int | None = None, **more: Any) -> ProbeHarness:
        values = {"poll": 0.05, "watch_interval": 0.025, "driver": driver, **more}
        return start_probe(ProbeSpec(**values), send_buffer)

    return start_one


def of(gpu: Gpu) -> Callable[[Reading], bool]:
    """Build a condition: the reading is of this GPU."""
    return lambda reading: reading.uuid == gpu.uuid


def since(time_s: float) -> Callable[[Reading], bool]:
    """Build a condition: the reading started at ``time_s`` or later."""
    return lambda reading: reading.at >= time_s


def hold(probe: ProbeHarness, held: Gpu, other: Gpu) -> None:
    """Watch two GPUs, one of them as held, and wait for the reading of that change.

    Its memory may be that of the reading before: another job reads it.
    """
    probe.read_all((held, other))  # before, so that none of these is taken for it
    before_s = time.monotonic()
    probe.watch((held, other), held=(held,))
    probe.reading(lambda r: r.uuid == held.uuid and r.processes_at >= before_s)


# --- messages --------------------------------------------------------------------------------


def test_the_first_message_is_the_inventory(registry: Registry, start: Start) -> None:
    assert start().inventory() == Inventory(gpus=registry.gpus(), driver="simulated")


def test_every_gpu_is_published_at_every_poll(registry: Registry, start: Start) -> None:
    """Readings of idle GPUs are complete and stamped before each call."""
    probe = start()
    probe.inventory()
    for gpu in registry.gpus():
        latest = 0.0
        for _ in range(3):
            reading = probe.reading(of(gpu))
            total = gpu.memory_total
            assert reading.memory == Memory(total=total, used=0, free=total)
            assert (reading.processes, reading.exclusive, reading.mig) == ((), False, False)
            assert latest < reading.at <= reading.processes_at <= time.monotonic()
            latest = reading.at


def test_a_signal_to_all_processes_of_a_job_does_not_end_it(
    registry: Registry, start: Start
) -> None:
    """The supervisor still has to see that the memory of its stressors is free."""
    probe = start()
    probe.inventory()
    os.kill(not_none(probe.process.pid), signal.SIGTERM)
    probe.reading(since(time.monotonic()))


def test_all_gpus_are_polled_at_the_same_time(registry: Registry, start: Start) -> None:
    """The supervisor wakes once per poll and not once per GPU."""
    poll = 0.25
    probe = start(poll=poll)
    probe.inventory()
    late = poll
    until = time.monotonic() + TIMEOUT_S
    while late >= poll / 2:  # some polls start late on a busy machine
        assert time.monotonic() < until, "the readings do not start with the poll"
        late = max(probe.reading(of(gpu)).at % poll for gpu in registry.gpus())


def test_growth_on_a_held_gpu_is_published_at_once(registry: Registry, start: Start) -> None:
    """The watch interval, not the poll, shows a newcomer's memory, and then its process."""
    probe = start(poll=NEVER)
    first, second = probe.inventory().gpus
    hold(probe, first, second)
    newcomer = registry.attach(first.uuid)
    before_s = time.monotonic()
    assert newcomer.allocate(MIB)
    grown = probe.reading(lambda r: r.memory is not None and r.memory.used == MIB)
    assert grown.uuid == first.uuid
    named = probe.reading(lambda r: bool(r.processes))
    assert [process.pid for process in not_none(named.processes)] == [os.getpid()]
    assert named.processes_at > before_s
    newcomer.close()
    probe.reading(lambda r: r.processes == () and r.memory is not None and not r.memory.used)


def test_a_change_of_held_gpus_triggers_a_reading(registry: Registry, start: Start) -> None:
    """A GPU that becomes held or stops being held is read fully without waiting for a poll."""
    probe = start(poll=NEVER)
    first, second = probe.inventory().gpus
    probe.read_all((first, second))
    member = registry.attach(second.uuid)
    for held in ((second,), ()):
        assert member.allocate(MIB)
        before_s = time.monotonic()
        probe.watch((first, second), held=held)
        reading = probe.reading(since(before_s))
        assert reading.uuid == second.uuid
        assert not_none(reading.memory).used == member.held


def test_utilization_by_others_is_published_on_request(registry: Registry, start: Start) -> None:
    """A held GPU has none, as it would include the stressor's load."""
    probe = start(utilization=True)
    first, second = probe.inventory().gpus
    with contextlib.closing(registry.attach(first.uuid)) as member:
        assert member.allocate(MIB)
        probe.reading(lambda r: of(first)(r) and r.utilization == 1.0)
        assert probe.reading(of(second)).utilization == 0.0
        probe.watch((first, second), held=(first,))
        probe.reading(lambda r: of(first)(r) and r.utilization is None)
        assert probe.reading(of(second)).utilization == 0.0


def test_a_process_is_published_with_its_details(registry: Registry, start: Start) -> None:
    """Start, session and name are in the first reading, the user as soon as it is known."""
    with contextlib.closing(registry.attach(registry.gpus()[0].uuid)) as member:
        assert member.allocate(MIB)
        probe = start()
        probe.inventory()
        reading = probe.reading(lambda r: any(p.user for p in r.processes or ()))
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
    """A burst of opens, as by a CUDA program, triggers a read that shows growth."""
    probe = start(poll=NEVER, watch_interval=NEVER)
    first, second = probe.inventory().gpus
    hold(probe, first, second)
    assert registry.attach(first.uuid).allocate(MIB)
    done = threading.Event()

    def open_often() -> None:
        while not done.wait(0.05):
            open_nodes(registry.node(first.uuid), registry.node(second.uuid))

    opener = threading.Thread(target=open_often)
    opener.start()
    try:
        reading = probe.reading(lambda r: r.memory is not None and r.memory.used == MIB)
    finally:
        done.set()
        opener.join()
    assert reading.uuid == first.uuid


# --- faults ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "lost"), [("error", False), ("lost", True)])
def test_a_fault_is_published_as_a_reading(
    registry: Registry, start: Start, *, fault: str, lost: bool
) -> None:
    """A fault is published, the other GPU is still read, and a recovery is published."""
    probe = start()
    first, second = probe.inventory().gpus
    registry.inject(first.uuid, fault)
    for _ in range(2):
        broken = probe.reading(lambda r: r.fault is not None)
        assert (broken.uuid, broken.lost) == (first.uuid, lost)
        assert (broken.memory, broken.processes) == (None, None)
        assert probe.reading(of(second)).fault is None
    registry.inject(first.uuid, None)
    recovered = probe.reading(lambda r: r.uuid == first.uuid and r.fault is None)
    assert recovered.memory is not None


def test_a_hanging_call_is_announced_and_delays_no_other_gpu(
    registry: Registry, start: Start
) -> None:
    """The call is visible in shared memory, the other GPU is read, and the probe can exit."""
    probe = start()
    first, second = probe.inventory().gpus
    probe.reading(of(first))
    before = time.monotonic()
    registry.inject(first.uuid, "hang")
    found: list[tuple[int, str, float]] = []

    def hangs() -> bool:
        """Find the call: of the memory of the first GPU, begun after the fault."""
        found[:] = [
            (slot, call, since)
            for slot, call, since in hung(probe)
            if (gpu_of(slot), call) == (0, "memory") and since > before
        ]
        return bool(found)

    eventually(hangs)
    slot, _, began = found[0]
    for _ in range(5):
        probe.reading(of(second))
    assert (slot, "memory", began) in probe.inflight_calls.outstanding()
    probe.channel.close()
    assert probe.wait_for_end() == ChildExitCode.ORPHANED


def hung(probe: ProbeHarness) -> tuple[tuple[int, str, float], ...]:
    """List the announced calls that are older than any healthy call."""
    calls = probe.inflight_calls.outstanding()
    return tuple(call for call in calls if time.monotonic() - call[2] > 1.0)


def test_the_call_of_a_crash_remains_in_shared_memory(registry: Registry, start: Start) -> None:
    """The supervisor can name the driver call that crashed the process."""
    probe = start(poll=NEVER)
    first, second = probe.inventory().gpus
    probe.read_all((first, second))
    registry.inject(second.uuid, "crash")
    probe.watch((first, second), held=(second,))
    assert probe.wait_for_end() == -signal.SIGABRT
    # Other threads may have been in a call, too.
    assert (1, "memory") in [(gpu_of(slot), call) for slot, call in probe.announced()]


def test_a_skipped_gpu_is_not_called_until_a_watch_names_it(
    registry: Registry, start: Start
) -> None:
    """The GPU stays in the inventory, but only a watch list that names it causes calls."""
    first, second = registry.gpus()
    registry.inject(first.uuid, "crash")
    probe = start(skip=(first.uuid,))
    assert probe.inventory().gpus == (first, second)
    for watched in ((), (second,)):
        probe.watch((second,), held=watched)
        for _ in range(5):
            assert probe.reading(lambda _: True).uuid == second.uuid
    registry.inject(first.uuid, None)
    probe.watch((first, second))
    assert probe.reading(of(first)).fault is None


@pytest.mark.long
def test_a_full_socket_does_not_block_reads(registry: Registry, start: Start) -> None:
    """The probe continues, drops readings, and sends new ones once the socket is read."""
    probe = start(poll=0.002, send_buffer=4096)
    process = psutil.Process(not_none(probe.process.pid))
    # The socket has room for a few readings. Waiting for more takes no processor time.
    eventually(lambda: process.cpu_times().user >= 0.5)
    with contextlib.closing(registry.attach(registry.gpus()[0].uuid)) as member:
        assert member.allocate(MIB)
        allocated_at = time.monotonic()
        probe.inventory()
        backlog = 0
        while probe.reading(lambda _: True).at < allocated_at:
            backlog += 1
        assert backlog < 30, "dropped readings were sent"
        probe.reading(lambda r: r.memory is not None and r.memory.used == MIB)


def test_a_spare_probe_reads_nothing_until_it_is_activated(
    registry: Registry, start: Start
) -> None:
    probe = start(spare=True)
    assert isinstance(probe.next_message(), Standby)
    assert probe.stamps.get(0) == 0.0
    first, second = registry.gpus()
    probe.channel.send(encode(Activate(skip=(second.uuid,), known=())))
    assert len(probe.inventory().gpus) == 2
    assert probe.reading(lambda r: r.fault is None).uuid == first.uuid
    assert probe.stamps.get(0) > 0.0 == probe.stamps.get(1)


@pytest.mark.parametrize("spare", [False, True])
def test_a_probe_ends_when_its_socket_is_closed(start: Start, *, spare: bool) -> None:
    """The probe ends after the death of its supervisor, and so does a spare one."""
    probe = start(spare=spare)
    assert isinstance(probe.next_message(), Standby if spare else Inventory)
    probe.channel.close()
    assert probe.wait_for_end() == ChildExitCode.ORPHANED


def test_a_missing_driver_is_reported_and_exits_with_zero(registry: Registry, start: Start) -> None:
    """The probe reports the missing driver and exits cleanly."""
    registry.folder.rename(registry.folder.with_name("gone"))
    probe = start()
    message = probe.next_message()
    assert isinstance(message, Unavailable)
    assert message.code == "no_registry"
    assert str(registry.folder) in message.reason
    assert probe.wait_for_end() == 0


def test_the_probe_stays_small(start: Start) -> None:
    """The probe has not imported torch and leads its own session."""
    probe = start()
    probe.inventory()
    probe.reading(lambda _: True)
    status = Path(f"/proc/{probe.process.pid}/status").read_text().splitlines()
    resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    assert resident < 40 * 1024, "kB"
    assert "torch" not in Path(f"/proc/{probe.process.pid}/maps").read_text()
    assert probe.process.pid is not None
    assert os.getsid(probe.process.pid) == probe.process.pid


def test_importing_the_main_module_imports_no_driver() -> None:
    """The supervisor imports this module and stays without NVML."""
    heavy = "{'torch', 'numpy', 'pynvml', 'psutil', 'inotify_simple', 'sentinel.probe.nvml_driver'}"
    code = f"import sys, sentinel.probe.main; sys.exit({heavy} & set(sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
