"""Real stressors on simulated GPUs, with the test as their supervisor: messages and exits."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sentinel.errors import ChildExitCode
from sentinel.host.process_setup import Inherited
from sentinel.protocol.stressor import (
    CreatingContext,
    Failed,
    FailureKind,
    Finding,
    MemoryTarget,
    Progress,
    Ready,
    Stop,
)
from tests.harness.programs import run_program
from tests.harness.sentinel_process import eventually
from tests.harness.stressor_harness import Child, descendants, stressors
from tests.harness.timing import MACHINE_SLOWNESS

Start = Callable[..., Child]

GIB = 2**30
CONTEXT = 300 * 2**20


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Start]:
    """Start stressors as the supervisor does, with their own import of torch."""
    with stressors(tmp_path, spawned=True) as start:
        yield start


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_importing_the_main_module_imports_neither_torch_nor_a_plugin() -> None:
    script = (
        "import sys, sentinel.stressor.main, sentinel.config.specs as loading\n"
        "loading.parse_workload('fft:length=8'), loading.known_workloads()\n"
        "heavy = {'torch', 'numpy', 'sentinel.stressor.workloads', 'sentinel.stressor.context'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = run_program(sys.executable, "-c", script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_importing_torch_without_numpy_prints_no_warning() -> None:
    script = (
        "import sys\n"
        "sys.modules['numpy'] = None\n"
        "from sentinel.stressor.loader import import_torch\n"
        "import_torch()"
    )
    done = run_program(sys.executable, "-W", "error", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_a_gemm_stressor_holds_steady_memory_and_ends_on_request(
    spawn: Start, tmp_path: Path
) -> None:
    lock = (tmp_path / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    child = spawn("gemm", locks=(Inherited(lock.fileno()),))
    lock.close()

    assert child.wait_for(CreatingContext).torch
    ready = child.wait_for(Ready)
    # 88 % of the 15.7 GiB left by the context, in 27 whole chunks of half a GiB and a rest
    assert (ready.chunks, ready.refused) == (28, False)
    assert 27 * GIB // 2 < ready.held <= ready.asked < ready.held + 2 * 2**20
    # Its own tensors beside the chunks are in segments of 2 MiB, as torch takes them.
    beside = child.used() - ready.held - CONTEXT
    assert 0 < beside <= 64 * 2**20
    assert beside % 2**21 == 0

    command = Path(f"/proc/{child.pid}/cmdline").read_text()
    assert command.startswith(f"sentinel: keeps idle GPU {child.uuid[:12]} warm, yields at once")
    assert Path(f"/proc/{child.pid}/comm").read_text() == "sentinel-stress\n"
    assert Path(f"/proc/{child.pid}/oom_score_adj").read_text().strip() == "1000"
    assert os.getsid(child.pid) == child.pid

    before, began = cpu_seconds(child.pid), time.monotonic()
    progress = [child.wait_for_work("iterations") for _ in range(2)]
    load = (cpu_seconds(child.pid) - before) / (time.monotonic() - began)
    assert load < 0.25 * MACHINE_SLOWNESS, f"a simulated GPU takes {load:.0%} of a core"
    for message in progress:
        assert message.seconds >= 1.0
        size = round((message.flops / message.iterations / 2) ** (1 / 3))
        assert size in {64, 128, 256}, "the largest that this CPU multiplies fast enough"
        assert message.errors == 0
    # From the second round on, every result is checked.
    while (message := child.wait_for(Progress)).checks < message.iterations:
        assert child.process.is_alive()
    assert child.used() == ready.held + CONTEXT + beside, "device memory changed after Ready"

    assert is_locked(tmp_path / "lock")
    assert child.stop() == ChildExitCode.DONE
    assert not is_locked(tmp_path / "lock")
    assert child.used() == 0


def is_locked(path: Path) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.mark.long
def test_an_elementwise_stressor_ends_when_its_lease_expires(start: Start) -> None:
    child = start("elementwise", lease=3.0 * MACHINE_SLOWNESS)
    ready = child.wait_for(Ready)
    progress = child.wait_for_work("iterations")
    piece = 512 * 2**20 // 4096
    assert progress.bytes == 3 * piece * progress.iterations
    assert child.used() == ready.held + CONTEXT
    # On a busy machine, the kernel timer may be first.
    assert child.wait_for_end() in {ChildExitCode.LEASE_RAN_OUT, -signal.SIGALRM}


@pytest.mark.long
def test_a_hold_stressor_takes_all_free_memory_and_ends_with_its_supervisor(start: Start) -> None:
    child = start("hold", memory=MemoryTarget(size=64 * GIB))
    ready = child.wait_for(Ready)
    assert (ready.asked, ready.refused) == (64 * GIB, True)
    assert ready.chunks == (16 * GIB - CONTEXT) // (GIB // 2)
    child.wait_for_work("iterations")
    assert child.used() == ready.held + CONTEXT
    child.channel.close()
    assert child.wait_for_end() == ChildExitCode.ORPHANED


@pytest.mark.long
def test_the_kernel_timer_ends_a_stuck_interpreter(start: Start) -> None:
    child = start("bad_workloads:holds_the_interpreter", lease=3.0 * MACHINE_SLOWNESS)
    child.wait_for(Ready)
    assert child.wait_for_end() == -signal.SIGALRM
    assert child.used() == 0


@pytest.mark.long
def test_leases_that_queued_up_during_an_import_count(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The import blocks the lease keeper for longer than a lease.
    lease = 2.0 * MACHINE_SLOWNESS
    monkeypatch.setenv("SLOW_IMPORT_S", f"{1.6 * lease}")
    child = start("bad_workloads.slow_import:well_behaved", lease=lease)
    child.wait_for(Ready)
    assert child.stop() == ChildExitCode.DONE


def test_a_stop_before_the_context_exists_ends_the_stressor(spawn: Start) -> None:
    child = spawn("hold")
    child.send(Stop())
    assert child.wait_for_end() == ChildExitCode.DONE
    assert child.received == []
    assert child.used() == 0


def test_an_orphaned_stressor_kills_its_descendants(start: Start) -> None:
    child = start("bad_workloads:forks")
    child.wait_for(Ready)
    eventually(lambda: len(descendants(child.pid)) == 1)
    child.channel.close()
    assert child.wait_for_end() == ChildExitCode.ORPHANED
    eventually(lambda: not descendants(child.pid))


@pytest.mark.parametrize(
    ("workload", "kind", "expected_texts"),
    [
        (
            "bad_workloads:raises",
            FailureKind.WORKLOAD,
            ["workload bad_workloads:raises raised ValueError: boom and more", "(__init__.py:"],
        ),
        (
            "bad_workloads:returns",
            FailureKind.RETURNED,
            [
                "bad_workloads:returns returned after 42 iterations",
                "until ctx.pace() returns False",
            ],
        ),
        ("bad_workloads:exits", FailureKind.WORKLOAD, ["bad_workloads:exits raised SystemExit"]),
        (
            "bad_workloads:rehearses_too_much",
            FailureKind.OUT_OF_MEMORY,
            ["workload bad_workloads:rehearses_too_much raised"],
        ),
        (
            "bad_workloads:reports_nan",
            FailureKind.WORKLOAD,
            ["report(flops=nan): it must be finite"],
        ),
        (
            "bad_workloads:takes_memory_late",
            FailureKind.OUT_OF_MEMORY,
            ["Tried to allocate 1.00 MiB", "the workload allocated after Ready"],
        ),
        (
            "nonesuch",
            FailureKind.UNUSABLE,
            ["there is no workload 'nonesuch'", "known are elementwise, "],
        ),
        (
            "bad_workloads.failing_import:anything",
            FailureKind.MALFORMED,
            ["RuntimeError: this module never worked (failing_import.py:3 in <module>)"],
        ),
        (
            "bad_workloads:WithoutRun",
            FailureKind.MALFORMED,
            ["workload WithoutRun is a class without a method `run`", "`run(self, ctx)`"],
        ),
        (
            "bad_workloads:WellBehaved:rest=warm",
            FailureKind.UNUSABLE,
            ["workload WellBehaved: option rest='warm' is not a number", "default 0.02"],
        ),
        (
            "gemm:size=big",
            FailureKind.UNUSABLE,
            ["workload gemm: option size='big' is not a whole number", "default 0"],
        ),
        (
            "gemm:size=4096",
            FailureKind.UNUSABLE,
            ["no room for inputs, a reference and 3 results of size=4096", "larger chunks"],
        ),
    ],
)
def test_the_failure_message_names_what_went_wrong(
    start: Start, workload: str, kind: FailureKind, expected_texts: list[str]
) -> None:
    child = start(workload)
    failed = child.wait_for(Failed)
    assert failed.kind is kind
    for expected_text in expected_texts:
        assert expected_text in failed.reason
    assert "\n" not in failed.reason
    assert len(failed.reason) < 1500
    assert child.wait_for_end() == ChildExitCode.FAILED
    assert child.used() == 0


def test_less_memory_than_one_chunk_is_out_of_memory(start: Start) -> None:
    child = start("hold", memory=MemoryTarget(share=0.01))
    failed = child.wait_for(Failed)
    assert failed.kind is FailureKind.OUT_OF_MEMORY
    assert "not one chunk of 512 MiB is available" in failed.reason


def test_less_memory_than_a_context_is_out_of_memory(start: Start, tmp_path: Path) -> None:
    child = start("hold")
    other_process = child.registry.attach(child.uuid)
    assert other_process.allocate(16 * 2**30 - 2**20)
    try:
        failed = child.wait_for(Failed)
    finally:
        other_process.close()
    assert failed.kind is FailureKind.OUT_OF_MEMORY
    assert f"the context on {child.uuid} raised" in failed.reason


def test_a_torch_without_cuda_is_unusable(start: Start) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    child = start("hold", simulated=False)
    failed = child.wait_for(Failed)
    assert failed.kind is FailureKind.UNUSABLE
    assert "was built without CUDA. sentinel doctor has the command" in failed.reason


@pytest.mark.long
def test_a_flipped_bit_is_reported_once(start: Start) -> None:
    child = start("bad_workloads:flips_a_bit")
    finding = child.wait_for(Finding)
    assert (finding.first, finding.count, finding.repeated) == ((3, 4), 1, 0)
    assert child.wait_for_work("errors").errors == 1
    assert child.wait_for(Progress).errors == 0
    assert child.stop() == ChildExitCode.DONE
