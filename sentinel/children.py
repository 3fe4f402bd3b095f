"""Our own processes: spawn, signal, listen, reap. Nothing in here blocks.

The only module that names the entry functions of the stressor and the probe. Exits are seen by
pidfd, because multiprocessing's own sentinel stays silent while a grandchild holds its pipe.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import reduction
from multiprocessing.context import SpawnProcess
from typing import Any

from sentinel import wire
from sentinel.board import Board
from sentinel.errors import WireError
from sentinel.gpu import probe as probe_process
from sentinel.messages import (
    Attaching,
    ChildMessage,
    Failed,
    FailureKind,
    Gpu,
    Inventory,
    Lease,
    ProbeSpec,
    Progress,
    Reading,
    Ready,
    Stop,
    StressorSpec,
    Unavailable,
    Watch,
)
from sentinel.model import Call, ChildExit, ChildFacts, OwnChild, ProbeFacts
from sentinel.procfs import read_stat
from sentinel.stressor import entry as stressor_process

__all__ = ["ProbeProcess", "Stressors"]

#: Datagrams taken from one stressor in one tick. It has a handful to say in its life and one a
#: second after that; more at once is a flood, and must not keep the supervisor from the others.
MOST_AT_ONCE = 32
#: Datagrams taken from the probe in one tick: a backlog of stale readings is drained at once.
MOST_READINGS = 4096
#: What a child that could not even be spawned is said to have exited with.
_NOT_SPAWNED = 71
_STRESSOR_SAYS: tuple[type[ChildMessage], ...] = (Attaching, Ready, Progress, Failed)


class _Inherited:
    """A file descriptor that a spawned child gets a duplicate of; ``detach()`` there returns it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _identity, (reduction.DupFd(self._fd),)


def _identity(value: object) -> object:
    return value


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Spawn with these variables: what a child imports first must already see them."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Child:
    """One spawned process with its pidfd and our end of its channel.

    Args:
        target: The entry function: takes ``first``, the channel, our PID and ``rest``.
        first: What it is told.
        rest: More arguments, picklable for a spawn.
        environment: Variables that it gets on top of ours.

    Raises:
        OSError: The host has no process, memory or file descriptor left.
    """

    def __init__(
        self,
        target: Callable[..., None],
        first: object,
        rest: Sequence[object],
        environment: Mapping[str, str],
    ) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        self._listening = True
        context = multiprocessing.get_context("spawn")
        arguments = (first, theirs, os.getpid(), *rest)
        self.process: SpawnProcess = context.Process(target=target, args=arguments)
        try:
            with _environment(environment):
                self.process.start()
            self.pid = self.process.pid or 0
            self.pidfd = os.pidfd_open(self.pid)
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        stat = read_stat(self.pid)
        self.identity = OwnChild(pid=self.pid, started=stat.started if stat else None)

    def files(self) -> list[int]:
        """Return what to wait for: its end, and its words while it can speak."""
        return [self.pidfd, self.channel.fileno()] if self._listening else [self.pidfd]

    def send(self, message: object) -> None:
        """Send a message; a child that does not read its messages loses them."""
        with contextlib.suppress(BlockingIOError, ConnectionError, BrokenPipeError):
            self.channel.send(wire.encode(message))

    def receive(self, most: int) -> tuple[list[bytes], bool]:
        """Return at most ``most`` datagrams, and whether the channel is still open."""
        found: list[bytes] = []
        while self._listening and len(found) < most:
            try:
                data = self.channel.recv(wire.MAX_DATAGRAM)
            except BlockingIOError:
                break
            except ConnectionResetError:
                # Said once when a child ended with words of ours unread; its own come after it.
                continue
            except ConnectionError:
                data = b""
            if not data:
                self._listening = False
                break
            found.append(data)
        return found, self._listening

    def kill(self) -> None:
        """Send SIGKILL to the child and to all of its session that is in its process group.

        Safe because it does nothing once the child is reaped, and until then the zombie keeps the
        number, so that it cannot be another's process or group.
        """
        if self._reaped():
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        # Before the child made its own group there is none of this number, and nobody is hit.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def ended(self) -> bool:
        """Return whether the child has exited; its zombie keeps the PID until it is reaped."""
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def _reaped(self) -> bool:
        """Return whether somebody took the zombie away: multiprocessing does when it spawns."""
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            os.waitid(os.P_PIDFD, self.pidfd, look)
        except ChildProcessError:
            return True
        return False

    def reap(self) -> int:
        """Kill what the dead child left behind in its group, and return its exit code."""
        self.kill()
        code = self.process.exitcode
        os.close(self.pidfd)
        self.channel.close()
        self.process.close()
        return code if code is not None else _NOT_SPAWNED


@dataclass(kw_only=True)
class _Stressor:
    """One stressor child and the facts about it that were not collected yet."""

    generation: int
    child: _Child | None
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

    def start(self, gpu: Gpu, generation: int) -> None:
        """Spawn a stressor on ``gpu``; a spawn that fails is an exit that :meth:`collect` tells."""
        self._kill_leftovers()
        environment = {
            "CUDA_VISIBLE_DEVICES": gpu.uuid,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        locks = tuple(_Inherited(fd) for fd in self._locks(gpu))
        try:
            child = _Child(stressor_process.run, self._spec(gpu), (locks,), environment)
        except OSError as error:
            failed = Failed(kind=FailureKind.SPAWN, reason=f"it could not be spawned: {error}")
            exit_ = ChildExit(code=_NOT_SPAWNED, at=time.monotonic())
            facts = ChildFacts(generation=generation, messages=(failed,), exit=exit_)
            self._all[gpu.uuid] = _Stressor(generation=generation, child=None, facts=facts)
            return
        facts = ChildFacts(generation=generation, child=child.identity)
        self._all[gpu.uuid] = _Stressor(generation=generation, child=child, facts=facts)
        child.send(Lease())

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

    def _listen(self, stressor: _Stressor, child: _Child) -> None:
        """Take in what one child said, and its end. Its last words come before it."""
        ended = child.ended()
        data, open_ = child.receive(MOST_AT_ONCE)
        messages, garbage = _understand(data)
        if len(data) == MOST_AT_ONCE:
            garbage = f"it sent {MOST_AT_ONCE} messages at once"
        elif not open_ and not ended:
            garbage = garbage or "it closed its channel"
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
        self._child: _Child | None = None
        self._generation = 0
        self._gpus: tuple[Gpu, ...] = ()
        self._board = Board.create()
        self._given_up: list[_Child] = []
        self._failure: ChildExit | None = None

    def start(self, generation: int, skip: tuple[str, ...]) -> None:
        """Spawn a probe, with a board of its own."""
        self._bury()
        self._generation = generation
        self._board.close()
        self._board = Board.create()
        spec = replace(self._spec, skip=skip)
        try:
            self._child = _Child(probe_process.run, spec, (_Inherited(self._board.fd),), {})
        except OSError:
            self._failure = ChildExit(code=_NOT_SPAWNED, at=time.monotonic())

    def kill(self, generation: int) -> None:
        """Kill the probe and forget it: one that hangs in the driver may never die."""
        if self._child is not None and generation == self._generation:
            self._child.kill()
            self._given_up.append(self._child)
            self._child = None

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
        data, _ = self._child.receive(MOST_READINGS)
        readings: dict[str, Reading] = {}
        facts = ProbeFacts(generation=self._generation, calls=self._calls())
        for datagram in data:
            # What cannot be understood is no reading: the GPU becomes UNKNOWN when the last is old.
            with contextlib.suppress(WireError):
                match wire.decode(datagram, (Reading, Inventory, Unavailable)):
                    case Reading() as reading:
                        readings[reading.uuid] = reading
                    case Inventory() as inventory:
                        self._gpus = inventory.gpus
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
        return tuple(
            Call(uuid=self._gpus[slot - 1].uuid if slot else None, name=name, since=since)
            for slot, name, since in self._board.outstanding()
            if slot <= len(self._gpus)
        )

    def _bury(self) -> None:
        """Reap the probes that were given up and have died since."""
        dead = [child for child in self._given_up if child.ended()]
        self._given_up = [child for child in self._given_up if child not in dead]
        for child in dead:
            child.reap()
