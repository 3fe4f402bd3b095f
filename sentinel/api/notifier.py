"""Send selected events to a webhook and to a program, each at its own speed.

The supervisor is not concerned: it sends its events to this process anyway, and drops them if this
process does not read. Each recipient has a bounded outbox and one attempt at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import random
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sentinel.api.bodies import ProblemError
from sentinel.api.event_streams import LoggedEvent
from sentinel.api.recipients import CommandHook, DeliveryError, Webhook
from sentinel.errors import NoSuchGpuError
from sentinel.host.lookups import node_name
from sentinel.protocol.commands import NotifySpec

#: An event's name and its GPU, or None.
Key = tuple[str, str | None]

#: Waiting notifications; further ones are dropped.
MAX_WAITING = 256

#: Pauses between the attempts for one notification, in seconds; after the last it is lost.
PAUSES_S = (1.0, 4.0, 15.0, 60.0, 120.0)
#: The subject of warnings; they are not sent themselves.
ABOUT = "notify"
#: The version of the JSON.
_SCHEMA_VERSION = 1

Send = Callable[[str, str, bytes], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Notification:
    """One event, or several of one name and GPU."""

    #: The last of them, as in the log.
    event: Mapping[str, Any]
    #: How many, and the time of the first.
    count: int
    since: str
    #: When it may be sent, by the monotonic clock.
    due: float

    @property
    def key(self) -> Key:
        """The name of its event and the GPU."""
        return str(self.event.get("event")), self.event.get("gpu")


class Outbox:
    """Waiting notifications, one for each event name and GPU.

    The first event of a key is due at once. Later ones are due ``every`` seconds after the last was
    taken, and are joined until then.

    Args:
        every: The least time between two notifications of one key, in seconds.
    """

    def __init__(self, every: float) -> None:
        self._every = every
        self._waiting: dict[Key, Notification] = {}
        self._taken: dict[Key, float] = {}
        #: Events that found no room.
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, event: Mapping[str, Any], now: float) -> bool:
        """Add an event; return False if there is no room."""
        new = Notification(event=event, count=1, since=str(event.get("time")), due=now)
        before = self._waiting.get(new.key)
        if before is not None:
            self._waiting[new.key] = replace(before, event=event, count=before.count + 1)
            return True
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return False
        taken = self._taken.get(new.key)
        due = now if taken is None else max(now, taken + self._every)
        self._waiting[new.key] = replace(new, due=due)
        return True

    def next_due(self) -> float | None:
        """Compute when the next notification is due; None if none waits."""
        return min((waiting.due for waiting in self._waiting.values()), default=None)

    def take(self, now: float) -> Notification | None:
        """Take the notification that is due first, if one is due."""
        first = min(self._waiting.values(), key=lambda waiting: waiting.due, default=None)
        if first is None or first.due > now:
            return None
        del self._waiting[first.key]
        self._taken = {key: at for key, at in self._taken.items() if at + self._every > now}
        self._taken[first.key] = now
        return first


class Recipient:
    """A webhook or a program, with the notifications that wait for it.

    Args:
        name: Its name in metrics and warnings.
        send: Makes one attempt with the event's name, the id and the JSON; raises DeliveryError.
        every: The least time between two notifications of one event and GPU, in seconds.
        report_warning: Called at the first loss after a success.
        pauses: The pauses between attempts, in seconds.
    """

    def __init__(
        self,
        name: str,
        send: Send,
        every: float,
        report_warning: Callable[[str], None],
        pauses: tuple[float, ...] = PAUSES_S,
    ) -> None:
        self.name = name
        #: Notifications by result: ``sent``, ``failed``; and ``dropped`` events.
        self.results: Counter[str] = Counter()
        self._send = send
        self._report_warning = report_warning
        self._pauses = pauses
        self._outbox = Outbox(every)
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._is_lossy = False
        #: Events that were lost since the last success.
        self._lost = 0

    @property
    def waiting(self) -> int:
        """How many notifications wait."""
        return len(self._outbox)

    def add(self, event: LoggedEvent) -> None:
        """Add an event; this takes no time."""
        if not self._outbox.add(event.fields, time.monotonic()):
            self.results["dropped"] += 1
            self._lose(1, f"more than {MAX_WAITING} notifications wait")
        self._idle.clear()
        self._changed.set()

    async def run(self) -> None:
        """Deliver notifications as they become due, forever."""
        while True:
            self._changed.clear()
            now = time.monotonic()
            notification = self._outbox.take(now)
            if notification is not None:
                await self._deliver(notification)
                continue
            self._idle.set()
            due = self._outbox.next_due()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                    await self._changed.wait()

    async def drain(self) -> None:
        """Wait until everything that is due has been delivered or lost."""
        await self._idle.wait()

    async def _deliver(self, notification: Notification) -> None:
        """Make attempts until one succeeds or none is left."""
        name, id_, lost = notification.key[0], secrets.token_hex(8), self._lost
        body = {
            "schema_version": _SCHEMA_VERSION,
            "id": id_,
            "host": node_name(),
            "count": notification.count,
            "since": notification.since,
            "lost": lost,
            "event": notification.event,
        }
        data = json.dumps(body).encode()
        for pause in (*self._pauses, None):
            why, final = await self._attempt(name, id_, data)
            if why is None:
                self.results["sent"] += 1
                self._lost -= lost
                self._is_lossy = False
                return
            if final or pause is None:
                break
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
        self.results["failed"] += 1
        self._lose(notification.count, f"{name}: {why}")

    async def _attempt(self, name: str, id_: str, data: bytes) -> tuple[str | None, bool]:
        """Make one attempt; return why it failed, or None, and whether another can succeed."""
        try:
            await self._send(name, id_, data)
        except DeliveryError as error:
            return str(error), error.final
        except Exception as error:  # noqa: BLE001 - a bug costs one notification, not all
            return f"a bug in sentinel: {error!r}", True
        return None, False

    def _lose(self, events: int, why: str) -> None:
        """Count lost events, and report the first ones."""
        self._lost += events
        if not self._is_lossy:
            self._is_lossy = True
            self._report_warning(f"{self.name}: a notification is lost: {why}; others are counted")


class Notifier:
    """The recipients, and the selection of events.

    Args:
        spec: The settings; None without notifications.
        select: Resolves selectors of GPUs to UUIDs; raises ProblemError while they are not known.
        report_warning: Called at the first loss of a recipient after a success.
    """

    def __init__(
        self,
        spec: NotifySpec | None,
        select: Callable[[list[str]], tuple[str, ...]],
        report_warning: Callable[[str], None],
    ) -> None:
        self.recipients: list[Recipient] = []
        self._spec = spec
        self._select = select
        self._report_warning = report_warning
        self._gpus: tuple[str, ...] | None = None
        if spec is None:
            return
        if spec.webhook is not None:
            webhook = Webhook(spec.webhook, spec.token, spec.secret)
            self._add("webhook", webhook.send, spec.every)
        if spec.command is not None:
            self._add("command", CommandHook(spec.command).send, spec.every)

    def _add(self, name: str, send: Send, every: float) -> None:
        self.recipients.append(Recipient(name, send, every, self._report_warning))

    def add(self, event: LoggedEvent) -> None:
        """Add an event if it is selected; this takes no time."""
        if self.recipients and self._is_selected(event):
            for recipient in self.recipients:
                recipient.add(event)

    async def run(self) -> None:
        """Deliver notifications, forever."""
        await asyncio.gather(*(recipient.run() for recipient in self.recipients))

    async def drain(self, timeout_s: float) -> None:
        """Wait until everything that is due has been delivered, at most ``timeout_s`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(recipient.drain() for recipient in self.recipients))

    def _is_selected(self, event: LoggedEvent) -> bool:
        if self._spec is None or event.fields.get("about") == ABOUT:
            return False
        names = self._spec.events
        if names and not any(fnmatch.fnmatchcase(event.name, name) for name in names):
            return False
        if event.name == "gpu.idle" and event.fields.get("left_alone_s") == 0.0:
            return False  # at the start of a daemon: no job has ended
        gpu = event.fields.get("gpu")
        return gpu is None or not self._spec.gpus or gpu in self._selected_gpus(str(gpu))

    def _selected_gpus(self, gpu: str) -> tuple[str, ...]:
        """Resolve the selectors; until the GPUs are known, an event is sent rather than lost."""
        if self._gpus is None and self._spec is not None:
            try:
                self._gpus = self._select(list(self._spec.gpus))
            except NoSuchGpuError as error:
                self._gpus = ()
                self._report_warning(f"notify.gpus: {error.what}; no event of a GPU is sent")
            except ProblemError:
                return (gpu,)
        return self._gpus or ()
