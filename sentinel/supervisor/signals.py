"""Signals as messages: a handler only enqueues, and the loop reads them like everything else."""

from __future__ import annotations

import contextlib
import signal
import socket
from types import FrameType, TracebackType
from typing import Any, Self

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Requests to end by SIGINT, SIGTERM and SIGHUP, while the ``with`` block lasts.

    The first asks for an orderly end; a second SIGINT for an immediate one. Only for the main
    thread.

    Args:
        detached: There is no terminal to close, so SIGHUP asks for a reload, as for any daemon; see
            :meth:`reload_requested`.
    """

    def __init__(self, *, detached: bool = False) -> None:
        self._detached = detached
        self._reload_requested = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._before_fd = -1
        self._interrupts = 0
        self.first: signal.Signals | None = None
        self.at_once = False

    def __enter__(self) -> Self:
        self._before_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in _ENDS:
            self._before[number] = signal.signal(number, _enqueued)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        self._reader.close()
        self._writer.close()

    def files(self) -> list[int]:
        """List the descriptors to wait for."""
        return [self._reader.fileno()]

    def collect(self) -> tuple[str | None, bool]:
        """Take the name of a signal since the last call, and whether to end at once."""
        numbers = b""
        with contextlib.suppress(BlockingIOError):
            numbers = self._reader.recv(4096)
        came = [signal.Signals(number) for number in numbers if number in _ENDS]
        if self._detached and signal.SIGHUP in came:
            self._reload_requested = True
            came = [number for number in came if number is not signal.SIGHUP]
        if not came:
            return None, False
        self.first = self.first or came[0]
        self._interrupts += came.count(signal.SIGINT)
        self.at_once = self._interrupts > 1
        return came[0].name, self.at_once

    def reload_requested(self) -> bool:
        """Check whether :meth:`collect` has taken a request to reload since the last call."""
        wanted, self._reload_requested = self._reload_requested, False
        return wanted


def _enqueued(number: int, frame: FrameType | None) -> None:
    """Do nothing: the interpreter has already written the number to the wake-up socket."""
