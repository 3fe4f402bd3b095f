"""The interface of a workload to its GPU: memory, pace and reports.

A workload is a function that takes a :class:`WorkloadContext` and loops until it is stopped::

    def warm(ctx: WorkloadContext) -> None:
        while ctx.pace():
            ctx.chunks[0].bitwise_not_()
            ctx.report(bytes=2 * ctx.chunks[0].numel())
"""

from __future__ import annotations

import math
import operator
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sentinel.host.golden_store import Goldens
from sentinel.host.process_setup import settle_heap
from sentinel.protocol.stressor import (
    Completed,
    Finding,
    Note,
    Progress,
    Ready,
    StartStage,
    StressorGroup,
)
from sentinel.stressor.device import Device, Fence, Filling
from sentinel.stressor.lease import LeaseKeeper
from sentinel.stressor.start_watch import PREPARATION_BYTES, StartWatch

#: The length of a window. NVML's sampling period is 1/6 s or more.
WINDOW_S = 0.1

#: The maximum debt of a window. A workload has at most two quanta of 50 ms in flight; a longer
#: overrun means that the host stood still.
_MAX_DEBT_S = 1.0

#: The maximum length of a finding's ``detail``.
_MAX_DETAIL_LENGTH = 1000

#: The interval of progress messages.
_PROGRESS_INTERVAL_S = 1.0

#: The maximum length of a note.
_MAX_NOTE_LENGTH = 200


class DutyCycle:
    """Decides when the device rests, and for how long. Times are seconds of one clock.

    Args:
        quantum: The duration of a quantum until one is measured.

    Attributes:
        share: The share of the time for which the device is to be busy; 1 never rests.
    """

    def __init__(self, quantum: float) -> None:
        self.share = 1.0
        self._quantum = quantum
        self._end = 0.0  # of this window
        self._left = 0.0  # remaining busy time of this window; negative if it is in debt
        self._busy_since: float | None = None
        self._quanta = 0

    def set_share(self, share: float, now: float) -> None:
        """Change the share, start a new window and forget any debt."""
        if share == self.share:
            return
        self.share = share
        self._end, self._left = now + WINDOW_S, share * WINDOW_S
        if self._busy_since is not None:
            self._busy_since, self._quanta = now, 0

    def is_spent(self, now: float) -> bool:
        """Check whether the device is to rest after the work in flight; called once per quantum.

        At that time one quantum is done and another one is running.
        """
        self._quanta += 1
        if self.share >= 1.0:
            return False
        busy = 0.0 if self._busy_since is None else now - self._busy_since
        return busy + self._quantum >= self._left

    def pause(self, now: float) -> None:
        """Record that the device is idle from now on."""
        if self._busy_since is None:
            return
        busy = now - self._busy_since
        self._left = max(-_MAX_DEBT_S, self._left - busy)
        if self._quanta:
            self._quantum = busy / self._quanta
        self._busy_since, self._quanta = None, 0

    def rest_s(self, now: float) -> float:
        """Compute how long the device must rest from now on; infinite at a share of 0."""
        if self.share >= 1.0 or self._busy_since is not None:
            return 0.0
        if self.share <= 0.0:
            return math.inf
        self._begin_windows(now)
        if self._left > 0.0:
            return 0.0
        short = math.floor(-self._left / (self.share * WINDOW_S))
        return self._end - now + short * WINDOW_S

    def resume(self, now: float) -> None:
        """Record that the device is busy from now on, if it was idle."""
        if self._busy_since is None:
            self._busy_since, self._quanta = now, 0

    def _begin_windows(self, now: float) -> None:
        """Start the windows that are due; unused time is kept for one window only."""
        due = math.floor((now - self._end) / WINDOW_S) + 1
        if due > 0:
            self._end += due * WINDOW_S
            budget = self.share * WINDOW_S
            self._left = min(self._left + due * budget, 2.0 * budget)


class _Tally(NamedTuple):
    """Work that was reported by the workload and not yet sent to the supervisor."""

    iterations: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    checks: int = 0
    errors: int = 0

    def plus(self, other: _Tally) -> _Tally:
        return _Tally(*map(operator.add, self, other))


@dataclass(kw_only=True)
class Rehearsal:
    """What a workload does and learns on a part of the memory, before all of it is taken."""

    #: Bytes of that part.
    size: int
    #: All of it, in one piece; None once it is over.
    memory: Tensor | None
    #: Tensors like the chunks that will be taken, without memory.
    planned: Sequence[Tensor]
    #: The shapes that were chosen and launched, by what they are for.
    shapes: dict[str, Any] = field(default_factory=dict)
    #: What it has returned.
    result: Any = None


class WorkloadContext:
    """The GPU of one workload.

    Before its second call of :meth:`pace`, a workload takes all the memory it needs and does each
    kind of work once. Afterwards no device memory may be taken: an allocation that torch's cache
    cannot serve raises ``torch.cuda.OutOfMemoryError``.

    Attributes:
        device: The device of the chunks: ``cuda:0``, or ``cpu`` on a simulated GPU.
        chunks: The memory to work on: tensors of bytes, all of one size, with undefined content.
        quantum: Seconds of work to queue between two calls of :meth:`pace`.
        share: The share of the device's memory that the chunks are, from 0 to 1.
        index: The GPU's index on its host, as nvidia-smi counts.
        pci_bus_id: The GPU's address on the PCI bus; empty if it has none.
        goldens: Recorded checksums of good GPUs, or None if no records are kept.
        group: The place of this stressor among those that work together, or None.
        rendezvous: The private folder in which the members of a group find each other, or None.
        inject_faults: Whether to inject faults before anything counts, and to say how many were
            found.
        rehearsal: The rehearsal of the workload, past or present; None without one.
    """

    def __init__(
        self,
        *,
        device: Device,
        filling: Filling,
        lease_keeper: LeaseKeeper,
        watch: StartWatch | None = None,
    ) -> None:
        self.device: torch.device = device.torch_device
        self.quantum: float = device.quantum
        self.index, self.pci_bus_id = 0, ""
        self.goldens: Goldens | None = None
        self.group: StressorGroup | None = None
        self.rendezvous: Path | None = None
        self.inject_faults = False
        self.rehearsal: Rehearsal | None = None
        self._device = device
        self._lease_keeper = lease_keeper
        self._watch = watch
        self.hold(filling)
        self._entered = False
        self._ready = False
        self._in_flight: deque[tuple[Fence, float, _Tally]] = deque()
        self._began = 0.0
        self._longest = 0.0
        self._duty_cycle = DutyCycle(device.quantum)
        self._queued = _Tally()
        self._done = _Tally()
        self._last_progress_at = 0.0
        self._iterations = 0
        self._findings = 0
        self._note: str | None = None
        self._growth = PREPARATION_BYTES

    def hold(self, filling: Filling) -> None:
        """Work on this memory from now on."""
        self._filling = filling
        self.chunks: list[Tensor] = list(filling.chunks)
        self.share: float = filling.worked_on / self._device.total_bytes()

    def rehearse(self, rehearsal: Rehearsal, run: Callable[[WorkloadContext], object]) -> None:
        """Run a rehearsal. Its work does not count, but wrong results in it do."""
        self.rehearsal = rehearsal
        rehearsal.result = run(self)
        rehearsal.memory = None
        self.chunks = []
        self._growth -= PREPARATION_BYTES

    @property
    def rehearses(self) -> bool:
        """Whether this is a rehearsal."""
        return self.rehearsal is not None and self.rehearsal.memory is not None

    def prepare(self) -> None:
        """Begin the last part of the start, in which the workload prepares."""
        if self._watch is not None:
            self._watch.expect_preparation(self._growth)

    @property
    def ready(self) -> bool:
        """Whether the loop's body ran once and the device's memory is settled."""
        return self._ready

    @property
    def iterations(self) -> int:
        """The number of iterations reported so far, done or not."""
        return self._iterations

    def pace(self, rest: float = 0.0, *, before_rest: Callable[[], object] | None = None) -> bool:
        """Wait until the device has at most one quantum left to do.

        The work queued since the last call, on torch's current stream, becomes the next quantum,
        and the previous quantum is waited for, asleep. So the device is never idle and never far
        behind. If the supervisor demands a share of the time below 1, this is where the device
        rests, without end at a share of 0.

        Args:
            rest: Additional seconds to pause; a stop ends the pause.
            before_rest: Called before a demanded rest, once the device is idle. Results are to be
                examined here, since the process may end during a long rest.

        Returns:
            False if the workload is to return, now and at every later call.
        """
        if not (math.isfinite(rest) and rest >= 0):
            raise ValueError(f"pace(rest={rest!r}): a rest is a number of seconds, 0 or more")
        if self._lease_keeper.stopped.is_set():
            return False
        took = time.monotonic() - self._began if self._ready else 0.0
        self._in_flight.append((self._device.fence(), took, self._queued))
        self._queued = _Tally()
        if self._ready:
            self._settle(1)
            if self._idle_if_due(rest) and before_rest is not None:
                before_rest()
        else:
            self._settle(0)
            if self._entered:
                self._become_ready()
            self._entered = True
        self._rest(rest)
        self._wait_for_duty_cycle()
        self._device.begin()
        self._began = time.monotonic()
        return not self._lease_keeper.stopped.is_set()

    def drain(self, *, rests: bool = True) -> bool:
        """Wait, asleep, until the device has done all queued work.

        For rare work that needs an answer of the device. It does not count as a call of
        :meth:`pace`, but it rests on demand and sends progress, so that many calls in a row do not
        look like a hang.

        Args:
            rests: Whether it may rest; False while a fault is still to be reported.

        Returns:
            False if the workload is to return.
        """
        self._settle(0)
        self._device.drain()
        self._done = self._done.plus(self._queued)
        self._queued = _Tally()
        self._rest(0.0)
        if rests:
            self._duty_cycle.pause(time.monotonic())
            self._wait_for_duty_cycle()
        self._device.begin()
        self._began = time.monotonic()
        return not self._lease_keeper.stopped.is_set()

    def report(
        self,
        *,
        iterations: int = 1,
        flops: float = 0,
        bytes: float = 0,  # noqa: A002 - the plain word, and keyword-only
        checks: int = 0,
        errors: int = 0,
    ) -> None:
        """Report the work queued since the last call of pace; it counts once it is done.

        Args:
            iterations: Completed units of work, as the workload defines them.
            flops: Floating-point operations.
            bytes: Bytes of device memory read and written.
            checks: Results that were checked.
            errors: Results that were wrong. The supervisor treats the GPU as faulty.

        Raises:
            ValueError: A number is negative or not finite.
        """
        tally = _Tally(
            iterations=int(iterations),
            flops=float(flops),
            bytes=float(bytes),
            checks=int(checks),
            errors=int(errors),
        )
        for name, value in tally._asdict().items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"report({name}={value!r}): it must be finite and not negative")
        if self.rehearses and not tally.errors:
            return
        self._queued = self._queued.plus(tally)
        self._iterations += tally.iterations

    def find(self, finding: Finding) -> None:
        """Report evidence of a fault of the GPU, and wait until the supervisor has it.

        The error must also be counted with ``report(errors=...)``.

        Args:
            finding: The evidence. Its ``number`` is set here, and a long ``detail`` is truncated.

        Raises:
            TypeError: A number in it is not an int, but for example a tensor.
        """
        numbers = (finding.round, finding.count, *finding.first, *finding.bits)
        more = (finding.seed, finding.repeated, finding.repeats)
        for number in (*numbers, *(extra for extra in more if extra is not None)):
            if type(number) is not int:
                raise TypeError(f"find(): {number!r} in the finding is not an int")
        self._findings += 1
        detail = finding.detail[:_MAX_DETAIL_LENGTH]
        self._lease_keeper.report_finding(replace(finding, number=self._findings, detail=detail))
        self._device.begin()  # the wait for the supervisor is not part of the quantum
        self._began = time.monotonic()

    def send(self, message: Completed) -> None:
        """Send what a built-in workload has completed."""
        if not self.rehearses:
            self._lease_keeper.send(message)

    def allow_growth(self, size: int) -> None:
        """Let libraries take so many more bytes of device memory before Ready, in a rehearsal.

        More growth than was announced looks like another process.
        """
        self._growth += size
        if self.rehearsal is not None and self.rehearses and self._watch is not None:
            self._watch.announce(StartStage.REHEARSING, self.rehearsal.size + self._growth)

    def note(self, text: str) -> None:
        """Describe the workload's present activity; sent with the next progress.

        Args:
            text: One line, truncated to 200 characters, that replaces the previous note.
        """
        self._note = " ".join(text.split())[:_MAX_NOTE_LENGTH]

    def measure(self, work: Callable[[], object]) -> float:
        """Compute how many seconds the device takes for what ``work`` queues: the best of three.

        A first run, which loads kernels and raises clocks, is not counted. It waits for the device,
        so it is for choosing sizes before the loop.
        """
        work()
        return min(self._measure_once(work) for _ in range(3))

    def _measure_once(self, work: Callable[[], object]) -> float:
        seconds = self._device.measure_s(work)
        if self._ready:  # each is a quantum of its own
            self.drain(rests=False)
        return seconds

    def become_ready(self) -> bool:
        """Call :meth:`pace` until this is Ready; return False if the workload is to return."""
        while not self._ready:
            if not self.pace():
                return False
        return True

    def finish(self) -> None:
        """Wait for the work in flight and send the last progress, after the workload returned."""
        self._in_flight.append((self._device.fence(), 0.0, self._queued))
        self._queued = _Tally()
        self._settle(0)
        if self._ready:
            self._send_progress(time.monotonic())

    def _settle(self, remaining: int) -> None:
        """Wait until at most ``remaining`` quanta are in flight, and count the others as done."""
        while len(self._in_flight) > remaining:
            fence, took, tally = self._in_flight.popleft()
            seconds = self._device.wait(fence)
            if self._ready:  # preparations may take any time
                self._longest = max(self._longest, seconds, took)
            self._done = self._done.plus(tally)

    def _become_ready(self) -> None:
        if self._watch is not None:
            self._watch.check()
        self._device.forbid_growth()
        settle_heap()
        filling = self._filling
        self._lease_keeper.send(
            Ready(
                held=filling.held,
                asked=filling.asked,
                chunks=len(filling.chunks) + (filling.rest is not None),
                refused=filling.refused,
            )
        )
        self._last_progress_at = time.monotonic()
        self._ready = True

    def _idle_if_due(self, rest: float) -> bool:
        """Let the device become idle if a rest is due, and return whether one is."""
        self._duty_cycle.set_share(self._lease_keeper.share, time.monotonic())
        rests = self._duty_cycle.is_spent(time.monotonic()) or (
            rest and self._duty_cycle.share < 1.0
        )
        if rests:
            self._settle(0)
            self._duty_cycle.pause(time.monotonic())
        return bool(rests)

    def _wait_for_duty_cycle(self) -> None:
        """Sleep until the device may be busy; a new pace or a stop takes effect at once."""
        if not self._ready:
            return
        while True:
            self._lease_keeper.pace_changed.clear()
            now = time.monotonic()
            self._duty_cycle.set_share(self._lease_keeper.share, now)
            if now - self._last_progress_at >= _PROGRESS_INTERVAL_S:
                self._send_progress(now)  # silence would look like a hang
            wait = self._duty_cycle.rest_s(now)
            if wait <= 0.0 or self._lease_keeper.stopped.is_set():
                self._duty_cycle.resume(now)
                return
            self._lease_keeper.pace_changed.wait(min(wait, _PROGRESS_INTERVAL_S))

    def _rest(self, rest: float) -> None:
        """Pause, and send progress meanwhile: silence would look like a hang."""
        end = time.monotonic() + rest
        while True:
            now = time.monotonic()
            if self._ready and now - self._last_progress_at >= _PROGRESS_INTERVAL_S:
                self._send_progress(now)
            if now >= end or self._lease_keeper.stopped.wait(min(end - now, _PROGRESS_INTERVAL_S)):
                return

    def _send_progress(self, now: float) -> None:
        """Send a Progress and any new note; what a full channel drops is sent with the next one."""
        if self._note is not None and self._lease_keeper.send(Note(text=self._note)):
            self._note = None
        message = Progress(
            seconds=now - self._last_progress_at,
            max_quantum_s=self._longest,
            **self._done._asdict(),
        )
        if self._lease_keeper.send(message):
            self._last_progress_at = now
            self._done = _Tally()
            self._longest = 0.0
