"""Our own processes as the supervisor sees them: the stressors, and the probe with its successors.

The only module that names the entry functions of either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sentinel.core.observation import ChildExit, ChildFacts
from sentinel.errors import WireError
from sentinel.protocol import codec
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import (
    Attaching,
    ChildMessage,
    Failed,
    FailureKind,
    Finding,
    FindingAck,
    Lease,
    MemoryContention,
    Note,
    Pace,
    Progress,
    Ready,
    SelftestDone,
    SelftestResult,
    Stop,
    StressorSpec,
)
from sentinel.stressor import main as stressor_process
from sentinel.supervisor.child_process import NOT_SPAWNED, Child, Inherited

#: Datagrams taken from one stressor in one tick. It has a handful to say in its life, a selftest
#: three dozen, and one a second besides; more at once is a flood, and must not keep the supervisor
#: from the others.
MOST_AT_ONCE = 64
_STRESSOR_SAYS: tuple[type[ChildMessage], ...] = (
    Attaching,
    MemoryContention,
    Ready,
    Progress,
    Note,
    Finding,
    SelftestResult,
    SelftestDone,
    Failed,
)


def _spawn_stressor(spec: StressorSpec, locks: Sequence[int]) -> Child:
    """Spawn a stressor, which shares ``locks``; it lives for a lease from now on.

    Raises:
        OSError: The host has no process, memory or file descriptor left.
    """
    environment = {
        "CUDA_VISIBLE_DEVICES": spec.gpu.uuid,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        # To kill a client of MPS may harm the other clients (NVIDIA's guide to MPS, on the end of
        # clients). Where no daemon is at the place that is named, a program runs without MPS
        # (nvidia-cuda-mps-control(1)).
        "CUDA_MPS_PIPE_DIRECTORY": "/proc/self/no-mps",
    }
    inherited = tuple(Inherited(fd) for fd in locks)
    child = Child(stressor_process.run, spec, (inherited,), environment)
    child.send(Lease())
    return child


@dataclass(kw_only=True)
class _Stressor:
    """One stressor child and the facts about it that were not collected yet."""

    generation: int
    child: Child | None
    facts: ChildFacts


class Stressors:
    """The stressor children, at most one on each GPU.

    Args:
        spec: Returns what a child on this GPU is told.
        locks: Returns the file descriptors of the GPU's locks, which the child shares.
    """

    def __init__(
        self, spec: Callable[[Gpu], StressorSpec], locks: Callable[[Gpu], Sequence[int]]
    ) -> None:
        self._spec = spec
        self._locks = locks
        self._all: dict[str, _Stressor] = {}

    def start(
        self, gpu: Gpu, generation: int, *, clearing: bool = False, committed: int = 0
    ) -> None:
        """Spawn a stressor on ``gpu``; a spawn that fails is an exit that :meth:`collect` tells."""
        self._kill_leftovers()
        spec = self._spec(gpu)
        spec = replace(spec, clearing=clearing, reserve=spec.reserve + committed)
        try:
            child = _spawn_stressor(spec, self._locks(gpu))
        except OSError as error:
            failed = Failed(kind=FailureKind.SPAWN, reason=f"it could not be spawned: {error}")
            exit_ = ChildExit(code=NOT_SPAWNED, at=time.monotonic())
            facts = ChildFacts(generation=generation, messages=(failed,), exit=exit_)
            self._all[gpu.uuid] = _Stressor(generation=generation, child=None, facts=facts)
            return
        facts = ChildFacts(generation=generation, child=child.identity)
        self._all[gpu.uuid] = _Stressor(generation=generation, child=child, facts=facts)

    def kill(self, uuid: str, generation: int) -> None:
        """Send SIGKILL to the child and everything in its group, and note when."""
        stressor = self._find(uuid, generation)
        if stressor is not None and stressor.child is not None:
            stressor.child.kill()
            stressor.facts = replace(stressor.facts, killed_at=time.monotonic())

    def ask(self, uuid: str, generation: int) -> None:
        """Ask the child to end."""
        stressor = self._find(uuid, generation)
        if stressor is not None and stressor.child is not None:
            stressor.child.send(Stop())

    def acknowledge(self, uuid: str, generation: int, number: int) -> None:
        """Tell the child that its finding of this number is known; it may be gone."""
        stressor = self._find(uuid, generation)
        if stressor is not None and stressor.child is not None:
            stressor.child.send(FindingAck(number=number))

    def pace(self, uuid: str, generation: int, share: float) -> None:
        """Tell the child to keep its GPU busy for this share of the time."""
        stressor = self._find(uuid, generation)
        if stressor is not None and stressor.child is not None:
            stressor.child.send(Pace(share=share))

    def renew(self) -> None:
        """Renew the lease of every child."""
        for stressor in self._all.values():
            if stressor.child is not None:
                stressor.child.send(Lease())

    def files(self) -> list[int]:
        """Return what to wait for."""
        return [
            file
            for stressor in self._all.values()
            if stressor.child is not None
            for file in stressor.child.files()
        ]

    def collect(self) -> dict[str, ChildFacts]:
        """Return what became known of each child since the last call; reap those that ended."""
        found = {}
        for uuid, stressor in list(self._all.items()):
            if stressor.child is not None:
                self._listen(stressor, stressor.child)
            facts, empty = stressor.facts, ChildFacts(generation=stressor.generation)
            if facts != empty:
                found[uuid] = facts
            stressor.facts = empty
            if facts.exit is not None:
                del self._all[uuid]
        return found

    def kill_all(self) -> None:
        """Kill every child at once; for an end that nothing can be decided about any more."""
        for stressor in self._all.values():
            if stressor.child is not None:
                stressor.child.kill()

    def _find(self, uuid: str, generation: int) -> _Stressor | None:
        stressor = self._all.get(uuid)
        return stressor if stressor and stressor.generation == generation else None

    def _kill_leftovers(self) -> None:
        """Kill what dead children left behind, while their zombies still keep their PIDs.

        Starting a process makes multiprocessing reap every child that has ended.
        """
        for stressor in self._all.values():
            if stressor.child is not None and stressor.child.ended():
                stressor.child.kill()

    def _listen(self, stressor: _Stressor, child: Child) -> None:
        """Take in what one child said, and its end. Its last words come before it."""
        ended = child.ended()
        data = child.receive(MOST_AT_ONCE)
        messages, garbage = _understand(data)
        if len(data) == MOST_AT_ONCE:
            garbage = f"it sent {MOST_AT_ONCE} messages at once"
        facts = stressor.facts
        stressor.facts = replace(
            facts, messages=(*facts.messages, *messages), garbage=facts.garbage or garbage
        )
        if ended:
            exit_ = ChildExit(code=child.reap(), at=time.monotonic())
            stressor.facts = replace(stressor.facts, exit=exit_, garbage=None)
            stressor.child = None


def _understand(data: list[bytes]) -> tuple[list[ChildMessage], str | None]:
    """Return the messages among the datagrams, and what is wrong with the first that is none."""
    messages: list[ChildMessage] = []
    garbage = None
    for datagram in data:
        try:
            messages.append(codec.decode(datagram, _STRESSOR_SAYS))
        except WireError as error:
            garbage = garbage or f"it sent garbage: {error.what}"
    return messages, garbage
