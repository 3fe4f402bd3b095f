"""The state of the API process that its routes share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from sentinel.api.bodies import ProblemError
from sentinel.api.change_feed import ChangeFeed
from sentinel.api.counters import Counters
from sentinel.api.event_buffer import EventBuffer, LoggedEvent
from sentinel.api.history import FILE_NAME as HISTORY_FILE
from sentinel.api.history import History
from sentinel.api.metrics_page import MetricsPage
from sentinel.api.notifier import ABOUT as NOTIFY_ABOUT
from sentinel.api.notifier import Notifier
from sentinel.api.settings import of_run_time, reread
from sentinel.api.snapshots import Views
from sentinel.api.stores import BurninVerdicts, StoreWriter, VerifiedTotal
from sentinel.api.supervisor_link import ProcessWatch, SupervisorLink, SupervisorMessage
from sentinel.config.model import SETTINGS
from sentinel.config.setting import Scope
from sentinel.config.specs import parse_workload
from sentinel.errors import SentinelError, WireError
from sentinel.host import verified_store
from sentinel.host.paths import shared_folder
from sentinel.host.timed_file import RESERVATIONS, SESSIONS
from sentinel.protocol.codec import MessageStream
from sentinel.protocol.commands import (
    ApiSpec,
    Caller,
    CancelAllocation,
    CancelBurnin,
    CancelReservation,
    CommandReply,
    Configure,
    Given,
    Level,
    ReloadConfig,
    ServiceWarning,
    StopDaemon,
)
from sentinel.protocol.problem import Code
from sentinel.protocol.views import (
    GpuView,
    HostView,
    LogRecord,
    Reservation,
    Session,
    SessionsView,
)

#: The caller of commands without a client.
_THIS_PROCESS = Caller(via="sentinel", level=Level.OWN)
#: The caller of a reload by SIGHUP, which only the daemon's own user and root can send.
_SIGNAL = Caller(via="signal", level=Level.OWN)


#: Why a client may not set something.
_TRUSTED = (
    "{what} names code or a file, so only the daemon's own user and root may set it, over the Unix"
    " socket."
)
#: Why a client may not save something.
_FIXED = (
    "{what} is fixed at the start of the daemon, so only the daemon's own user and root may save"
    " it, over the Unix socket."
)


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
        self.views = Views()
        self.event_buffer = EventBuffer(str(round(spec.began * 1e6)))
        self.counters = Counters()
        self.metrics = MetricsPage(spec, self.views, self.counters)
        self.change_feed = ChangeFeed(
            spec, self.views, self.event_buffer, partial(self.report_warning, "watch")
        )
        #: The settings that the supervisor has accepted; the files may differ.
        self.given = spec.given
        #: Held while settings are read and sent, so that each change starts from the last one.
        self.settings_lock = asyncio.Lock()
        state = Path(spec.state)
        shared = shared_folder(state)
        self.reservation_writer = StoreWriter[Reservation](
            state / RESERVATIONS.name,
            RESERVATIONS.write,
            lambda one: one.id,
            partial(self._warn_unstored, "reservations"),
        )
        self.session_writer = StoreWriter[Session](
            state / SESSIONS.name,
            SESSIONS.write,
            lambda one: one.name,
            partial(self._warn_unstored, "sessions"),
        )
        self.history = History(
            state / HISTORY_FILE, spec.history, partial(self.report_warning, "history")
        )
        self.verified = VerifiedTotal(
            shared / verified_store.NAME, spec.began, partial(self.report_warning, "verified")
        )
        self.views.verified = self.verified.gpus
        self.notifier = Notifier(
            spec.notify, self.views.select, partial(self.report_warning, NOTIFY_ABOUT)
        )
        self.counters.notifications = {
            recipient.name: recipient.results for recipient in self.notifier.recipients
        }
        self.verdicts = BurninVerdicts(shared)
        self.views.verdicts = self.verdicts.gpus
        self._reservation_watch = ProcessWatch(self._cancel_reservation)
        self._allocation_watch = ProcessWatch(self._cancel_allocation)
        self._burnin_watch = ProcessWatch(self._cancel_burnin)
        self._on_end = on_end
        self._tasks: set[asyncio.Task[None]] = set()
        self.supervisor = SupervisorLink(channel, self._receive, self._end)

    def report_warning(self, about: str, text: str) -> None:
        """Log a warning of this process."""
        self.supervisor.send(ServiceWarning(about=about, text=text))

    def stop_daemon(self, reason: str) -> None:
        """End the daemon because of an error."""
        self.report_warning("socket", reason)
        self.supervisor.post(StopDaemon, by=_THIS_PROCESS)

    async def configure(
        self, by: Caller, run_time: Iterable[Given], saved: Iterable[Given] | None = None
    ) -> CommandReply:
        """Read the settings with these of flags and clients, and send them to the supervisor.

        The caller holds ``settings_lock``, and has called :meth:`check_trust`.

        Args:
            by: The caller.
            run_time: What flags and clients have given.
            saved: What clients will have saved; the default is what the file has.

        Raises:
            ConfigError: A setting is invalid; nothing has changed.
            ProblemError: The supervisor does not answer; if it accepts later, the settings are
                taken over then.
        """
        new = await reread(self.spec, run_time, saved)

        def take_over(reply: CommandReply) -> None:
            if reply.refused is None:
                self.given = new

        return await self.supervisor.request(Configure, take_over, by=by, given=new)

    def check_trust(
        self, by: Caller, changes: Mapping[str, str | None], before: Mapping[str, str]
    ) -> None:
        """Check what a client sets that might not run code as this user.

        Args:
            by: The caller.
            changes: The new texts by key; None removes one.
            before: The present texts of the same keys, which may stay.

        Raises:
            ProblemError: A new value names code or a file.
        """
        if by.level >= Level.OWN:
            return
        for setting in SETTINGS:
            text = changes.get(setting.key)
            if not setting.form.trusted or text in {None, before.get(setting.key)}:
                continue
            if setting.field == "workload":
                self.check_workload(str(text), setting.key)
            else:
                raise ProblemError(Code.FORBIDDEN, _TRUSTED.format(what=setting.key))

    def check_kept(self, by: Caller, changes: Iterable[str]) -> None:
        """Check that a client may keep settings for the next daemon, which reads them at its start.

        A running daemon refuses a new value of those that are fixed at the start. The value that
        it has would be kept as well: over the administrator's file, whose next daemon is to have
        another one, for example fewer rights of this very client.

        Args:
            by: The caller.
            changes: The keys.

        Raises:
            ProblemError: One is fixed at the start, and the client is not the daemon's user.
        """
        fixed = {setting.key for setting in SETTINGS if setting.scope is Scope.START}
        kept = [key for key in changes if key in fixed]
        if by.level < Level.OWN and kept:
            raise ProblemError(Code.FORBIDDEN, _FIXED.format(what=kept[0]))

    def check_workload(self, text: str, what: str) -> None:
        """Check that a client who might not run code as this user may set a workload.

        Args:
            text: The workload, as ``--workload`` takes it.
            what: What names it.

        Raises:
            ProblemError: The administrator has not listed it.
        """
        allowed = self.spec.access.workloads
        if parse_workload(text)[0] not in allowed:
            why = _TRUSTED.format(what=what)
            why += f" Other clients may set {', '.join(allowed) or 'none'} (--access-workloads)."
            raise ProblemError(Code.FORBIDDEN, why)

    def _receive(self, message: SupervisorMessage | None) -> None:
        match message:
            case HostView(reservations=reservations, allocations=allocations):
                self.views.update(message)
                # No client has been told of one with a lease.
                self.reservation_writer.update(
                    reservation for reservation in reservations if reservation.lease is None
                )
                bound = {
                    reservation.id: reservation.by
                    for reservation in reservations
                    if reservation.bound
                }
                self._reservation_watch.watch(bound)
                held = {
                    allocation.id: allocation.by
                    for allocation in allocations
                    if allocation.by.started is not None
                }
                self._allocation_watch.watch(held)
                run = message.burnin
                self._burnin_watch.watch({run.id: run.by} if run is not None and run.bound else {})
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

    def _cancel_reservation(self, id_: str) -> None:
        self.supervisor.post(CancelReservation, by=_THIS_PROCESS, id=id_)

    def _cancel_burnin(self, _: str) -> None:
        self.supervisor.post(CancelBurnin, by=_THIS_PROCESS)

    def _cancel_allocation(self, id_: str) -> None:
        self.supervisor.post(CancelAllocation, by=_THIS_PROCESS, id=id_)

    def _warn_unstored(self, about: str, text: str) -> None:
        what = f"{text}; a new daemon will not restore the current {about}"
        self.report_warning(about, what)

    async def _reload(self) -> None:
        """Reread the settings by the supervisor's request; log what is wrong with them."""
        try:
            async with self.settings_lock:
                reply = await self.configure(_SIGNAL, of_run_time(self.given))
        except (SentinelError, ProblemError) as error:
            self.report_warning("settings", str(error))
            return
        if reply.refused is not None:
            self.report_warning("settings", reply.text)
