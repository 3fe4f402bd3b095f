"""The probe process and its replacements, as the supervisor sees them."""

from __future__ import annotations

import contextlib
import select
import time
from dataclasses import replace

from sentinel.core.observation import Call, ChildExit, ProbeFacts
from sentinel.errors import WireError
from sentinel.probe import main as probe_process
from sentinel.protocol import codec
from sentinel.protocol.gpu import Reading
from sentinel.protocol.inflight_calls import InflightCalls, gpu_of, places
from sentinel.protocol.probe import Inventory, ProbeSpec, Unavailable, Watch
from sentinel.supervisor.child_process import NOT_SPAWNED, Child, Inherited

#: Datagrams taken from the probe in one tick: a backlog of stale readings is drained at once.
MOST_READINGS = 4096
#: What the probe gets on top of our environment, to stay small: it formats nothing for people, so
#: that the host's table of all locales need not be in its memory, and one pool serves its threads.
_SMALL_PROBE = {"LC_ALL": "C", "MALLOC_ARENA_MAX": "1"}


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
        self._inflight_calls = InflightCalls.create()
        self._given_up: list[Child] = []
        self._failure: ChildExit | None = None

    def start(self, generation: int, skip: tuple[str, ...]) -> None:
        """Spawn a probe, with a board of its own."""
        self._bury()
        self._generation = generation
        self._inflight_calls.close()
        self._inflight_calls = InflightCalls.create()
        spec = replace(self._spec, skip=skip, known=self._places)
        try:
            self._child = Child(
                probe_process.run, spec, (Inherited(self._inflight_calls.fd),), _SMALL_PROBE
            )
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
                match codec.decode(datagram, (Reading, Inventory, Unavailable)):
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
        for slot, name, since in self._inflight_calls.outstanding():
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
