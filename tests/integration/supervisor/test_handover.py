"""Hand-overs with real processes, to foreign jobs that need nearly all memory."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import cycle, islice

import psutil
import pytest

from benchmarks.faults import DELAYS_S, FAULTS
from sentinel.host.procfs import read_stat
from tests.harness.daemon_harness import Daemon, settings_file
from tests.harness.gpu_environment import GpuHost, SimulatedHost
from tests.harness.isolation import OWN_NAMESPACE, needs_namespaces
from tests.harness.programs import started_program
from tests.harness.sentinel_process import SentinelProcess, eventually, gone
from tests.harness.timing import MACHINE_SLOWNESS

QUICK = ("--rearm", "300ms", "--rearm-longest", "300ms", "--poll", "200ms")
MIB = 2**20
#: The smallest pipe that Linux makes, in bytes.
SMALLEST_PIPE = 4096
#: A workload that ends when its lease expires, possibly just before the newcomer.
ENDS_ITSELF = "holds_the_interpreter"
#: Workloads that become ready and then break one rule each.
MISBEHAVING = (
    *(
        "stubborn",
        "spins_without_end",
        "sleeps_without_end",
        "stops_itself",
        "receives_the_leases",
        "starts_processes",
        "forks",
    ),
    *("prints_without_end", ENDS_ITSELF),
    *("overwrites_shared_memory", "changes_its_process", "fills_its_session"),
)
#: Workloads that fail, with a part of the reason that is reported.
FAILING = {
    "raises": "boom",
    "returns": "returned",
    "exits": "exit",
    "segfaults": "SIGSEGV",
    "finds_and_dies": "SIGKILL",
    "kills_its_group": "SIGKILL",
}
#: Workloads whose channel no honest stressor would have.
LYING = (
    "sends_malformed_messages",
    "floods_the_channel",
    "sends_extreme_messages",
    "sends_huge_numbers",
    "closes_everything",
)


@contextmanager
def one_workload_per_gpu(
    host: GpuHost, workloads: Sequence[str], *flags: str
) -> Iterator[tuple[SentinelProcess, dict[str, int]]]:
    """Run a sentinel with a different bad workload on each GPU; yield the GPU of each."""
    gpus = {workload: gpu for gpu, workload in enumerate(workloads)}
    tables = (
        f'[gpu.{host.index(gpu)}]\nworkload = "bad_workloads:{workload}"\n'
        for workload, gpu in gpus.items()
    )
    file = host.folder / f"{workloads[0]}.toml"
    file.write_text("".join(tables))
    environment = {"SENTINEL_CONFIG": str(file)}
    with host.sentinel(len(gpus), *flags, environment=environment) as sentinel:
        yield sentinel, gpus


def batches(host: GpuHost, workloads: Sequence[str]) -> Iterator[Sequence[str]]:
    """Divide workloads into batches of as many as there are GPUs."""
    rest = iter(workloads)
    while batch := tuple(islice(rest, host.count)):
        yield batch


@pytest.mark.long
def test_sentinel_occupies_yields_and_occupies_again(host: GpuHost) -> None:
    with host.sentinel(1, *QUICK, "--status-every", "1s") as sentinel:
        sentinel.wait_for("stressor.ready", gpu=0)
        held = host.held(0)
        assert held > 0.85 * host.total(0)
        eventually(lambda: any(event.get("checks", 0) > 0 for event in sentinel.events))
        with host.job() as newcomer:
            assert newcomer.got_memory()
            handed = sentinel.wait_for("gpu.handed_over", gpu=0)
            assert handed["processes"][0]["pid"] == newcomer.pid
            newcomer.wait_for_exit()
        assert handed["kill_s"] < handed["exit_s"]
        assert handed["exit_s"] <= handed["memory_back_s"]
        sentinel.wait_for("stressor.ready", gpu=0, count=2)
        assert abs(host.held(0) - held) <= host.noise_bytes
        assert sentinel.names().count("gpu.yielding") == 1
        assert sentinel.stop() == 0
        assert host.empty()


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_simultaneous_newcomers_get_their_memory_and_other_gpus_are_kept(host: GpuHost) -> None:
    gpus = host.gpus(3)
    wanted = gpus[:2]
    with host.sentinel(gpus, *QUICK, "--workload", "hold") as sentinel, ExitStack() as stack:
        for gpu in gpus:
            sentinel.wait_for("stressor.ready", gpu=gpu)
        newcomers = [stack.enter_context(host.job(gpu)) for gpu in wanted]
        assert [newcomer.got_memory() for newcomer in newcomers] == [True for _ in wanted]
        for gpu in gpus[2:]:
            assert "gpu.yielding" not in sentinel.names(gpu)


@pytest.mark.long
# Two cores take ten seconds for a round with 500.
@pytest.mark.parametrize(("count", "rounds"), [(60, 20), (500, 6)])
def test_every_newcomer_gets_its_memory_from_a_workload_that_has_forked_many_processes(
    host: GpuHost, count: int, rounds: int
) -> None:
    workload = ("--workload", f"bad_workloads:forks_many:count={count}")
    with host.sentinel(1, *QUICK, *workload, environment={"SENTINEL_STANDBY": "on"}) as sentinel:
        for nth in range(1, rounds + 1):
            sentinel.wait_for("stressor.ready", count=nth)
            forked = sentinel.stressors()  # they have its title
            assert len(forked) == count + 1
            with host.job(stay=0.1) as newcomer:
                assert newcomer.got_memory(), nth
        eventually(lambda: all(map(gone, forked)))
        assert sentinel.stop() == 0


def reach(host: GpuHost, sentinel: SentinelProcess, phase: str, nth: int) -> None:
    """Wait until the first GPU's ``nth`` stressor is in a phase of its start."""
    sentinel.wait_for("stressor.starting", gpu=0, count=nth)
    if phase == "import":
        eventually(sentinel.stressors)
    elif phase == "allocation":
        eventually(lambda: not host.empty())


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize(
    "within", [(), pytest.param(OWN_NAMESPACE, marks=needs_namespaces)], ids=["host", "namespace"]
)
def test_a_newcomer_gets_its_memory_in_any_phase_of_a_start(
    host: GpuHost, within: tuple[str, ...]
) -> None:
    slow = ("--workload", "bad_workloads.slow_import:well_behaved")
    with host.sentinel(1, *QUICK, *slow, within=within) as sentinel:
        for nth, phase in enumerate(("spawn", "import", "allocation"), start=1):
            reach(host, sentinel, phase, nth)
            with host.job() as newcomer:
                assert newcomer.got_memory(), phase
                sentinel.wait_for("gpu.handed_over" if within else "gpu.yielding", gpu=0, count=nth)
                newcomer.wait_for_exit()
        sentinel.wait_for("stressor.ready", gpu=0)
        assert "stressor.failed" not in sentinel.names()


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_newcomer_gets_its_memory_during_a_requested_stop(
    host: GpuHost,
) -> None:
    stubborn = ("--workload", "bad_workloads:stubborn", "--grace", "5m")
    with host.sentinel(1, *QUICK, *stubborn) as sentinel:
        sentinel.wait_for("stressor.ready", gpu=0)
        sentinel.process.send_signal(signal.SIGTERM)
        sentinel.wait_for("sentinel.stopping")
        with host.job() as newcomer:
            assert newcomer.got_memory()
            assert sentinel.wait_for_exit() == 0


def restart(daemon: Daemon) -> None:
    """Restart the daemon, which waits for its stressor."""
    daemon.run("restart", "--wait", "0")


def reload(daemon: Daemon) -> None:
    """Have the daemon read its file again."""
    settings_file(daemon.host.folder).write_text('workload = "hold"\n')
    os.kill(daemon.pid, signal.SIGHUP)


def set_workload(daemon: Daemon) -> None:
    """Change a setting of a running daemon."""
    daemon.client.set({"workload": "hold"})


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize("change", [restart, reload, set_workload])
def test_a_newcomer_gets_its_memory_while_a_restart_or_new_settings_stop_a_stressor(
    daemon: Daemon, change: Callable[[Daemon], None]
) -> None:
    settings_file(daemon.host.folder).write_text('workload = "bad_workloads:stubborn"\n')
    daemon.run("start", *("--simulate", "1"), *QUICK, *("--grace", "5m", "--unwatched-after", "5s"))
    daemon.wait_until_occupied(0)
    before = daemon.gpu().pid
    # The command may end only after the newcomer: the stressor stops for no other reason.
    with ThreadPoolExecutor(1) as pool:
        changed = pool.submit(change, daemon)
        eventually(lambda: daemon.gpu().stressor == "STOPPING")
        with daemon.host.job() as newcomer:
            assert newcomer.got_memory()
            newcomer.wait_for_exit()
        changed.result()
    daemon.wait_until_occupied(0)
    assert daemon.gpu().pid != before
    daemon.kill()


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_newcomer_that_exits_before_the_kill_causes_at_most_one_restart(host: GpuHost) -> None:
    with host.sentinel(1, *QUICK, "--workload", "hold") as sentinel:
        sentinel.wait_for("stressor.ready", gpu=0)
        held = host.held()
        with host.job() as newcomer:
            eventually(lambda: host.held() > held + MIB or "gpu.yielding" in sentinel.names())
            newcomer.kill()
        # Either the newcomer was noticed, or it came between two readings.
        eventually(
            lambda: (
                sentinel.names().count("stressor.ready") > sentinel.names().count("gpu.yielding")
            )
        )
        assert "stressor.failed" not in sentinel.names()
        with host.job() as second:
            assert second.got_memory()


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_newcomer_gets_its_memory_from_a_misbehaving_workload(host: GpuHost) -> None:
    for batch in batches(host, MISBEHAVING):
        # Most of them make no progress; a slow machine needs long until all are ready.
        flags = (*QUICK, "--hang-after", "1h")
        with one_workload_per_gpu(host, batch, *flags) as (sentinel, gpus):
            for gpu in gpus.values():
                sentinel.wait_for("stressor.ready", gpu=gpu)
            family = sentinel.children()
            with ExitStack() as stack:
                jobs = {
                    name: stack.enter_context(host.job(gpu, crowd=len(gpus)))
                    for name, gpu in gpus.items()
                }
                assert {name: job.got_memory() for name, job in jobs.items()} == dict.fromkeys(
                    gpus, True
                )
                for name, gpu in gpus.items():
                    if name in {
                        ENDS_ITSELF,
                        "receives_the_leases",
                    }:  # by itself, or by the newcomer
                        eventually(partial(has_ended, sentinel, gpu))
                    else:
                        sentinel.wait_for("gpu.handed_over", gpu=gpu)
            left = [child for child in family if is_alive(child)]
            others = ("resource_tracker", "sentinel: probe", "sentinel: spare", "sentinel: standby")
            left = [child for child in left if not any(titled(child, words) for words in others)]
            assert not left, f"left behind by a workload: {left}"


def has_ended(sentinel: SentinelProcess, gpu: int, *, times: int = 1) -> bool:
    """Check whether the stressors on a GPU have ended, or have yielded it, as often as this."""
    ends = {"gpu.handed_over", "stressor.failed", "stressor.stopped"}
    return sum(name in ends for name in sentinel.names(gpu)) >= times


def titled(process: psutil.Process, words: str) -> bool:
    """Check whether a process has these words in its title."""
    return words in " ".join(process.cmdline())


def is_alive(process: psutil.Process) -> bool:
    """Check whether a process is neither gone nor a zombie."""
    stat = read_stat(process.pid)
    return stat is not None and stat.alive


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_stressor_with_a_malformed_message_is_killed(host: GpuHost) -> None:
    for batch in batches(host, LYING):
        flags = ("--poll", "200ms", "--status-every", "1s")
        with one_workload_per_gpu(host, batch, *flags) as (sentinel, gpus):
            for gpu in gpus.values():
                eventually(partial(has_ended, sentinel, gpu))
            with host.job(len(gpus) - 1) as newcomer:
                assert newcomer.got_memory()
            for gpu in gpus.values():
                eventually(partial(has_ended, sentinel, gpu, times=2))


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_failed_workload_causes_a_pause_and_its_reason_is_reported(host: GpuHost) -> None:
    # An end by SIGKILL is not told from a kill, so the driver may take its time for it.
    flags = ("--poll", "200ms", "--unwatched-after", "5s")
    for batch in batches(host, (*FAILING, "faulty")):
        with one_workload_per_gpu(host, batch, *flags) as (sentinel, gpus):
            for workload, gpu in gpus.items():
                if workload == "faulty":
                    assert sentinel.wait_for("stressor.mismatch", gpu=gpu)["errors"] == 1
                    continue
                failed = sentinel.wait_for("stressor.failed", gpu=gpu, count=2)
                assert FAILING[workload] in failed["reason"]
                assert failed["pause_s"] == 2
                if workload == "finds_and_dies":  # the finding survives its stressor
                    assert sentinel.wait_for("stressor.finding", gpu=gpu)["first"] == [5, 9]
            assert sentinel.stop() == 0


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize("count", [1, 2])
def test_a_workload_that_can_never_run_is_fatal_at_once_and_ends_the_daemon(
    host: GpuHost, count: int
) -> None:
    flags = ("--poll", "200ms", "--workload", "bad_workloads:refuses_its_gpu")
    with host.sentinel(host.gpus(count), *flags) as sentinel:
        assert "this GPU cannot run it" in sentinel.wait_for("stressor.fatal")["reason"]
        assert sentinel.wait_for_exit() == 2
        assert "cannot run it" in sentinel.wait_for("sentinel.stopping")["reason"]


@pytest.mark.long
def test_an_option_that_the_workload_refuses_prevents_the_start(host: GpuHost) -> None:
    flags = ("--poll", "200ms", "--workload", "bad_workloads:well_behaved:wait=4")
    with host.sentinel(host.gpus(2), *flags) as sentinel:
        assert sentinel.wait_for_exit() == 2
        assert sentinel.names() == []


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_an_unread_standard_output_never_delays_a_hand_over(host: GpuHost) -> None:
    flags = (*QUICK, "--status-every", "1s", "--workload", "hold")

    def occupied() -> bool:
        return host.held() > 0.85 * host.total()

    with host.sentinel(1, *flags, read=False) as sentinel:
        assert sentinel.process.stdout is not None
        pipe = sentinel.process.stdout.fileno()
        assert fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE) == SMALLEST_PIPE
        for _ in range(3):
            eventually(occupied)
            with host.job() as newcomer:
                assert newcomer.got_memory()
                newcomer.wait_for_exit()
        eventually(occupied)
        assert sentinel.stop() == 0
        assert len(os.read(pipe, SMALLEST_PIPE)) > SMALLEST_PIPE // 2, "the pipe was never full"


#: The faults of the common run, and the times between them and the newcomer.
COMMON = {("supervisor-stopped", 0.1)}


@contextmanager
def broken(fault: str, sentinel: SentinelProcess) -> Iterator[None]:
    """Kill or stop processes of a sentinel; continue stopped ones at the end."""
    titles, number = FAULTS[fault]
    victims = [sentinel.wait_for_process(title) for title in titles]
    for victim in victims:
        victim.send_signal(number)
    try:
        yield
    finally:
        for victim in victims if number is signal.SIGSTOP else ():
            with suppress(psutil.NoSuchProcess):  # it has been replaced
                victim.send_signal(signal.SIGCONT)


@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize(
    ("fault", "delay_s"),
    [
        pytest.param(fault, delay_s, marks=() if (fault, delay_s) in COMMON else pytest.mark.long)
        for fault in FAULTS
        for delay_s in DELAYS_S
    ],
)
def test_a_newcomer_gets_its_memory_while_a_process_of_sentinel_is_dead_or_stopped(
    host: GpuHost, fault: str, delay_s: float
) -> None:
    assert newcomer_got_memory_after(host, fault, delay_s, "hold")


@pytest.mark.long
@pytest.mark.parametrize("workload", ["gemm", "elementwise"])
@pytest.mark.parametrize(("fault", "delay_s"), list(zip(FAULTS, cycle(DELAYS_S), strict=False)))
def test_the_workload_makes_no_difference_to_that(
    host: GpuHost, fault: str, delay_s: float, workload: str
) -> None:
    assert newcomer_got_memory_after(host, fault, delay_s, workload)


def newcomer_got_memory_after(host: GpuHost, fault: str, delay_s: float, workload: str) -> bool:
    """Race a newcomer some time after a fault; return whether it got its memory."""
    flags = (*QUICK, "--workload", workload, "--status-every", "1s")
    own = {
        "SENTINEL_SOCKET": str(host.folder / "sentinel.sock"),
        "STATE_DIRECTORY": str(host.folder),
    }
    api = fault.startswith("api")
    with host.sentinel(1, *flags, api=api, environment=own) as sentinel:
        sentinel.wait_for("stressor.ready")
        wait_until_it_watches(sentinel)
        with broken(fault, sentinel):
            time.sleep(delay_s)
            with host.job() as newcomer:
                return newcomer.got_memory()


def wait_until_it_watches(sentinel: SentinelProcess) -> None:
    """Wait until the stressor knows the limit of its memory: after a reading that follows Ready."""
    eventually(lambda: any(event.get("stressor") == "RUNNING" for event in sentinel.events))


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_newcomer_gets_its_memory_while_the_probe_hangs(simulated: SimulatedHost) -> None:
    with simulated.sentinel(1, *QUICK, "--workload", "hold", "--status-every", "1s") as sentinel:
        sentinel.wait_for("stressor.ready")
        wait_until_it_watches(sentinel)
        simulated.registry.inject(simulated.uuid(), "hang")
        with simulated.job() as newcomer:
            assert newcomer.got_memory()
        simulated.registry.inject(simulated.uuid(), None)


#: An MPS server whose client is never listed: it grows, and then takes nearly the whole GPU.
MPS_SERVER = """
import pathlib, sys, time
from sentinel.host.simulation import Registry
pathlib.Path("/proc/self/comm").write_text("nvidia-cuda-mps")
folder, gpu, seconds = sys.argv[1:]
registry = Registry(pathlib.Path(folder))
server = registry.attach(gpu)
server.allocate(30 * 2**20)
print("serves", flush=True)
sys.stdin.readline()
server.allocate(13 * 2**20)
time.sleep(float(seconds))
print(server.allocate(int(0.97 * registry.memory(gpu).total) - server.held), flush=True)
"""


@pytest.mark.usefixtures("fake_torch")
def test_a_client_of_an_mps_server_gets_its_memory(simulated: SimulatedHost) -> None:
    # 160 ms from its start to its large allocation, on an H200.
    words = (simulated.folder, simulated.uuid(), f"{0.16 * MACHINE_SLOWNESS}")
    pipe = {"stdin": subprocess.PIPE}
    with started_program(sys.executable, "-c", MPS_SERVER, *words, **pipe) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        assert server.stdout.readline() == "serves\n"
        flags = (*QUICK, "--workload", "hold", "--status-every", "1s")
        with simulated.sentinel(1, *flags) as sentinel:
            sentinel.wait_for("stressor.ready")
            wait_until_it_watches(sentinel)
            server.stdin.write("\n")
            server.stdin.flush()
            assert server.stdout.readline() == "True\n"
            assert sentinel.wait_for("gpu.yielding")["evidence"] == "memory"


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_an_ignored_process_costs_a_yield_when_it_arrives_and_then_stays_beside_a_stressor(
    simulated: SimulatedHost,
) -> None:
    """Its memory grows before its PID is listed, as that of a real newcomer does."""
    ignore = ("--ignore", "name=demo-job", "--workload", "hold", "--status-every", "1s")
    with simulated.sentinel(1, *QUICK, *ignore) as sentinel:
        sentinel.wait_for("stressor.ready")
        with simulated.job(share=0.02, stay=600) as job:
            assert job.got_memory()
            yielding = sentinel.wait_for("gpu.yielding")
            assert (yielding["evidence"], yielding["processes"]) == ("memory", [])
            sentinel.wait_for("stressor.ready", count=2)
            yields = sentinel.names().count("gpu.yielding")
            sentinel.wait_for("gpu.status", count=sentinel.names().count("gpu.status") + 2)
            assert sentinel.names().count("gpu.yielding") == yields


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_killed_probe_is_replaced_and_stressors_continue(host: GpuHost) -> None:
    # A slow host must not be the reason for which a stressor ends.
    flags = ("--workload", "hold", "--unwatched-after", "5s")
    with host.sentinel(1, *QUICK, *flags) as sentinel:
        sentinel.wait_for("stressor.ready")
        probe = sentinel.wait_for_process("sentinel: probe")
        probe.kill()
        sentinel.wait_for("probe.ready")
        with host.job() as newcomer:
            assert newcomer.got_memory()
        assert "stressor.stopped" not in sentinel.names()
        assert gone(probe)
