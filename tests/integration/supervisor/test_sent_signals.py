"""Sentinel sends signals to processes that it has started, and to no other."""

from __future__ import annotations

import os
import platform
import signal
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest

from benchmarks.faults import FAULTS
from tests.harness.fake_nvml import NEEDS_COMPILER, shared_folder
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.isolation import OWN_NAMESPACE, needs_namespaces
from tests.harness.preloaded import SignalTrace
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

QUICK = ("--rearm", "300ms", "--rearm-longest", "300ms", "--poll", "200ms")

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch"), NEEDS_COMPILER]


@pytest.fixture
def trace(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> SignalTrace:
    return SignalTrace(tmp_path, shared_folder(tmp_path_factory))


#: A hand-over by each way in which a stressor ends, with the flags for it.
WORKLOADS = {
    "killed": ("--workload", "hold"),
    "asked": ("--workload", "hold", "--yield", "ask"),
    "stubborn": ("--workload", "bad_workloads:stubborn", "--grace", "100ms"),
    "forks": ("--workload", "bad_workloads:forks"),
    "starts processes": ("--workload", "bad_workloads:starts_processes"),
}


@pytest.mark.parametrize("way", WORKLOADS)
def test_a_hand_over_and_a_stop_signal_own_processes_only(
    simulated: SimulatedHost, trace: SignalTrace, way: str
) -> None:
    with simulated.sentinel(1, *QUICK, *WORKLOADS[way], environment=trace.environment) as sentinel:
        sentinel.wait_for("stressor.ready")
        with simulated.job() as newcomer:
            assert newcomer.got_memory()
        sentinel.wait_for("stressor.ready", count=2)
        assert sentinel.stop() == 0
        assert trace.sent(), "nothing was recorded"
        only_own(trace, sentinel.process.pid)


@pytest.mark.parametrize("fault", sorted({fault for fault in FAULTS if "api" not in fault}))
def test_a_fault_makes_no_process_signal_a_stranger(
    simulated: SimulatedHost, trace: SignalTrace, fault: str
) -> None:
    titles, number = FAULTS[fault]
    flags = (*QUICK, "--workload", "hold")
    with simulated.sentinel(1, *flags, environment=trace.environment) as sentinel:
        sentinel.wait_for("stressor.ready")
        victims = [sentinel.wait_for_process(title) for title in titles]
        for victim in victims:
            victim.send_signal(number)
        simulated.take_memory()
        for victim in victims:
            if number is signal.SIGSTOP and victim.is_running():
                victim.send_signal(signal.SIGCONT)
        if victims[0].pid != sentinel.process.pid:
            sentinel.wait_for("stressor.ready", count=2)
            assert sentinel.stop() == 0
        elif number is signal.SIGKILL:
            sentinel.process.wait(TIMEOUT_S)
            assert {one.number for one in trace.sent()} <= {signal.SIGKILL}
        only_own(trace, sentinel.process.pid)


#: What a foreign job does before it takes its memory: Python code.
DISGUISES = {
    "forks": "if os.fork():\n    os.wait()\n    os._exit(0)",
    "leaves its parent": "os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0)",
    "drops privileges": "if os.getuid() == 0: os.setresuid(54321, 0, 54321)",
    "has a stressor's title": """
from setproctitle import setproctitle
setproctitle("sentinel: keeps idle GPU GPU-00000000 warm, yields at once")""",
    "comes after many that exit": """
from sentinel.host.simulation import Registry, default_folder
for _ in range(20):
    if not os.fork():
        Registry(default_folder()).attach(gpu).allocate(2**26)
        os._exit(0)
    os.wait()""",
}


def test_a_foreign_job_in_any_disguise_gets_its_memory_and_no_signal(
    simulated: SimulatedHost, trace: SignalTrace
) -> None:
    flags = (*QUICK, "--workload", "hold")
    count = len(DISGUISES)
    with simulated.sentinel(count, *flags, environment=trace.environment) as sentinel:
        sentinel.wait_for("stressor.ready", count=count)
        with ExitStack() as stack:
            jobs = {}
            for gpu, (name, code) in enumerate(DISGUISES.items()):
                program = f"import os, runpy, sys; gpu = {simulated.uuid(gpu)!r}\n{code}"
                as_job = "sys.argv = sys.argv[3:]; runpy.run_module('sentinel', None, '__main__')"
                within = (sys.executable, "-c", f"{program}\n{as_job}")
                job = simulated.job(gpu, stay=0.5, within=within, crowd=count)
                jobs[name] = stack.enter_context(job)
            assert {name: job.got_memory() for name, job in jobs.items()} == dict.fromkeys(
                DISGUISES, True
            )
        for gpu in range(count):
            sentinel.wait_for("gpu.yielding", gpu=gpu)
            sentinel.wait_for("stressor.ready", gpu=gpu, count=2)
        assert sentinel.stop() == 0
        assert trace.sent(), "nothing was recorded"
        only_own(trace, sentinel.process.pid)


#: Limits the PIDs of a namespace and uses each of them again and again, counted in a file; another
#: has the PID of the sentinel. Older kernels have one limit for the whole host.
LIMIT = 450
FEW_PIDS = f"""
echo {LIMIT} >/proc/sys/kernel/pid_max || exit 77
used=0
while :; do (:); used=$((used + 1)); echo $used >$USED; done &
"$@" &
echo $! >$SUPERVISOR
wait $!
"""
_HAS_OWN_LIMIT = tuple(map(int, platform.release().split(".")[:2])) >= (6, 14)


@needs_namespaces
@pytest.mark.skipif(not _HAS_OWN_LIMIT, reason="needs a limit of PIDs for each namespace")
def test_where_pids_are_used_again_at_once_no_process_is_taken_for_another(
    simulated: SimulatedHost, trace: SignalTrace, tmp_path: Path
) -> None:
    (simulated.folder / "namespace").unlink()  # the simulated host is that of the new namespace
    supervisor, used = tmp_path / "supervisor", tmp_path / "used"
    files = {"SUPERVISOR": str(supervisor), "USED": str(used)}
    environment = {**trace.environment, **files}
    within = (*OWN_NAMESPACE, "sh", "-c", FEW_PIDS, "sh")
    flags = (*QUICK, "--workload", "hold")
    with simulated.sentinel(1, *flags, environment=environment, within=within) as sentinel:
        sentinel.wait_for("stressor.ready")
        (init,) = psutil.Process(sentinel.process.pid).children()
        inside = ("nsenter", "--pid", "--mount", f"--target={init.pid}")
        for count in range(1, 9):
            before = count_in(used)
            with simulated.job(stay=0.1, within=inside) as newcomer:
                assert newcomer.got_memory()
            sentinel.wait_for("gpu.handed_over", count=count)
            sentinel.wait_for("stressor.ready", count=count + 1)
            if count % 4 == 0:
                sentinel.wait_for_process("probe, reads").kill()
            eventually(partial(is_reached, used, before + LIMIT))
        assert sentinel.names().count("gpu.yielding") == count
        assert not {"stressor.failed", "gpu.unknown"} & set(sentinel.names())
        assert sentinel.wait_for("gpu.identity")["complete"]
        assert trace.sent(), "nothing was recorded"
        only_own(trace, int(supervisor.read_text()))


def count_in(file: Path) -> int:
    """Read a number; 0 while it is written."""
    return int(file.read_text() or 0)


def is_reached(file: Path, count: int) -> bool:
    """Check that the number in a file is at least this."""
    return count_in(file) >= count


def only_own(trace: SignalTrace, supervisor: int) -> None:
    """Check that each receiver was the sender, the supervisor's child, or further below it."""
    sent = trace.sent()
    for one in sent:
        assert os.getpid() != one.receiver
        if one.ancestors:
            assert one.receiver == one.sender or supervisor in one.ancestors, one
        else:  # it was reaped already, or its whole group is gone
            assert one.receiver in {other.receiver for other in sent if other.ancestors}, one
