"""What the routes work with: what was shown, what was said, and the way to the supervisor."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from sentinel.api.history.writer import NAME as HISTORY
from sentinel.api.history.writer import History
from sentinel.api.http.errors import ProblemError
from sentinel.api.metrics.counters import Counting
from sentinel.api.metrics.exposition import MetricsPage
from sentinel.api.state.change_feed import Watch
from sentinel.api.state.event_buffer import EventBuffer
from sentinel.api.state.process_watch import Holders
from sentinel.api.state.reservation_writer import Records
from sentinel.api.state.settings_reload import Settings
from sentinel.api.state.snapshots import Views
from sentinel.api.state.supervisor_link import Channel, SupervisorMessage
from sentinel.errors import SentinelError, WireError
from sentinel.host.reservation_store import NAME
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import (
    CommandReply,
    Configure,
    Deallocate,
    ReloadConfig,
    ServiceSpec,
    ServiceWarning,
    ShutDown,
    Unreserve,
)
from sentinel.protocol.views import Allocation, GpuView, HostView, LogRecord

#: The longest trouble that is told, in characters: it must fit into a datagram.
_MOST_TOLD = 4000
#: Who asks where nobody does: the service itself.
_OURSELVES = Caller(via="service")


class ApiContext:
    """Everything that one service has.

    Args:
        spec: What it serves, and where.
        channel: Its end of the channel to the supervisor.
        ended: Called once when the supervisor has closed the channel, or sent what is no message.
    """

    def __init__(
        self,
        spec: ServiceSpec,
        channel: socket.socket,
        ended: Callable[[WireError | None], None],
    ) -> None:
        self.spec = spec
        self.views = Views()
        self.event_buffer = EventBuffer(str(round(spec.began * 1e6)))
        self.counting = Counting()
        self.metrics = MetricsPage(spec, self.views, self.counting)
        self.watch = Watch(spec, self.views, self.event_buffer, self._cannot_show)
        self.settings = Settings(spec, os.environ)
        self.reconfiguring = asyncio.Lock()
        self.records = Records(Path(spec.state) / NAME, self._cannot_store)
        #: The ids of the memory that clients wait for, who were not told of it yet.
        self.promising: Counter[str] = Counter()
        self.history = History(Path(spec.state) / HISTORY, spec.history, self._cannot_keep)
        self._holders = Holders(self._release)
        self._guests = Holders(self._give_back)
        self._said_ended = ended
        self._tasks: set[asyncio.Task[None]] = set()
        self.channel = Channel(channel, self._hear, self._end)

    def report_warning(self, about: str, text: str) -> None:
        """Have it said in the journal that something went wrong."""
        self.channel.send(ServiceWarning(about=about, text=text[:_MOST_TOLD]))

    def give_up(self, why: str) -> None:
        """Have the daemon end, and say why."""
        self.report_warning("socket", why)
        self.channel.tell(ShutDown, by=_OURSELVES)

    async def configure(self, by: Caller, flags: Mapping[str, str]) -> CommandReply:
        """Read the settings anew, with these flags, and post them; return what came of it.

        Who calls it holds ``reconfiguring``.

        Raises:
            ConfigError: They are wrong; nothing has changed.
            ProblemError: The supervisor does not answer. What it takes over later is shown then.
        """
        new = await self.settings.gather(flags)

        def heard(answer: CommandReply) -> None:
            if answer.refused is None:
                self.settings.take(new)

        return await self.channel.ask(
            Configure, heard, by=by, given=new.given, overrides=new.overrides
        )

    def _hear(self, message: SupervisorMessage | None) -> None:
        match message:
            case HostView(reservations=reservations, allocations=allocations):
                self.views.take(message)
                # What no client was told of ends with this service, so it is not for the next one.
                self.records.want(tuple(held for held in reservations if held.confirmed))
                self._holders.watch({held.id: held.by for held in reservations if held.bound})
                self._watch_memory(allocations)
            case GpuView():
                self.views.take(message)
                self.counting.see(message)
                self.history.see(message)
            case LogRecord():
                self.event_buffer.add(message)
                self.counting.hear(message)
                self.history.see(message)
            case ReloadConfig():
                task = asyncio.create_task(self._reread())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case None:
                self.views.announce()
                self.event_buffer.announce()
                self.watch.announce()

    def _end(self, error: WireError | None) -> None:
        self.views.end()
        self.event_buffer.end()
        self.watch.end()
        self._said_ended(error)

    def _release(self, name: str) -> None:
        self.channel.tell(Unreserve, by=_OURSELVES, id=name)

    def _give_back(self, name: str) -> None:
        self.channel.tell(Deallocate, by=_OURSELVES, id=name)

    def _watch_memory(self, allocations: tuple[Allocation, ...]) -> None:
        """End what was promised to processes that are gone, or to clients that never heard of it.

        A client may leave while nobody knows yet whether its order was carried out, and then it
        cannot be undone by its id alone, which may be another one's.
        """
        told = [one for one in allocations if one.confirmed or one.id in self.promising]
        self._guests.watch({one.id: one.by for one in told if one.by.started is not None})
        for one in allocations:
            if one not in told:
                self._give_back(one.id)

    def _cannot_store(self, text: str) -> None:
        self.report_warning(
            "reservations", f"{text}; a new daemon will not know of what is reserved now"
        )

    def _cannot_show(self, text: str) -> None:
        self.report_warning("watch", text)

    def _cannot_keep(self, text: str) -> None:
        self.report_warning("history", text)

    async def _reread(self) -> None:
        """Read the settings anew since the supervisor was asked to; say what is wrong with them."""
        try:
            async with self.reconfiguring:
                answer = await self.configure(Caller(via="signal"), self.settings.flags)
        except (SentinelError, ProblemError) as error:
            self.report_warning("settings", str(error))
            return
        if answer.refused is not None:
            self.report_warning("settings", answer.text)
