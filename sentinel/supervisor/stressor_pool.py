"""Our own processes as the supervisor sees them: the stressors, and the probe with its successors.

The only module that names the entry functions of either.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sentinel import wire
from sentinel.board import Board, gpu_of, places
from sentinel.core.observation import Call, ChildExit, ChildFacts, ProbeFacts
from sentinel.errors import WireError
from sentinel.gpu import probe as probe_process
from sentinel.messages import (
    Attaching,
    ChildMessage,
    Crowded,
    Failed,
    FailureKind,
    Finding,
    Gpu,
    Inventory,
    Known,
    Lease,
    Note,
    Pace,
    ProbeSpec,
    Progress,
    Proof,
    Proved,
    Reading,
    Ready,
    Stop,
    StressorSpec,
    Unavailable,
    Watch,
)
from sentinel.spawning import NOT_SPAWNED, Child, Inherited
from sentinel.stressor import entry as stressor_process

__all__ = ["ProbeProcess", "Stressors"]

#: Datagrams taken from one stressor in one tick. It has a handful to say in its life, a selftest
#: three dozen, and one a second besides; more at once is a flood, and must not keep the supervisor
#: from the others.
MOST_AT_ONCE = 64
#: Datagrams taken from the probe in one tick: a backlog of stale readings is drained at once.
MOST_READINGS = 4096
#: What the probe gets on top of our environment, to stay small: it formats nothing for people, so
#: that the host's table of all locales need not be in its memory, and one pool serves its threads.
_SMALL_PROBE = {"LC_ALL": "C", "MALLOC_ARENA_MAX": "1"}
_STRESSOR_SAYS: tuple[type[ChildMessage], ...] = (
    Attaching,
    Crowded,
    Ready,
    Progress,
    Note,
    Finding,
    Proof,
    Proved,
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
        self, gpu: Gpu, generation: int, *, clearing: bool = False, promised: int = 0
    ) -> None:
        """Spawn a stressor on ``gpu``; a spawn that fails is an exit that :meth:`collect` tells."""
        self._kill_leftovers()
        spec = self._spec(gpu)
        spec = replace(spec, clearing=clearing, reserve=spec.reserve + promised)
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
            stressor.child.send(Known(number=number))

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
            messages.append(wire.decode(datagram, _STRESSOR_SAYS))
        except WireError as error:
            garbage = garbage or f"it sent garbage: {error.what}"
    return messages, garbage


class ProbeProcess:
    """The process that reads the GPUs, and its replacements.

    Args:
        spec: What a probe is told; the GPUs to skip are put in.
    """

    def __init__(self, spec: ProbeSpec) -> None:
        self._spec = spec
        self._child: Child | None = None
        self._generation = 0
        self._places: tuple[str, ...] = ()
        self._board = Board.create()
        self._given_up: list[Child] = []
        self._failure: ChildExit | None = None

    def start(self, generation: int, skip: tuple[str, ...]) -> None:
        """Spawn a probe, with a board of its own."""
        self._bury()
        self._generation = generation
        self._board.close()
        self._board = Board.create()
        spec = replace(self._spec, skip=skip, known=self._places)
        try:
            self._child = Child(probe_process.run, spec, (Inherited(self._board.fd),), _SMALL_PROBE)
        except OSError:
            self._failure = ChildExit(code=NOT_SPAWNED, at=time.monotonic())

    def kill(self, generation: int) -> None:
        """Kill the probe and forget it: one that hangs in the driver may never die."""
        if self._child is not None and generation == self._generation:
            self._child.kill()
            self._given_up.append(self._child)
            self._child = None

    def gone(self) -> bool:
        """Return whether no probe of ours lives, not even one that was killed."""
        if self._given_up:
            self._bury()
        return self._child is None and not self._given_up

    def watch(self, what: Watch) -> None:
        """Tell the probe what to read."""
        if self._child is not None:
            self._child.send(what)

    def files(self) -> list[int]:
        """Return what to wait for."""
        return self._child.files() if self._child is not None else []

    def collect(self) -> tuple[ProbeFacts | None, dict[str, Reading]]:
        """Return what became known since the last call, and the newest reading of each GPU."""
        if self._failure is not None:
            facts = ProbeFacts(generation=self._generation, exit=self._failure)
            self._failure = None
            return facts, {}
        if self._child is None:
            return None, {}
        ended = self._child.ended()
        data = self._child.receive(MOST_READINGS)
        readings: dict[str, Reading] = {}
        facts = ProbeFacts(generation=self._generation, calls=self._calls())
        for datagram in data:
            # What cannot be understood is no reading: the GPU becomes UNKNOWN when the last is old.
            with contextlib.suppress(WireError):
                match wire.decode(datagram, (Reading, Inventory, Unavailable)):
                    case Reading() as reading:
                        readings[reading.uuid] = reading
                    case Inventory() as inventory:
                        self._places = places([g.uuid for g in inventory.gpus], self._places)
                        facts = replace(facts, inventory=inventory)
                    case Unavailable() as unavailable:
                        facts = replace(facts, unavailable=unavailable)
        if ended:
            exit_ = ChildExit(code=self._child.reap(), at=time.monotonic())
            facts = replace(facts, exit=exit_)
            self._child = None
        return facts, readings

    def close(self) -> bool:
        """Kill the probe; return whether every probe is gone or at least not stuck for ever."""
        if self._child is not None:
            self._child.kill()
            self._given_up.append(self._child)
            self._child = None
        waiting = [child.pidfd for child in self._given_up]
        until = time.monotonic() + 1.0
        while waiting and time.monotonic() < until:
            done, _, _ = select.select(waiting, [], [], until - time.monotonic())
            waiting = [pidfd for pidfd in waiting if pidfd not in done]
        self._bury()
        return not self._given_up

    def _calls(self) -> tuple[Call, ...]:
        """Return the calls that the probe announced and has not come back from."""
        calls = []
        for slot, name, since in self._board.outstanding():
            index = gpu_of(slot)
            if index is None:
                calls.append(Call(uuid=None, name=name, since=since))
            elif index < len(self._places):
                calls.append(Call(uuid=self._places[index], name=name, since=since))
        return tuple(calls)

    def _bury(self) -> None:
        """Reap the probes that were given up and have died since."""
        dead = [child for child in self._given_up if child.ended()]
        self._given_up = [child for child in self._given_up if child not in dead]
        for child in dead:
            child.reap()
