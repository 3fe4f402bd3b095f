"""The service's end of the channel to the supervisor: orders out, answers and views in."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import socket
import typing
from collections.abc import Callable
from typing import Any

from sentinel.api.http.errors import ProblemError
from sentinel.errors import WireError
from sentinel.protocol.api_types import Code
from sentinel.protocol.codec import MAX_DATAGRAM_BYTES, decode, encode
from sentinel.protocol.commands import Command, CommandReply, Refusal, ReloadConfig, ServiceMessage
from sentinel.protocol.views import GpuView, HostView, LogRecord

#: How long an answer may take, in seconds; the supervisor normally gives it within milliseconds.
ANSWERED_WITHIN = 5.0
#: Datagrams taken before clients have their turn again.
_MOST_AT_ONCE = 64

SupervisorMessage = HostView | GpuView | LogRecord | ReloadConfig
_KINDS: tuple[type[CommandReply | SupervisorMessage], ...] = typing.get_args(
    CommandReply | SupervisorMessage
)


class Channel:
    """The channel, read by the running event loop.

    Args:
        channel: A socket of whole messages; it is made non-blocking.
        hear: Takes what comes in, but for answers; ``None`` marks the end of what was there.
        ended: Called once when the other end is closed, or sent what is no message.
    """

    def __init__(
        self,
        channel: socket.socket,
        hear: Callable[[SupervisorMessage | None], None],
        ended: Callable[[WireError | None], None],
    ) -> None:
        channel.setblocking(False)
        self._socket = channel
        self._hear = hear
        self._ended = ended
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[CommandReply]] = {}
        self._listening: dict[int, Callable[[CommandReply], None]] = {}
        self._owed: collections.deque[ServiceMessage] = collections.deque()
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(channel, self._read)

    def send(self, message: ServiceMessage) -> bool:
        """Send a message at once; return whether there was room for it.

        Raises:
            WireError: It is too large.
        """
        try:
            self._socket.send(encode(message))
        except (BlockingIOError, ConnectionError):
            return False
        return True

    def tell(self, order: Callable[..., Command], **fields: Any) -> None:
        """Post an order whose answer nobody waits for, as soon as there is room for it."""
        self._owed.append(order(number=next(self._numbers), **fields))
        self._send_owed()

    def _send_owed(self) -> None:
        """Send what is owed, as far as there is room; the loop calls again when there is more."""
        while self._owed and self._open:
            if not self.send(self._owed[0]):
                self._loop.add_writer(self._socket, self._send_owed)
                return
            self._owed.popleft()
        self._loop.remove_writer(self._socket)

    async def ask(
        self,
        order: Callable[..., Command],
        heard: Callable[[CommandReply], None] | None = None,
        /,
        **fields: Any,
    ) -> CommandReply:
        """Post an order and return what came of it, a refusal too.

        Args:
            order: Its class.
            heard: Called with the answer whenever it comes, also when nobody waits any more.
            fields: What the order has.

        Raises:
            ProblemError: There is no answer within ANSWERED_WITHIN, or no room for the order.
        """
        number = next(self._numbers)
        answer: asyncio.Future[CommandReply] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            if not self._open or not self.send(order(number=number, **fields)):
                raise ProblemError(Code.UNAVAILABLE, "The daemon does not take orders at present.")
            if heard is not None:
                self._listening[number] = heard
            async with asyncio.timeout(ANSWERED_WITHIN):
                return await answer
        except TimeoutError:
            detail = f"The daemon did not answer within {ANSWERED_WITHIN:g} s."
            raise ProblemError(Code.UNAVAILABLE, detail) from None
        except WireError as error:
            raise ProblemError(Code.TOO_LARGE, f"This is too much for one order: {error}") from None
        finally:
            del self._waiting[number]

    async def order(self, order: Callable[..., Command], **fields: Any) -> CommandReply:
        """Post an order and return what came of it.

        Raises:
            ProblemError: It was refused, or there is no answer.
        """
        return accepted(await self.ask(order, **fields))

    def _read(self) -> None:
        """Take what is there; what is left makes the loop call again."""
        try:
            for _ in range(_MOST_AT_ONCE):
                data = self._socket.recv(MAX_DATAGRAM_BYTES)
                if not data:
                    self._close(None)
                    break
                self._take(decode(data, _KINDS))
        except BlockingIOError:
            pass
        except ConnectionError:
            self._close(None)
        except WireError as error:
            self._close(error)
        self._hear(None)

    def _take(self, message: CommandReply | SupervisorMessage) -> None:
        if not isinstance(message, CommandReply):
            self._hear(message)
            return
        heard = self._listening.pop(message.number, None)
        if heard is not None:
            heard(message)
        waiting = self._waiting.get(message.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def _close(self, error: WireError | None) -> None:
        self._open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        for waiting in self._waiting.values():
            with contextlib.suppress(asyncio.InvalidStateError):
                waiting.set_exception(ProblemError(Code.UNAVAILABLE, "The daemon has ended."))
        self._ended(error)


_CODES = {
    Refusal.NO_SUCH_GPU: Code.NO_SUCH_GPU,
    Refusal.NOT_FOUND: Code.NOT_FOUND,
    Refusal.INVALID: Code.INVALID,
    Refusal.CONFLICT: Code.CONFLICT,
    Refusal.ENDING: Code.ENDING,
}


def accepted(answer: CommandReply) -> CommandReply:
    """Return an answer that is no refusal.

    Raises:
        ProblemError: It is one.
    """
    if answer.refused is not None:
        raise ProblemError(_CODES[answer.refused], answer.text)
    return answer
