"""One spawned process: its pidfd, our end of its channel, and the way to end all of it.

Nothing in here blocks. Exits are seen by pidfd, because multiprocessing's own sentinel stays silent
while a grandchild holds its pipe.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.context import SpawnProcess
from typing import Any

from sentinel.core.identity import OwnChild
from sentinel.host.procfs import read_stat
from sentinel.protocol import codec

#: What a child that could not even be spawned is said to have exited with (EX_OSERR).
NOT_SPAWNED = 71


class Inherited:
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


class Child:
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

    def send(self, message: object) -> bool:
        """Send a message; return whether there was room for it: a child may not read its messages.

        To one that is gone everything counts as sent.
        """
        try:
            self.channel.send(codec.encode(message))
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        return True

    def receive(self, most: int) -> list[bytes]:
        """Return at most ``most`` datagrams that are there.

        A closed channel says nothing: it closes a moment before an exit can be seen, and a living
        child that closed it gets no lease and reports no progress any more.
        """
        found: list[bytes] = []
        while self._listening and len(found) < most:
            try:
                data = self.channel.recv(codec.MAX_DATAGRAM_BYTES)
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
        return found

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
        return code if code is not None else NOT_SPAWNED
