"""What a workload is given: memory, a pace and a place to report to. The whole public interface.

A workload is a function that takes a :class:`WorkloadContext` and goes round until it is told to
stop::

    def warm(ctx: WorkloadContext) -> None:
        while ctx.pace():
            ctx.chunks[0].bitwise_not_()
            ctx.report(bytes=2 * ctx.chunks[0].numel())
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sentinel.host.golden_store import Goldens
from sentinel.protocol.stressor import Finding, Note, Progress, Ready, SelftestDone, SelftestResult
from sentinel.stressor.contention import PREPARATION, Lookout
from sentinel.stressor.device import Device, Fence
from sentinel.stressor.duty_cycle import DutyCycle
from sentinel.stressor.lease import LeaseKeeper
from sentinel.stressor.memory import Filling, give_back_to_the_host

#: How much is kept of what a finding says in words.
_LONGEST_DETAIL = 1000

#: Progress is told this often, in seconds.
_PROGRESS_INTERVAL = 1.0

#: How many characters of a note are passed on.
_LONGEST_NOTE = 200


@dataclass
class _Tally:
    """Work that was reported and not yet told to the supervisor."""

    iterations: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    checks: int = 0
    errors: int = 0

    def add(self, other: _Tally) -> None:
        self.iterations += other.iterations
        self.flops += other.flops
        self.bytes += other.bytes
        self.checks += other.checks
        self.errors += other.errors


class WorkloadContext:
    """The GPU as one workload sees it.

    Everything a workload needs it takes, and every kind of work it does it does once, before its
    second call of :meth:`pace`. From then on no device memory may be taken: an allocation that
    torch's cache cannot serve raises ``torch.cuda.OutOfMemoryError``.

    Attributes:
        device: Where the chunks live: ``cuda:0``, or ``cpu`` where the GPU is pretended.
        chunks: The memory to work on, tensors of bytes, all of one size, with anything in them.
        quantum: How many seconds of work to queue between two calls of :meth:`pace`.
        share: How much of the device's memory the chunks are, from 0 to 1.
        goldens: What good GPUs compute, where such records are kept.
    """

    def __init__(
        self,
        *,
        device: Device,
        filling: Filling,
        lease_keeper: LeaseKeeper,
        lookout: Lookout | None = None,
        goldens: Goldens | None = None,
    ) -> None:
        self.device: torch.device = device.torch_device
        self.chunks: list[Tensor] = list(filling.chunks)
        self.quantum: float = device.quantum
        self.share: float = filling.held / device.total_memory()
        self.goldens = goldens
        self._device = device
        self._filling = filling
        self._lease_keeper = lease_keeper
        self._lookout = lookout
        self._entered = False
        self._ready = False
        self._in_flight: deque[tuple[Fence, float, _Tally]] = deque()
        self._began = 0.0
        self._longest = 0.0
        self._duty_cycle = DutyCycle(device.quantum)
        self._queued = _Tally()
        self._done = _Tally()
        self._told_at = 0.0
        self._iterations = 0
        self._findings = 0
        self._note: str | None = None

    @property
    def ready(self) -> bool:
        """Whether the body of the loop ran once and the device's memory is settled."""
        return self._ready

    @property
    def iterations(self) -> int:
        """How many iterations were reported, done or not."""
        return self._iterations

    def pace(self, rest: float = 0.0, *, before_rest: Callable[[], object] | None = None) -> bool:
        """Wait until the device has at most one quantum left to do; say whether to go on.

        The work queued since the last call, on torch's current stream, is counted as the next
        quantum, and the one before it is waited for, asleep: the device is never idle and never
        far behind. Where the supervisor wants the device to be busy for a share of the time only,
        this is where it rests: until it may work again, for ever where that share is 0.

        Args:
            rest: Seconds to pause besides; a stop ends the pause.
            before_rest: Called where the supervisor wants a rest, on a device that has done all
                that was queued: whoever looks at results looks here, since a rest may be long and
                end with the process.

        Returns:
            False once the workload is to return, at once and for ever.
        """
        if not (math.isfinite(rest) and rest >= 0):
            message = f"pace(rest={rest!r}): a rest is a number of seconds, 0 or more"
            raise ValueError(message)
        if self._lease_keeper.stopped.is_set():
            return False
        took = time.monotonic() - self._began if self._ready else 0.0
        self._in_flight.append((self._device.fence(), took, self._queued))
        self._queued = _Tally()
        if self._ready:
            self._settle(1)
            if self._falls_idle(rest) and before_rest is not None:
                before_rest()
        else:
            self._settle(0)
            if self._entered:
                self._become_ready()
            self._entered = True
        self._rest(rest)
        self._wait_for_turn()
        self._device.begin()
        self._began = time.monotonic()
        return not self._lease_keeper.stopped.is_set()

    def drain(self, *, rests: bool = True) -> bool:
        """Wait, asleep, until the device has done all that was queued; say whether to go on.

        For what is rare and needs an answer of the device. It counts as no call of :meth:`pace`,
        but it rests where the supervisor wants that, and tells of progress, so that many of them in
        a row do not pass for a hang.

        Args:
            rests: Whether it does rest; not where something wrong is still to be told.
        """
        self._settle(0)
        self._device.drain()
        self._done.add(self._queued)
        self._queued = _Tally()
        self._rest(0.0)
        if rests:
            self._duty_cycle.pause(time.monotonic())
            self._wait_for_turn()
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
        """Say what the work queued since the last call of pace amounts to; counted when it is done.

        Args:
            iterations: How often the workload's own unit of work was done.
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
        for name, value in vars(tally).items():
            if not (math.isfinite(value) and value >= 0):
                message = f"report({name}={value!r}): it must be finite and not negative"
                raise ValueError(message)
        self._queued.add(tally)
        self._iterations += tally.iterations

    def find(self, finding: Finding) -> None:
        """Report evidence of a fault of the GPU; returns once the supervisor has it.

        Besides, the error is to be counted by ``report(errors=...)``.

        Args:
            finding: Its ``number`` is put in here. Of a long ``detail`` the beginning is kept.

        Raises:
            TypeError: A number in it is no whole one: a tensor, say.
        """
        numbers = (finding.round, finding.count, *finding.first, *finding.bits)
        more = (finding.seed, finding.repeated, finding.repeats)
        for number in (*numbers, *(one for one in more if one is not None)):
            if type(number) is not int:
                message = f"find(): {number!r} in the finding is no whole number"
                raise TypeError(message)
        finding = replace(finding, detail=finding.detail[:_LONGEST_DETAIL])
        self._findings += 1
        self._lease_keeper.report(replace(finding, number=self._findings))
        self._device.begin()  # the supervisor took its time, and not the quantum
        self._began = time.monotonic()

    def tell(self, message: SelftestResult | SelftestDone) -> None:
        """Say how a selftest goes; a supervisor passes it over, who listens to it hears it."""
        self._lease_keeper.say(message)

    def note(self, text: str) -> None:
        """Say in a few words what the workload is at; told with the next progress.

        Args:
            text: One line for people, of which 200 characters are kept; it replaces the last.
        """
        self._note = " ".join(text.split())[:_LONGEST_NOTE]

    def measure(self, work: Callable[[], object]) -> float:
        """Return how many seconds the device takes for what ``work`` queues: the best of three.

        The first of all is not counted: kernels are loaded and clocks raised in it. Waits for the
        device, so it is for choosing sizes before the loop.
        """
        work()
        return min(self._device.seconds(work) for _ in range(3))

    def finish(self) -> None:
        """Wait for the work in flight and tell the supervisor the rest; after a workload ended."""
        self._in_flight.append((self._device.fence(), 0.0, self._queued))
        self._queued = _Tally()
        self._settle(0)
        if self._ready:
            self._tell(time.monotonic())

    def _settle(self, remaining: int) -> None:
        """Wait until at most ``remaining`` quanta are in flight, and count the others as done."""
        while len(self._in_flight) > remaining:
            fence, took, tally = self._in_flight.popleft()
            seconds = self._device.wait(fence)
            if self._ready:  # what was prepared before that may take as long as it likes
                self._longest = max(self._longest, seconds, took)
            self._done.add(tally)

    def _become_ready(self) -> None:
        if self._lookout is not None:
            self._lookout.check(PREPARATION)
        self._device.cap()
        give_back_to_the_host()
        filling = self._filling
        self._lease_keeper.say(
            Ready(
                held=filling.held,
                asked=filling.asked,
                chunks=len(filling.chunks),
                refused=filling.refused,
            )
        )
        self._told_at = time.monotonic()
        self._ready = True

    def _falls_idle(self, rest: float) -> bool:
        """Let the device fall idle where it is to rest now, and count how long it was busy."""
        self._duty_cycle.follow(self._lease_keeper.share, time.monotonic())
        rests = self._duty_cycle.is_spent(time.monotonic()) or (
            rest and self._duty_cycle.share < 1.0
        )
        if rests:
            self._settle(0)
            self._duty_cycle.pause(time.monotonic())
        return bool(rests)

    def _wait_for_turn(self) -> None:
        """Sleep until the device may be busy again; another pace or a stop is noticed at once."""
        if not self._ready:
            return
        while True:
            self._lease_keeper.repaced.clear()
            now = time.monotonic()
            self._duty_cycle.follow(self._lease_keeper.share, now)
            if now - self._told_at >= _PROGRESS_INTERVAL:
                self._tell(now)  # silence would pass for a hang
            wait = self._duty_cycle.wait(now)
            if wait <= 0.0 or self._lease_keeper.stopped.is_set():
                self._duty_cycle.resume(now)
                return
            self._lease_keeper.repaced.wait(min(wait, _PROGRESS_INTERVAL))

    def _rest(self, rest: float) -> None:
        """Pause, but tell of progress meanwhile: silence would pass for a hang."""
        end = time.monotonic() + rest
        while True:
            now = time.monotonic()
            if self._ready and now - self._told_at >= _PROGRESS_INTERVAL:
                self._tell(now)
            if now >= end or self._lease_keeper.stopped.wait(min(end - now, _PROGRESS_INTERVAL)):
                return

    def _tell(self, now: float) -> None:
        """Send a Progress, and a new note; what a full channel drops is told with the next one."""
        if self._note is not None and self._lease_keeper.say(Note(text=self._note)):
            self._note = None
        message = Progress(
            seconds=now - self._told_at, max_quantum_s=self._longest, **vars(self._done)
        )
        if self._lease_keeper.say(message):
            self._told_at = now
            self._done = _Tally()
            self._longest = 0.0
