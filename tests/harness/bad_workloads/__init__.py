"""Workloads that each violate one rule, for tests of the supervisor.

They are named ``bad_workloads:raises`` and so on. Each becomes Ready, unless ``early`` is set, and
then misbehaves. This module does not import torch before the stressor has.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import json
import mmap
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.stressor.context import WorkloadContext


FOREVER = 10**6


def well_behaved(ctx: WorkloadContext, *, rest: float = 0.02) -> None:
    """Follow every rule."""
    while ctx.pace(rest):
        ctx.report()


class WellBehaved:
    """Follow every rule, as a class.

    Args:
        rest: Seconds between two rounds.
    """

    def __init__(self, *, rest: float = 0.02) -> None:
        self._rest = rest

    def run(self, ctx: WorkloadContext) -> None:
        """Loop until stopped."""
        ctx.note(f"resting {self._rest} s at a time")
        well_behaved(ctx, rest=self._rest)


def prints(ctx: WorkloadContext, *, megabytes: int = 30) -> None:
    """Print a lot in one burst, from Python and from below it, and follow every rule after it."""
    line = "printed " * 125
    for _ in range(megabytes * 500):
        print(line)  # noqa: T201 - the fault
        os.write(2, f"{line}\n".encode())
    print("printed everything", flush=True)  # noqa: T201
    well_behaved(ctx)


class WithoutRun:
    """A class without ``run``."""


def finds_a_fault_in_a_selftest(
    ctx: WorkloadContext, *, flips: int, rounds: int, dtypes: str = ""
) -> None:
    """Report a finding during a selftest."""
    finds_and_dies(ctx)


def fails_in_a_selftest(ctx: WorkloadContext, *, flips: int, rounds: int, dtypes: str = "") -> None:
    """Raise an error during a selftest."""
    raises(ctx)


def finds_and_dies(ctx: WorkloadContext) -> None:
    """Report a finding, then exit by SIGKILL."""
    become_ready(ctx)
    _find(ctx)
    os.kill(os.getpid(), signal.SIGKILL)


def wrong_at_its_end(ctx: WorkloadContext) -> None:
    """Report right results until it is to end; then a wrong one, and a finding."""
    checks_results(ctx)
    ctx.report(checks=1, errors=1)
    _find(ctx)


def _find(ctx: WorkloadContext) -> None:
    """Report a finding."""
    from sentinel.protocol.stressor import Finding, FindingPlace

    finding = Finding(
        number=0,
        place=FindingPlace.RESULT,
        workload="bad_workloads",
        dtype="bf16",
        round=ctx.iterations,
        seed=1,
        count=1,
        first=(5, 9),
        bits=(0, 1, *[0] * 14),
        reread=True,
        repeated=0,
        repeats=3,
    )
    ctx.find(finding)


def become_ready(ctx: WorkloadContext) -> None:
    """Loop until Ready is sent."""
    while not ctx.ready and ctx.pace():
        ctx.report()


def raises(ctx: WorkloadContext, *, early: bool = False) -> None:
    """Raise an error with a long and broken text."""
    if not early:
        become_ready(ctx)
    message = "boom\nand more " + "x" * 100_000
    raise ValueError(message)


def refuses_its_gpu(_: WorkloadContext) -> None:
    """Find out on the GPU that it cannot run there: for ever, as after a wrong option."""
    from sentinel.errors import ConfigError

    raise ConfigError("this GPU cannot run it")


def returns(ctx: WorkloadContext) -> None:
    """Return although no stop was requested."""
    become_ready(ctx)
    ctx.report(iterations=40)


def exits(ctx: WorkloadContext) -> None:
    """Exit by SystemExit."""
    become_ready(ctx)
    sys.exit(0)


def segfaults(ctx: WorkloadContext) -> None:
    """Exit by a segmentation fault."""
    become_ready(ctx)
    os.kill(os.getpid(), signal.SIGSEGV)


def never_paces(_: WorkloadContext) -> None:
    """Prepare without end."""
    time.sleep(FOREVER)


def never_reports(ctx: WorkloadContext) -> None:
    """Pace, and report nothing."""
    while ctx.pace(0.02):
        pass


def spins_without_end(ctx: WorkloadContext) -> None:
    """Loop without end, and never pace."""
    become_ready(ctx)
    while True:
        pass


def sleeps_without_end(ctx: WorkloadContext) -> None:
    """Sleep without end, and never pace."""
    become_ready(ctx)
    while True:
        time.sleep(FOREVER)


def stubborn(ctx: WorkloadContext) -> None:
    """Pace and report, but ignore stops and SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        ctx.pace()
        ctx.report()
        time.sleep(0.02)


def holds_the_interpreter(ctx: WorkloadContext, *, seconds: int = FOREVER) -> None:
    """Stay in native code that keeps the interpreter lock."""
    become_ready(ctx)
    ctypes.PyDLL(None).sleep(seconds)
    well_behaved(ctx)


def stops_itself(ctx: WorkloadContext) -> None:
    """Stop itself, as Ctrl+Z would."""
    become_ready(ctx)
    while ctx.pace():
        os.kill(os.getpid(), signal.SIGSTOP)


def sends_malformed_messages(ctx: WorkloadContext) -> None:
    """Send the supervisor invalid datagrams."""
    become_ready(ctx)
    channel = _channel()
    while ctx.pace(0.05):
        channel.send(b'{"type": "Ready", "held": "everything"')


def floods_the_channel(ctx: WorkloadContext) -> None:
    """Send the supervisor messages at full speed."""
    become_ready(ctx)
    channel = _channel()
    message = (
        b'{"type":"Progress","seconds":0.0,"iterations":0,'
        b'"flops":0.0,"bytes":0.0,"checks":0,"errors":0,"max_quantum_s":0.0}'
    )
    while True:
        channel.send(message)


def receives_the_leases(ctx: WorkloadContext) -> None:
    """Receive the supervisor's messages in place of the lease keeper."""
    become_ready(ctx)
    channel = _channel()
    while True:
        channel.recv(65536)


def sends_extreme_messages(ctx: WorkloadContext) -> None:
    """Send every type of message, with numbers and texts that no honest workload has."""
    from sentinel.protocol.stressor import STRESSOR_MESSAGES

    become_ready(ctx)
    channel = _channel()
    values: dict[str, list[Any]] = {
        "int": [-1, 2**63, -(2**200)],
        "float": [-1e308, 1e308, "NaN"],
        "str": ["", "\x1b]0;owned\x07\n<b>" * 100, "\ud800"],
        "bool": [True, None, "yes"],
    }
    while ctx.pace():
        for kind in STRESSOR_MESSAGES:
            for choice in range(3):
                fields = {
                    field.name: values.get(str(field.type).partition(" ")[0], [None, [], {}])[
                        choice
                    ]
                    for field in dataclasses.fields(kind)
                }
                channel.send(json.dumps({"type": kind.__name__, **fields}).encode())


def sends_huge_numbers(ctx: WorkloadContext) -> None:
    """Send progress in which only the size of a number is wrong."""
    from sentinel.protocol.codec import encode
    from sentinel.protocol.stressor import Progress

    become_ready(ctx)
    progress = Progress(seconds=1.0, iterations=10**400, flops=0.0, bytes=0.0, checks=0, errors=0)
    channel = _channel()
    while ctx.pace():
        channel.send(encode(progress))


def overwrites_shared_memory(ctx: WorkloadContext) -> None:
    """Fill every shared page that this process has with numbers that are no times."""
    become_ready(ctx)
    pages = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if "memfd:" in str(entry.readlink()):
                pages.append(mmap.mmap(int(entry.name), 0))
    for value in itertools.cycle((float("nan"), float("inf"), -1e308)):
        for page in pages:
            page[:] = struct.pack("d", value) * (len(page) // 8)
        if not ctx.pace(0.01):
            return


def closes_everything(ctx: WorkloadContext) -> None:
    """Close every descriptor, and never pace again."""
    become_ready(ctx)
    os.closerange(0, 4096)
    time.sleep(FOREVER)


def changes_its_process(ctx: WorkloadContext) -> None:
    """Change what a process can change of itself."""
    become_ready(ctx)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.environ.clear()
    os.umask(0o777)
    os.chdir("/")
    os.nice(19)
    while True:
        time.sleep(FOREVER)


def fills_its_session(ctx: WorkloadContext) -> None:
    """Fork as long as a bound allows, each copy a parent of the next."""
    become_ready(ctx)
    for _ in range(100):
        if os.fork():
            break
    time.sleep(FOREVER)


def kills_its_group(ctx: WorkloadContext) -> None:
    """Kill its own process group."""
    become_ready(ctx)
    os.killpg(0, signal.SIGKILL)


def forks(ctx: WorkloadContext) -> None:
    """Fork a copy that holds every descriptor open."""
    become_ready(ctx)
    if os.fork() == 0:
        time.sleep(FOREVER)
    well_behaved(ctx)


def forks_many(ctx: WorkloadContext, *, count: int = 60) -> None:
    """Fork copies that ignore the end of their session, before Ready."""
    ctx.pace()
    for _ in range(count):
        if not os.fork():
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            while True:
                signal.pause()
    well_behaved(ctx)


def leaves_a_process_behind(ctx: WorkloadContext, *, keeps_memory: bool = False) -> None:
    """Fork a copy below Python that leads a session of its own, before Ready or with the memory."""
    ctx.pace()
    if keeps_memory:
        become_ready(ctx)
    libc = ctypes.PyDLL(None)
    if not libc.fork():
        libc.setsid()
        for entry in list(Path("/proc/self/fd").iterdir()):
            file = os.path.realpath(entry)
            if ":[" in file or not (keeps_memory or file.endswith(".lock")):  # pipes have readers
                libc.close(int(entry.name))
        while True:
            libc.pause()
    well_behaved(ctx)


def starts_processes(ctx: WorkloadContext) -> None:
    """Start a program that never ends."""
    become_ready(ctx)
    command = [sys.executable, "-c", f"import time; time.sleep({FOREVER})"]
    with subprocess.Popen(command):
        well_behaved(ctx)


def starts_a_daemon(ctx: WorkloadContext) -> None:
    """Start a program that leads a session of its own, as ``os.system`` starts one."""
    command = [sys.executable, "-c", f"import time; time.sleep({FOREVER})"]
    os.posix_spawn(command[0], command, os.environ, setsid=True)
    well_behaved(ctx)


def grows(ctx: WorkloadContext, *, mebibytes: int = 64, after: int = 0) -> None:
    """Take GPU memory past torch after Ready, as a library with its own allocator does."""
    become_ready(ctx)
    while ctx.iterations < after and ctx.pace():
        ctx.report()
    device: Any = ctx._device
    device.membership.allocate(mebibytes * 2**20)
    well_behaved(ctx)


def takes_memory_late(ctx: WorkloadContext) -> None:
    """Allocate through torch after Ready, which the cap refuses."""
    import torch

    become_ready(ctx)
    device: Any = ctx._device
    assert device.new_chunk(2**20) is None, "the cap does not hold"
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 MiB.")


def rehearses_too_much(ctx: WorkloadContext) -> None:
    """Take more memory in the rehearsal than the card has."""
    become_ready(ctx)


def _take_too_much(ctx: WorkloadContext) -> None:
    import torch

    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 TiB.")


rehearses_too_much.rehearse = _take_too_much  # type: ignore[attr-defined]


def counts_bytes(ctx: WorkloadContext) -> None:
    """Report bytes without iterations."""
    while ctx.pace(0.01):
        ctx.report(iterations=0, bytes=1000)


def eats_host_memory(ctx: WorkloadContext, *, mebibytes: int = 256) -> None:
    """Hold a lot of host memory."""
    become_ready(ctx)
    ballast = bytearray(mebibytes * 2**20)
    while ctx.pace(0.05):
        ctx.report(iterations=len(ballast[:1]))


def prints_without_end(ctx: WorkloadContext) -> None:
    """Print without end."""
    become_ready(ctx)
    while ctx.pace():
        print("chatter " * 1000)  # noqa: T201 - its purpose
        print("chatter " * 1000, file=sys.stderr, flush=True)  # noqa: T201
        ctx.report()


def queues_long_quanta(ctx: WorkloadContext, *, seconds: float = 0.2) -> None:
    """Queue quanta that are too long, and ignore stops."""
    while True:
        ctx.pace()
        time.sleep(seconds)
        ctx.report(checks=1)


def queues_long_kernels(ctx: WorkloadContext, *, cycles: int = 300_000_000) -> None:
    """Queue kernels that keep a real GPU busy for too long."""
    import torch

    cuda: Any = torch.cuda
    while ctx.pace():
        cuda._sleep(cycles)
        ctx.report()


def queues_very_long_quanta(ctx: WorkloadContext, *, seconds: float = 2.0) -> None:
    """Queue quanta that are far too long."""
    while ctx.pace():
        time.sleep(seconds)
        ctx.report()


def checks_results(ctx: WorkloadContext, *, rest: float = 0.02) -> None:
    """Report results that were checked, and right."""
    while ctx.pace(rest):
        ctx.report(checks=1, flops=1e9)


def reports_nan(ctx: WorkloadContext) -> None:
    """Report a number that is not finite."""
    become_ready(ctx)
    while ctx.pace():
        ctx.report(flops=float("nan"))


def faulty(ctx: WorkloadContext) -> None:
    """Report one wrong result."""
    become_ready(ctx)
    ctx.report(checks=1, errors=1)
    well_behaved(ctx)


def faulty_until_repaired(ctx: WorkloadContext) -> None:
    """Report one wrong result, unless the file ``repaired`` is beside the folder of the GPUs."""
    from sentinel.host.simulation import default_folder

    if (default_folder().parent / "repaired").exists():
        checks_results(ctx)
    else:
        faulty(ctx)


def flips_a_bit(ctx: WorkloadContext, *, size: int = 128) -> None:
    """Multiply matrices, and flip one bit of one result once."""
    from sentinel.stressor.comparison import flip
    from sentinel.stressor.matmul import DTYPES
    from sentinel.stressor.sizing import build
    from sentinel.stressor.workloads import run_seeds

    (pipeline,) = build(ctx, (DTYPES["bf16"],), workload="gemm", size=size)
    pipeline.prepare(seed=1)
    done: list[int] = []

    def flip_once() -> None:
        if pipeline.rounds >= 2 and not done:
            done.append(pipeline.rounds)
            flip(pipeline.newest(), 3 * size + 4, 9)

    pipeline.between = flip_once
    run_seeds(pipeline, seeds=1)


def pulses_and_notes_when(ctx: WorkloadContext, *, sync: str) -> None:
    """Pulse once a second, and note when each phase of load began."""
    from sentinel.stressor import workloads

    run_load_phase = workloads.run_load_phase

    def note_and_run(pipeline: Any, end: float) -> bool:
        ctx.note(f"{time.monotonic():.6f}")
        return run_load_phase(pipeline, end)

    vars(workloads)["run_load_phase"] = note_and_run
    vars(workloads)["pulse"](ctx, hz=1.0, sync=sync)


def tests_memory_that_loses_a_bit(ctx: WorkloadContext) -> None:
    """Test the memory, and flip one of its bits once, some time after its proof."""
    from sentinel.stressor import memtest
    from sentinel.stressor.memory_cells import MemoryCells

    class Forgetful(MemoryCells):
        lost = False

        def check(self, task: Any, piece: Any, read: int) -> None:
            if ctx.ready and not self.lost and (piece.block, piece.index) == (2, 0):
                self.lost = True
                self.flip(piece, 0, 17)
            super().check(task, piece, read)

    vars(memtest)["MemoryCells"] = Forgetful
    memtest.memtest(ctx, patterns="ones+random")


def tests_memory_that_loses_a_held_bit(ctx: WorkloadContext) -> None:
    """Test the memory, and flip a bit of the first stripe while it is held."""
    from sentinel.stressor.memtest import MemoryTest, memtest

    hold_stripe = vars(MemoryTest)["_hold_stripe"]
    lost: list[int] = []

    def hold_and_lose(test: MemoryTest, number: int) -> None:
        hold_stripe(test, number)
        if not lost:
            lost.append(test.cells.held[0])
            test.cells.flip(test.cells.cut(lost[0])[0], 3, 17)

    vars_of_test: Any = MemoryTest
    vars_of_test._hold_stripe = hold_and_lose
    memtest(ctx, patterns="zeros", retention=1.0)


def computes_a_unit_wrong(ctx: WorkloadContext, *, unit: str, plan: str) -> None:
    """Exercise units, one of which computes one wrong bit; of ``gather``, a word loses one."""
    from sentinel.stressor import workloads
    from sentinel.stressor.comparison import flip
    from sentinel.stressor.execution_units import UNITS
    from sentinel.stressor.pointer_chase import PointerChase

    left = [1]

    def go_wrong(matrix: Any, element: int) -> None:
        if ctx.ready and left:
            left.clear()
            flip(matrix, element, 3)

    if unit in UNITS:
        right = UNITS[unit].multiply

        def multiply(product: Any, out: Any) -> None:
            right(product, out)
            if out is not product.reference:
                go_wrong(out, 5)

        UNITS[unit] = dataclasses.replace(UNITS[unit], multiply=multiply)
    else:
        fill: Any = vars(PointerChase)["_fill"]

        def fill_wrong(chase: Any, block: int) -> None:
            fill(chase, block)
            if chase.proved:
                go_wrong(chase.blocks[block], 5)

        vars_of_chase: Any = PointerChase
        vars_of_chase._fill = fill_wrong
    vars(workloads)["units"](ctx, plan=plan, seconds=0.3)


def discards_its_checks(ctx: WorkloadContext, *, flips: int, rounds: int, dtypes: str = "") -> None:
    """Run a selftest whose checks are discarded once they are proved."""
    from sentinel.stressor.pipeline import ResultPipeline
    from sentinel.stressor.selftest import selftest

    prepare: Any = ResultPipeline.prepare

    def prepared(pipeline: Any, **seed: int) -> None:
        prepare(pipeline, **seed)
        pipeline._queue_snapshot = lambda checked: None

    changed: Any = ResultPipeline
    changed.prepare = prepared
    selftest(ctx, flips=flips, rounds=rounds, dtypes=dtypes)


def _channel() -> socket.socket:
    """Return the stressor's own channel, found among its descriptors."""
    for number in sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir()):
        try:
            found = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        if (found.family, found.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            return found
    message = "there is no channel"
    raise RuntimeError(message)
