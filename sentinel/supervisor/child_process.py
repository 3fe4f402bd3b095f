"""Child processes of the supervisor: spawn, messages, exit, SIGKILL to what they forked, reaping.

Nothing here blocks, but for ``close``. Exits are seen by pidfd, because multiprocessing's own
sentinel stays silent while a grandchild holds its pipe.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import socket
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for_files
from multiprocessing.context import SpawnProcess
from typing import Any, ClassVar, Generic, TypeVar

from sentinel.core.observation import ChildExit, OwnChild
from sentinel.errors import WireError
from sentinel.host.process_setup import SAFE_PATH, explain_exhaustion, group_signals_blocked
from sentinel.host.procfs import living_in_session, read_stat
from sentinel.host.trusted_code import check_search_path
from sentinel.protocol import codec

T = TypeVar("T")

#: The exit code reported for a child that could not be spawned (EX_OSERR).
NOT_SPAWNED = 71

#: Without it, a spawned interpreter searches the working directory before its own modules.
_SAFE_PATH = {} if sys.flags.safe_path else {SAFE_PATH: "1"}

#: How often the processes of a session are killed, which may fork meanwhile.
_SESSION_ROUNDS = 5

#: How long ``close`` waits for killed children, in seconds.
_KILL_TIMEOUT_S = 1.0


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Change variables during a spawn: the first imports of the child must already see them."""
    before = {name: os.environ.get(name) for name in changes}
    _change(changes)
    try:
        yield
    finally:
        _change(before)


@contextlib.contextmanager
def _standard_error(file: int | None) -> Iterator[None]:
    """Let a child inherit ``file`` as its standard error, if it is not None."""
    if file is None:
        yield
        return
    before = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _change(variables: Mapping[str, str | None]) -> None:
    """Set variables of this process, or remove those without a value."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _kill_of_session(pid: int, session: int) -> None:
    """Send SIGKILL to a process if it is of this session; its PID may be another's meanwhile."""
    with contextlib.suppress(OSError):  # it is gone or another user's, or no descriptor is left
        pidfd = os.pidfd_open(pid)
        try:
            stat = read_stat(pid)
            if stat is not None and stat.session == session:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


class Child:
    """One spawned process with its pidfd and the supervisor's end of its channel.

    Args:
        target: The entry function: takes ``spec``, the channel, this process's PID and ``rest``.
        spec: Its first argument, picklable for a spawn.
        rest: More arguments, picklable for a spawn.
        environment: Changes to the inherited variables; None removes one.
        output: The file that its output goes to; None for the standard error of this process.

    Raises:
        OSError: The host has no process, memory or file descriptor left.
        ConfigError: Root has it search a folder for modules that another user could change.
    """

    _unreaped: ClassVar[weakref.WeakSet[Child]] = weakref.WeakSet()
    #: Whether it runs code of a user, which may give what it starts a group of its own.
    runs_own_code = False
    #: The type of the channel's sockets.
    socket_type: ClassVar[socket.SocketKind] = socket.SOCK_SEQPACKET

    def __init__(
        self,
        target: Callable[..., None],
        spec: object,
        rest: Sequence[object],
        environment: Mapping[str, str | None],
        output: int | None = None,
    ) -> None:
        check_search_path()
        self._kill_leftovers()
        self.channel, child_end = socket.socketpair(socket.AF_UNIX, self.socket_type)
        self.channel.setblocking(False)
        self._channel_open = True
        context = multiprocessing.get_context("spawn")
        arguments = (spec, child_end, os.getpid(), *rest)
        self.process: SpawnProcess = context.Process(target=target, args=arguments)
        changes = {**environment, **_SAFE_PATH}
        try:
            with _environment(changes), _standard_error(output), group_signals_blocked():
                self.process.start()
            self.pid = self.process.pid or 0
            self.pidfd = os.pidfd_open(self.pid)
        except BaseException:
            self.channel.close()
            raise
        finally:
            child_end.close()
        self._exited = select.poll()
        self._exited.register(self.pidfd, select.POLLIN)
        self._unreaped.add(self)
        stat = read_stat(self.pid)
        self.identity = OwnChild(pid=self.pid, started=stat.started if stat else None)

    @classmethod
    def _kill_leftovers(cls) -> None:
        """Kill what exited children left in their groups, while zombies still keep their PIDs.

        Starting a process makes multiprocessing reap every child that has exited.
        """
        for child in list(cls._unreaped):
            if child.ended():
                child._kill_rest()  # noqa: SLF001 - of this class

    def files(self) -> list[int]:
        """List the descriptors to wait for: the pidfd, and the channel while it is open."""
        return [self.pidfd, self.channel.fileno()] if self._channel_open else [self.pidfd]

    def send(self, message: object, fds: Sequence[int] = ()) -> bool:
        """Send a message; return False if the channel is full, since a child may not read it.

        A message to a child that has exited counts as sent.

        Args:
            message: The message.
            fds: Descriptors of which the child gets duplicates.
        """
        data = codec.encode(message)
        try:
            if fds:
                socket.send_fds(self.channel, [data], fds)
            else:
                self.channel.send(data)
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        return True

    def add(self, message: object) -> bool:
        """Send a message with the next :meth:`flush`. A datagram goes at once."""
        return self.send(message)

    def flush(self) -> bool:
        """Send the rest of a message; return whether nothing is left. A datagram has no rest."""
        return True

    def receive(self, max_datagrams: int) -> list[bytes]:
        """Receive at most ``max_datagrams`` that are waiting.

        A closed channel is no exit: it closes a moment before the exit can be seen, and a living
        child that closed it gets no lease and reports no progress any more.
        """
        found: list[bytes] = []
        while self._channel_open and len(found) < max_datagrams:
            try:
                data = self.channel.recv(codec.MAX_DATAGRAM_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:
                # Raised once if a child exits with unread messages; its own come after it.
                continue
            except ConnectionError:
                data = b""
            if not data:
                self._channel_open = False
                break
            found.append(data)
        return found

    def kill(self) -> None:
        """Send SIGKILL to the child and to its process group.

        Does nothing once the child is reaped. Until then the zombie keeps the number, so that it
        cannot be the PID or group of another process.
        """
        if self._reaped():
            return
        self.kill_alone()
        # Before the child has made its group, no group of this number exists.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill_alone(self) -> None:
        """Send SIGKILL to the child; the kernel hangs its group up, and :meth:`reap` kills it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def ended(self) -> bool:
        """Check whether the child has exited; its zombie keeps the PID until it is reaped."""
        return bool(self._exited.poll(0))

    def _reaped(self) -> bool:
        """Check whether the zombie is gone: multiprocessing reaps it at the next spawn."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            os.waitid(os.P_PIDFD, self.pidfd, flags)
        except ChildProcessError:
            return True
        return False

    def _kill_rest(self) -> None:
        """Kill what the exited child left: in its group and, of own code, in its session."""
        self.kill()
        rounds = _SESSION_ROUNDS if self.runs_own_code and not self._reaped() else 0
        for _ in range(rounds):
            left = living_in_session(self.pid)
            for pid in left:
                _kill_of_session(pid, self.pid)
            if not left:
                break

    def reap(self) -> int:
        """Kill what the exited child left, and return its exit code."""
        self._kill_rest()
        self._unreaped.discard(self)
        code = self.process.exitcode
        os.close(self.pidfd)
        self.channel.close()
        self.process.close()
        return code if code is not None else NOT_SPAWNED


@dataclass(frozen=True, kw_only=True)
class Received(Generic[T]):
    """The messages and the exit of one child since the last ``collect``."""

    messages: tuple[T, ...] = ()
    #: The error of the first message that is not an expected one, or None.
    garbage: str | None = None
    #: The exit; it comes after the last messages.
    exit: ChildExit | None = None
    #: Why the child could not be spawned, or None.
    spawn_error: str | None = None

    @property
    def refused(self) -> str | None:
        """The sentence about a failed spawn, or None."""
        return self.spawn_error and f"it could not be spawned: {self.spawn_error}"

    @property
    def violation(self) -> str | None:
        """The sentence about an invalid message, or None."""
        return self.garbage and f"it sent garbage: {self.garbage}"


class ReplaceableProcess(Generic[T]):
    """A process that the supervisor replaces when it ends.

    Args:
        handle: The current child.
    """

    def __init__(self, handle: ChildHandle[T]) -> None:
        self._handle = handle

    def send(self, message: Any) -> object:
        """Send a message, if there is a process and room for it."""
        return self._handle.send(message)

    def kill(self, generation: int) -> None:
        """Kill the child of this number and forget it: one that hangs in the driver may not die."""
        if generation == self._handle.generation:
            self._handle.abandon()

    def abandon(self) -> None:
        """Kill the child and forget it."""
        self._handle.abandon()

    def files(self) -> list[int]:
        """List the descriptors to wait for."""
        return self._handle.files()

    def close(self) -> bool:
        """Kill the process; return whether every one is gone."""
        return self._handle.close()


class ChildHandle(Generic[T]):
    """A child and its replacements, at most one at a time.

    Args:
        target: The entry function, as for :class:`Child`.
        kinds: The messages that the child may send.
        max_messages: How many datagrams one ``collect`` takes; the rest waits for the next.
        environment: Changes to the inherited variables; None removes one.
        output: The file that its output goes to; None for the standard error of this process.
        make: Spawns a child; the default is :class:`Child`.

    Attributes:
        generation: The number of the current child, counted by the caller.
        child: The current child, or None.
    """

    def __init__(
        self,
        target: Callable[..., None],
        kinds: Iterable[type[T]],
        *,
        max_messages: int,
        environment: Mapping[str, str | None],
        output: int | None = None,
        make: Callable[..., Child] | None = None,
    ) -> None:
        self.generation = 0
        self._make = make
        self.child: Child | None = None
        self._target = target
        self._kinds = tuple(kinds)
        self._max_messages = max_messages
        self._environment = environment
        self._output = output
        self._abandoned: list[Child] = []
        self._spawn_error: str | None = None

    def start(self, generation: int, spec: object, *rest: object) -> None:
        """Spawn a child; a failed spawn is an exit that :meth:`collect` returns."""
        self._reap_abandoned()
        self.generation = generation
        try:
            make = self._make or Child
            self.child = make(self._target, spec, rest, self._environment, self._output)
        except OSError as error:
            self.refuse(generation, error)

    def refuse(self, generation: int, error: OSError) -> None:
        """Record that a child could not be spawned: an exit that :meth:`collect` returns."""
        self.generation = generation
        self._spawn_error = explain_exhaustion(error) or str(error)

    def adopt(self, other: ChildHandle[T], generation: int) -> None:
        """Take the child of another handle, which has none then; this one must have none."""
        self._reap_abandoned()
        self.generation = generation
        self.child, other.child = other.child, None

    def send(self, message: object, fds: Sequence[int] = ()) -> bool:
        """Send a message; return False if the channel is full. Does nothing without a child."""
        return self.child is None or self.child.send(message, fds)

    def kill(self) -> None:
        """Send SIGKILL to the child and its group; :meth:`collect` returns the exit."""
        if self.child is not None:
            self.child.kill()

    def kill_alone(self) -> None:
        """Send SIGKILL to the child, and to its group once it has exited."""
        if self.child is not None:
            self.child.kill_alone()

    def abandon(self) -> None:
        """Kill the child and forget it: one that hangs in the driver may never die."""
        if self.child is not None:
            self.child.kill()
            self._abandoned.append(self.child)
            self.child = None

    def all_gone(self) -> bool:
        """Check that no child is left, not even an abandoned one."""
        self._reap_abandoned()
        return self.child is None and not self._abandoned

    def files(self) -> list[int]:
        """List the descriptors to wait for."""
        return self.child.files() if self.child is not None else []

    def collect(self) -> Received[T] | None:
        """Receive messages and reap the child if it has exited; None if there is no child."""
        if self._spawn_error is not None:
            failed = ChildExit(code=NOT_SPAWNED, at=time.monotonic())
            received = Received[T](exit=failed, spawn_error=self._spawn_error)
            self._spawn_error = None
            return received
        child = self.child
        if child is None:
            return None
        ended = child.ended()  # before the last messages are received
        messages: list[T] = []
        garbage: str | None = None
        exit_: ChildExit | None = None
        try:
            waiting = child.receive(self._max_messages)
        except WireError as error:
            waiting, garbage = [], error.what
        for data in waiting:
            try:
                messages.append(codec.decode(data, self._kinds))
            except WireError as error:
                garbage = garbage or error.what
        if ended:
            exit_ = ChildExit(code=child.reap(), at=time.monotonic())
            self.child = None
        return Received(messages=tuple(messages), garbage=garbage, exit=exit_)

    def close(self, grace_s: float = 0.0) -> bool:
        """Close the channel, kill the child after ``grace_s``; return whether all are gone."""
        if self.child is not None and grace_s:
            with contextlib.suppress(OSError):
                self.child.channel.shutdown(socket.SHUT_RDWR)
            wait_for_files([self.child.pidfd], grace_s)
        self.abandon()
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while not self.all_gone() and (left_s := deadline - time.monotonic()) > 0:
            wait_for_files([child.pidfd for child in self._abandoned], left_s)
        for child in self._abandoned:  # no longer read; a busy machine may only need longer
            child.channel.close()
        return not self._abandoned

    def _reap_abandoned(self) -> None:
        for child in [child for child in self._abandoned if child.ended()]:
            child.reap()
            self._abandoned.remove(child)
