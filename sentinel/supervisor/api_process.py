"""The API process and its replacements: commands in; views, replies and log records out."""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sentinel.api import main as api_main
from sentinel.core.observation import ApiFacts
from sentinel.errors import WireError
from sentinel.host.process_setup import Inherited
from sentinel.protocol.codec import MessageStream
from sentinel.protocol.commands import (
    API_MESSAGES,
    ApiHeartbeat,
    ApiMessage,
    ApiSpec,
    CommandReply,
    Configure,
    ReloadConfig,
    ServiceFailed,
    ServiceWarning,
)
from sentinel.protocol.views import GpuView, HostView, LogRecord, View
from sentinel.supervisor.child_process import Child, ChildHandle, ReplaceableProcess

#: How many messages may wait for the process to read: the newest of each view, and replies. It is
#: replaced beyond that.
_MAX_PENDING = 1024

#: How many log records are kept for an API process that has yet to start, or does not read.
_MAX_PENDING_RECORDS = 256

#: How long an API process may take to finish open requests and exit, in seconds.
_GRACE_S = 1.5

#: Keeps the process small: one malloc arena serves all its threads.
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}


class ApiChild(Child):
    """A child with a stream as its channel: views and settings are larger than datagrams."""

    socket_type = socket.SOCK_STREAM
    #: Whether the loop is to wake up when there is room.
    _waits = False

    @cached_property
    def _stream(self) -> MessageStream:
        return MessageStream(self.channel)

    @cached_property
    def _room(self) -> select.epoll:
        """Readable when the channel has room for the rest of a message; another thread may wait."""
        room = select.epoll()
        room.register(self.channel, 0)
        return room

    def files(self) -> list[int]:
        """List the descriptors to wait for: the pidfd, and the channel's while that is open."""
        own = [] if self._stream.ended else [self.channel.fileno(), self._room.fileno()]
        return [self.pidfd, *own]

    def send(self, message: object, fds: Sequence[int] = ()) -> bool:  # noqa: ARG002 - takes none
        """Send a message or begin it; return False if an earlier one still has to be completed."""
        return self._sent(lambda: self._stream.send(message))

    def add(self, message: object) -> bool:
        """Take a message for the next flush; the rest as :meth:`send`."""
        return self._sent(lambda: self._stream.add(message))

    def flush(self) -> bool:
        """Send the rest of a message; return whether nothing is left."""
        return self._sent(self._stream.flush)

    def _sent(self, send: Callable[[], bool]) -> bool:
        """Send, and have the loop wake up when there is room for the rest."""
        try:
            return send()
        except OSError:  # a message to a child that has exited counts as sent
            return True
        finally:
            if self._stream.blocked != self._waits:
                self._waits = not self._waits
                with contextlib.suppress(ValueError):  # reaped meanwhile, while another thread sent
                    self._room.modify(self.channel, select.EPOLLOUT if self._waits else 0)

    def receive(self, max_datagrams: int) -> list[bytes]:  # noqa: ARG002 - the kernel bounds it
        """Receive all that is waiting."""
        return [] if self._stream.ended else self._stream.receive()

    def reap(self) -> int:
        """Kill what the exited child left in its group, and return its exit code."""
        if "_room" in vars(self):  # made by the first wait for it
            self._room.close()
        return super().reap()


class ApiProcess(ReplaceableProcess[ApiMessage]):
    """The process that serves clients, and its replacements.

    Args:
        spec: The specification of the first process.
        listening: The descriptor of the Unix socket. It outlives each process, so that clients are
            not refused while one is replaced.
        tcp: The descriptor of the TCP socket, or None.
        metrics: The descriptor of the TCP socket for metrics alone, or None.

    Attributes:
        state_folder: The folder for what outlives the daemon.
    """

    def __init__(
        self,
        spec: ApiSpec,
        listening: int,
        tcp: int | None = None,
        metrics: int | None = None,
    ) -> None:
        super().__init__(
            ChildHandle(
                api_main.run,
                API_MESSAGES,
                max_messages=0,
                environment=_ENVIRONMENT,
                make=ApiChild,
            )
        )
        self.state_folder = Path(spec.state)
        #: A detached daemon has no terminal: only the API controls it.
        self.required = spec.log is not None
        self._spec = spec
        self._sockets = [None if fd is None else Inherited(fd) for fd in (listening, tcp, metrics)]
        #: Guards what follows: records are sent from another thread, after the views before them.
        self._lock = threading.Lock()
        #: Messages that found the channel full, by what a newer one replaces.
        self._pending: dict[tuple[str, object], CommandReply | View | ReloadConfig] = {}
        self._blocked = False
        self._has_state = False
        self._records_written = 0
        #: Log records not sent yet; the oldest are dropped.
        self._pending_records: collections.deque[LogRecord] = collections.deque(
            maxlen=_MAX_PENDING_RECORDS
        )
        self._configure: Configure | None = None
        #: The messages that were too large for the channel when they were last sent.
        self._too_large: set[tuple[str, object]] = set()
        self._warnings: list[ServiceWarning] = []

    def start(self, generation: int, excluded: tuple[str, ...] = ()) -> None:  # noqa: ARG002
        """Spawn an API process; :meth:`collect` reports a failed spawn as an exit."""
        with self._lock:
            self._pending.clear()
            self._blocked = self._has_state = False
        self._handle.start(generation, self._spec, *self._sockets)

    def send(self, message: CommandReply | View | ReloadConfig) -> None:
        """Send a message, or keep it until the channel has room: every command gets its result.

        The order is kept, since a client that has a result reads the views that came before it. Of
        each view only the newest is kept.
        """
        if isinstance(message, CommandReply) and self._configure is not None:
            self._update_spec(self._configure, message)
        self.send_views([message])

    def send_views(self, views: Sequence[CommandReply | View | ReloadConfig]) -> None:
        """Send several messages like one, so that the process wakes up once."""
        with self._lock:
            self._pending |= {_key(message): message for message in views}
            self._send_pending()

    def publish(self, event: Mapping[str, Any]) -> None:
        """Send an event of the log, from the writer's thread; a gap in the numbers shows a loss."""
        with self._lock:
            self._records_written += 1
            self._pending_records.append(LogRecord(number=self._records_written, event=event))
            self._send_records()

    def _send_records(self) -> None:
        """Send pending log records; they wait for the first views and for pending messages.

        A client that has an event reads a state that includes it, so no event passes its views.
        """
        child = self._handle.child
        if child is None or not self._has_state or self._blocked or not self._pending_records:
            return
        while self._pending_records and self._send(child, self._pending_records[0]):
            self._pending_records.popleft()
        child.flush()

    def collect(self) -> ApiFacts | None:
        """Collect the new facts about the process; None if there is none."""
        with self._lock:
            self._send_pending()
            self._send_records()
        received = self._handle.collect()
        if received is None:
            return None
        garbage = received.violation
        if len(self._pending) > _MAX_PENDING:
            garbage = f"it does not read: {len(self._pending)} messages wait"
        facts = ApiFacts(
            generation=self._handle.generation,
            exit=received.exit,
            garbage=garbage,
            failed=received.refused,
        )
        with self._lock:
            facts, self._warnings = replace(facts, warnings=tuple(self._warnings)), []
        for message in received.messages:
            match message:
                case ApiHeartbeat():
                    facts = replace(facts, works=True)
                case ServiceFailed(reason=reason):
                    facts = replace(facts, failed=reason)
                case ServiceWarning():
                    facts = replace(facts, warnings=(*facts.warnings, message))
                case _:
                    if isinstance(message, Configure):
                        self._configure = message
                    facts = replace(facts, commands=(*facts.commands, message))
        return facts

    def close(self) -> bool:
        """End the process; return whether every API process is gone.

        It has a grace period after its channel closes: the client that asked for the shutdown still
        waits for its reply.
        """
        return self._handle.close(_GRACE_S)

    def _send_pending(self) -> None:
        """Send pending messages while the channel has room; drop them if there is no process."""
        child = self._handle.child
        while self._pending:
            key, message = next(iter(self._pending.items()))
            if child is not None and not self._send(child, message):
                self._blocked = True  # although there may be room by now: nothing passes these
                return
            del self._pending[key]
            self._has_state = self._has_state or isinstance(message, HostView)
        self._blocked = child is not None and not child.flush()

    def _update_spec(self, configure: Configure, answer: CommandReply) -> None:
        """Keep settings that were accepted: a replacement shows these, not those in the file."""
        if answer.number == configure.number:
            self._configure = None
            if answer.refused is None:
                self._spec = replace(self._spec, given=configure.given)

    def _send(self, child: Child, message: CommandReply | View | ReloadConfig | LogRecord) -> bool:
        """Send a message; return False only if the channel is full and a retry makes sense.

        One that is too large is dropped with a warning.
        """
        key = _key(message)
        try:
            sent = child.add(message)
        except WireError as error:
            if key not in self._too_large:
                text = f"clients do not see a part of the state: {error.what}"
                self._warnings.append(ServiceWarning(about="channel", text=text))
            self._too_large.add(key)
            return True
        self._too_large.discard(key)
        return sent


def _key(message: CommandReply | View | ReloadConfig | LogRecord) -> tuple[str, object]:
    """Compute the key of a message; a newer message replaces a pending one with the same key."""
    match message:
        case CommandReply(number=number):
            return "answer", number
        case GpuView(uuid=uuid):
            return "gpu", uuid
        case _:
            return type(message).__name__, None
