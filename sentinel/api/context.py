"""What the routes share: the state, the caller, their problems, and cancelled requests."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from sentinel.api.access import Peer
from sentinel.api.bodies import MEDIA_TYPE, PROBLEM_REFERENCE, ProblemError
from sentinel.api.counters import Counters
from sentinel.api.event_streams import ChangeFeed, EventBuffer, LoggedEvent
from sentinel.api.grants import Grants
from sentinel.api.history import FILE_NAME as HISTORY_FILE
from sentinel.api.history import History
from sentinel.api.metrics_page import MetricsPage
from sentinel.api.notifier import ABOUT as NOTIFY_ABOUT
from sentinel.api.notifier import Notifier
from sentinel.api.settings import DaemonSettings
from sentinel.api.snapshots import Views
from sentinel.api.stores import BurninVerdicts, StoreWriter, VerifiedTotal
from sentinel.api.supervisor_link import Bound, ProcessWatch, SupervisorLink, SupervisorMessage
from sentinel.errors import SentinelError, WireError
from sentinel.host import verified_store
from sentinel.host.paths import shared_folder
from sentinel.host.timed_file import FAULTS, RESERVATIONS, SESSIONS
from sentinel.protocol.api_types import Outcome
from sentinel.protocol.codec import MessageStream
from sentinel.protocol.commands import (
    ApiSpec,
    Caller,
    CancelBurnin,
    CancelGrant,
    Command,
    Level,
    ReloadConfig,
    ServiceWarning,
    StopDaemon,
)
from sentinel.protocol.problem import Code
from sentinel.protocol.views import GpuView, HostView, LogRecord, SessionsView

T = TypeVar("T")

#: The caller of commands without a client.
THIS_PROCESS = Caller(via="sentinel", level=Level.OWN)
#: The caller of a reload by SIGHUP, which only the daemon's own user and root can send.
_SIGNAL = Caller(via="signal", level=Level.OWN)

#: Problems of every route.
_COMMON = (
    Code.UNAUTHORIZED,
    Code.FORBIDDEN,
    Code.INVALID,
    Code.TOO_LARGE,
    Code.INTERNAL,
    Code.UNAVAILABLE,
)
_DESCRIPTIONS = {
    401: "Over TCP: the token is missing or wrong.",
    403: "This user or token may not do this, or this name of the host has no access.",
    404: "The GPU or the id does not exist.",
    409: "The request conflicts with another user's.",
    413: "The request is too large.",
    422: "A part of the request is invalid.",
    500: "The API process failed.",
    503: "The daemon does not answer or is ending, or there are too many connections.",
    504: "The command did not complete in the given time.",
}


class ApiContext:
    """Everything that the routes share.

    Args:
        spec: The specification of this process.
        channel: This process's end of the channel to the supervisor.
        on_end: Called once, when the supervisor closes the channel or sends an invalid message.
    """

    def __init__(
        self,
        spec: ApiSpec,
        channel: MessageStream,
        on_end: Callable[[WireError | None], None],
    ) -> None:
        self.spec = spec
        self.views = Views(spec.held_elsewhere)
        self.event_buffer = EventBuffer(str(round(spec.began * 1e6)))
        self.counters = Counters()
        self.metrics = MetricsPage(spec, self.views, self.counters)
        self.change_feed = ChangeFeed(
            spec, self.views, self.event_buffer, partial(self.report_warning, "watch")
        )
        self.supervisor = SupervisorLink(channel, self._receive, self._end)
        self.settings = DaemonSettings(spec, self.views, self.supervisor)
        state = Path(spec.state)
        shared = shared_folder(state)
        self.reservation_writer = StoreWriter(RESERVATIONS, state, self.report_warning)
        self.session_writer = StoreWriter(SESSIONS, state, self.report_warning)
        self.fault_writer = StoreWriter(FAULTS, state, self.report_warning)
        self.writers: Sequence[StoreWriter[Any]] = (
            self.reservation_writer,
            self.session_writer,
            self.fault_writer,
        )
        self.history = History(
            state / HISTORY_FILE, spec.history, partial(self.report_warning, "history")
        )
        self.verified = VerifiedTotal(
            shared / verified_store.NAME, spec.began, partial(self.report_warning, "verified")
        )
        self.views.verified, self.views.stored = self.verified.gpus, self.verified.stored
        self.views.forgotten = lambda: self.verified.forgotten
        self.notifier = Notifier(
            spec.notify, self.views.select, partial(self.report_warning, NOTIFY_ABOUT)
        )
        self.counters.notifications = {
            recipient.name: recipient.results for recipient in self.notifier.recipients
        }
        self.verdicts = BurninVerdicts(shared)
        self.views.verdicts = self.verdicts.gpus
        self.grants = Grants(self.views, self.supervisor, self.reservation_writer)
        self._watch = ProcessWatch(self._cancel)
        self._on_end = on_end
        self._tasks: set[asyncio.Task[None]] = set()

    def report_warning(self, about: str, text: str) -> None:
        """Log a warning of this process."""
        self.supervisor.send(ServiceWarning(about=about, text=text))

    def stop_daemon(self, reason: str) -> None:
        """End the daemon because of an error."""
        self.report_warning("socket", reason)
        self.supervisor.post(StopDaemon, by=THIS_PROCESS)

    async def run_command(self, command: Callable[..., Command], **fields: Any) -> Outcome:
        """Send a command, and return its result when the supervisor has accepted it.

        Raises:
            ProblemError: It was refused, or there is no reply.
        """
        reply = await self.supervisor.execute(command, **fields)
        return Outcome(text=reply.text, gpus=reply.gpus)

    def _receive(self, message: SupervisorMessage | None) -> None:
        match message:
            case HostView():
                self.views.update(message)
                self.fault_writer.update(message.known_faults)
                self.grants.update()
                self._watch.watch(_bound(message))
            case GpuView():
                self.verified.update(message)
                self.views.update(message)
                self.counters.count_view(message)
                self.history.add(message)
            case SessionsView(sessions=sessions):
                self.views.update(message)
                self.session_writer.update(sessions)
            case LogRecord():
                event = LoggedEvent.of(message)
                self.event_buffer.add(event)
                self.counters.count_event(event)
                self.history.add(event)
                self.notifier.add(event)
            case ReloadConfig():
                task = asyncio.create_task(self._reload())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case None:
                self.views.announce()
                self.event_buffer.announce()
                self.change_feed.announce()

    def _end(self, error: WireError | None) -> None:
        self.views.end()
        self.event_buffer.end()
        self.change_feed.end()
        self._on_end(error)

    def _cancel(self, bound: Bound) -> None:
        kind, id_ = bound
        end = CancelBurnin if kind is None else partial(CancelGrant, kind=kind)
        self.supervisor.post(end, by=THIS_PROCESS, id=id_)

    async def _reload(self) -> None:
        """Reread the settings by the supervisor's request; log what is wrong with them."""
        try:
            await self.settings.change(_SIGNAL, {})
        except (SentinelError, ProblemError) as error:
            self.report_warning("settings", str(error))


def _bound(host: HostView) -> dict[Bound, Caller]:
    """List what ends with a process."""
    bound: dict[Bound, Caller] = {
        (grant.kind, grant.id): grant.by for grant in host.grants if grant.bound
    }
    if host.burnin is not None and host.burnin.bound:
        bound[None, host.burnin.id] = host.burnin.by
    return bound


# --- what routes share -----------------------------------------------------------------------


async def _context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


async def _caller(request: Request) -> Caller:
    peer: Peer = request.state.peer
    return peer.caller(request.state.level)


class ClientHistory:
    """The history for one request, which waits for its user's turn to read it."""

    def __init__(self, request: Request) -> None:
        context: ApiContext = request.app.state.context
        state = request.state
        self._history = context.history
        self._take = partial(state.take_turn, user=state.user, level=state.level)

    async def query(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query, as :meth:`History.query` does."""
        return await self._history.query(function, self._take)


async def _history(request: Request) -> ClientHistory:
    return ClientHistory(request)


ContextDep = Annotated[ApiContext, Depends(_context)]
By = Annotated[Caller, Depends(_caller)]
HistoryDep = Annotated[ClientHistory, Depends(_history)]


def problems(*codes: Code) -> dict[int | str, dict[str, Any]]:
    """Describe a route's problems for the OpenAPI document: these and the common ones.

    By reference instead of ``model``, for which FastAPI would build a validator per route and
    status, which takes longer than everything else at the start.
    """
    statuses = sorted({code.status.value for code in (*_COMMON, *codes)})
    content = {MEDIA_TYPE: {"schema": {"$ref": PROBLEM_REFERENCE}}}
    return {
        status: {"description": _DESCRIPTIONS[status], "content": content} for status in statuses
    }


async def end_stored(
    context: ApiContext,
    writer: StoreWriter[Any],
    over: str,
    command: Callable[..., Command],
    **fields: Any,
) -> Outcome:
    """End what a file keeps, and return its result when the file has it no more.

    Args:
        context: The shared state.
        writer: Writes the file.
        over: The beginning of the message if that cannot be written.
        command: The command's class.
        fields: The command's fields.

    Raises:
        ProblemError: The command was refused, or the file cannot be written.
    """
    try:
        outcome = await context.run_command(command, **fields)
    except ProblemError as error:
        if error.code is Code.NOT_FOUND:  # maybe ended before, when that could not be stored
            await writer.wait_written(over)
        raise
    if outcome.gpus:
        await writer.wait_written(over)
    return outcome


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, and cancel it if the client disconnects or its process ends.

    Otherwise its result would have no owner. A child of the process may keep the connection open.

    Raises:
        ProblemError: The client has disconnected; no response can be sent.
    """
    by, ended = await _caller(request), asyncio.Event()
    watch = ProcessWatch(lambda _: ended.set())
    working = asyncio.create_task(work)
    tasks = working, asyncio.create_task(_disconnect(request)), asyncio.create_task(ended.wait())
    try:
        if by.started is not None:  # it is visible here
            watch.watch({(None, ""): by})
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ProblemError(Code.UNAVAILABLE, "The client has disconnected.")
    finally:
        watch.watch({})
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
