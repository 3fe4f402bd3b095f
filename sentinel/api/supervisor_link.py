"""The channel to the supervisor, and the watch over processes whose end it must learn."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import os
import typing
from collections.abc import Callable, Mapping
from typing import Any

from sentinel.api.bodies import ProblemError
from sentinel.errors import WireError
from sentinel.host.procfs import read_stat
from sentinel.protocol.codec import MessageStream, decode
from sentinel.protocol.commands import (
    ApiMessage,
    Caller,
    Command,
    CommandReply,
    GrantKind,
    Refusal,
    ReloadConfig,
)
from sentinel.protocol.problem import Code
from sentinel.protocol.views import LogRecord, View

#: The time for a reply; the supervisor normally takes milliseconds.
REPLY_TIMEOUT_S = 5.0

SupervisorMessage = View | LogRecord | ReloadConfig
_KINDS: tuple[type[CommandReply | SupervisorMessage], ...] = (
    CommandReply,
    *typing.get_args(SupervisorMessage),
)

_CODES = {
    Refusal.NO_SUCH_GPU: Code.NO_SUCH_GPU,
    Refusal.NOT_FOUND: Code.NOT_FOUND,
    Refusal.INVALID: Code.INVALID,
    Refusal.CONFLICT: Code.CONFLICT,
    Refusal.FORBIDDEN: Code.FORBIDDEN,
    Refusal.ENDING: Code.ENDING,
}
#: What is bound to a process: the kind of a grant, or None for the burn-in; and its id.
Bound = tuple[GrantKind | None, str]


class SupervisorLink:
    """The channel, read by the running event loop.

    Args:
        channel: This process's end of the channel.
        on_message: Called with each message except replies, and with None after each batch.
        on_end: Called once, when the supervisor closes the channel or sends an invalid message.
    """

    def __init__(
        self,
        channel: MessageStream,
        on_message: Callable[[SupervisorMessage | None], None],
        on_end: Callable[[WireError | None], None],
    ) -> None:
        self._stream = channel
        self._on_message = on_message
        self._on_end = on_end
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[CommandReply]] = {}
        self._callbacks: dict[int, Callable[[CommandReply], None]] = {}
        self._unsent: collections.deque[ApiMessage] = collections.deque()
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(channel.channel, self._read)

    def send(self, message: ApiMessage) -> bool:
        """Send a message now; return False if the channel is full or closed.

        Raises:
            WireError: The message is too large.
        """
        try:
            return self._open and self._stream.send(message)
        except ConnectionError:
            return False
        finally:
            self._await_room()

    def post(self, command: Callable[..., Command], **fields: Any) -> None:
        """Send a command without waiting for its reply, as soon as the channel has room."""
        self._unsent.append(command(number=next(self._numbers), **fields))
        self._send_unsent()

    def _send_unsent(self) -> None:
        """Send the rest of a message, and posted commands, while there is room."""
        with contextlib.suppress(ConnectionError):
            self._stream.flush()
        while self._unsent and self.send(self._unsent[0]):
            self._unsent.popleft()
        self._await_room()

    def _await_room(self) -> None:
        """Let the loop call when the channel has room, as long as something waits for that."""
        if self._open and (self._stream.blocked or self._unsent):
            self._loop.add_writer(self._stream.channel, self._send_unsent)
        else:
            self._loop.remove_writer(self._stream.channel)

    def submit(
        self,
        on_reply: Callable[[CommandReply], None] | None,
        command: Callable[..., Command],
        **fields: Any,
    ) -> int:
        """Send a command now, and return its number.

        Args:
            on_reply: Called with the reply.
            command: The command's class.
            fields: The command's fields.

        Raises:
            ProblemError: The channel is full or closed, or the command is too large.
        """
        number = next(self._numbers)
        try:
            sent = self._open and self.send(command(number=number, **fields))
        except WireError as error:
            raise ProblemError(Code.TOO_LARGE, f"The request is too large: {error}") from None
        if not sent:
            detail = "The daemon does not accept commands at present."
            raise ProblemError(Code.UNAVAILABLE, detail)
        if on_reply is not None:
            self._callbacks[number] = on_reply
        return number

    async def request(
        self,
        command: Callable[..., Command],
        on_reply: Callable[[CommandReply], None] | None = None,
        /,
        **fields: Any,
    ) -> CommandReply:
        """Send a command and wait for its reply, which may be a refusal.

        Args:
            command: The command's class.
            on_reply: Called with the reply, also after this call has timed out.
            fields: The command's fields.

        Raises:
            ProblemError: There is no reply within REPLY_TIMEOUT_S, or the channel is full.
        """
        number = self.submit(on_reply, command, **fields)
        reply: asyncio.Future[CommandReply] = self._loop.create_future()
        self._waiting[number] = reply
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                return await reply
        except TimeoutError:
            detail = f"The daemon did not answer within {REPLY_TIMEOUT_S:g} s."
            raise ProblemError(Code.UNAVAILABLE, detail) from None
        finally:
            del self._waiting[number]

    async def execute(self, command: Callable[..., Command], **fields: Any) -> CommandReply:
        """Send a command and wait until the supervisor has accepted it.

        Raises:
            ProblemError: It was refused, or there is no reply.
        """
        return check_accepted(await self.request(command, **fields))

    def _read(self) -> None:
        """Read a batch of messages; the loop calls again if there are more."""
        try:
            for data in self._stream.receive():
                self._dispatch(decode(data, _KINDS))
        except WireError as error:
            self._close(error)
        if self._stream.ended:
            self._close(None)
        self._on_message(None)

    def _dispatch(self, message: CommandReply | SupervisorMessage) -> None:
        if not isinstance(message, CommandReply):
            self._on_message(message)
            return
        callback = self._callbacks.pop(message.number, None)
        if callback is not None:
            callback(message)
        waiting = self._waiting.get(message.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def _close(self, error: WireError | None) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._stream.channel)
        self._loop.remove_writer(self._stream.channel)
        for waiting in self._waiting.values():
            with contextlib.suppress(asyncio.InvalidStateError):
                waiting.set_exception(ProblemError(Code.UNAVAILABLE, "The daemon has ended."))
        self._on_end(error)


def check_accepted(reply: CommandReply) -> CommandReply:
    """Return a reply if it is not a refusal.

    Raises:
        ProblemError: It is a refusal.
    """
    if reply.refused is not None:
        raise ProblemError(_CODES[reply.refused], reply.text)
    return reply


class Broadcast:
    """Wakes all current waiters."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        #: There is nothing more to wait for.
        self.ended = False

    def end(self) -> None:
        """Wake all waiters for the last time."""
        self.ended = True
        self.wake()

    def wake(self) -> None:
        """Wake all current waiters."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Wait for the next :meth:`wake`, at most ``timeout_s`` seconds."""
        event = self._next
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_s)):
                await event.wait()


def is_alive(holder: Caller) -> bool:
    """Check whether the caller's process exists, and its PID is not another process's."""
    stat = read_stat(holder.pid) if holder.pid is not None else None
    return stat is not None and stat.alive and stat.started == holder.started


class ProcessWatch:
    """Watches the processes to which something is bound, by pidfd.

    Args:
        on_exit: Called with what is bound to a process that has ended; again at every
            :meth:`watch` while it is still bound.
    """

    def __init__(self, on_exit: Callable[[Bound], None]) -> None:
        self._on_exit = on_exit
        # By the process as well: an id may be in use again before this process learns of it.
        self._descriptors: dict[tuple[Bound, Caller], int] = {}
        self._loop = asyncio.get_running_loop()

    def watch(self, bound: Mapping[Bound, Caller]) -> None:
        """Watch exactly these processes, by what is bound to each."""
        wanted = set(bound.items())
        for stale in self._descriptors.keys() - wanted:
            self._remove(*stale)
        for what, holder in bound.items():
            if (what, holder) not in self._descriptors:
                self._add(what, holder)

    def _add(self, what: Bound, holder: Caller) -> None:
        """Watch one process; without a pidfd, each :meth:`watch` checks it."""
        descriptor = None
        with contextlib.suppress(OSError, ValueError):  # ended, or no descriptor is left
            descriptor = os.pidfd_open(holder.pid or 0)
        # Checked with the pidfd open: the PID cannot be reused in between.
        if not is_alive(holder):
            if descriptor is not None:
                os.close(descriptor)
            self._on_exit(what)
        elif descriptor is not None:
            self._descriptors[what, holder] = descriptor
            self._loop.add_reader(descriptor, self._exited, what, holder)

    def _exited(self, what: Bound, holder: Caller) -> None:
        self._remove(what, holder)
        self._on_exit(what)

    def _remove(self, what: Bound, holder: Caller) -> None:
        descriptor = self._descriptors.pop((what, holder))
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
