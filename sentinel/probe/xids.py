"""Wait for the driver's XIDs in a thread of its own, and post them at a bounded rate.

A wait that never returns costs the XIDs and nothing else: no other thread waits for this one. After
each wait that returned, the supervisor is told since when no XID was missed, so a thread that hangs
is not taken for a GPU without XIDs.

Traps of NVML's event set: TIMEOUT is the normal result of a wait, and the binding raises it. Any
other error may come back at once for as long as the set has a GPU that is lost, so the caller
builds a new set after it. An older driver, vGPU and WSL know no events, which is no fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from sentinel.probe.driver import Driver, DriverError, Xid, XidSource
from sentinel.probe.nvml_calls import ABSENT, as_text, translating
from sentinel.probe.reader import Publisher
from sentinel.probe.scheduler import next_multiple
from sentinel.protocol.probe import WatchedGpu, XidReport, XidsWatched

#: The longest wait, in seconds; also the interval of the messages that XIDs are watched.
WAIT_S = 2.0

#: The pause after a failed wait, at first and at most, in seconds. A lost GPU may fail every wait.
MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0

#: How long until a GPU that could not be added is tried again, in seconds.
RETRY_S = 60.0

#: Repeats of an XID within so many seconds are one report.
GROUP_S = 5.0

#: The most different XIDs of one GPU in that time: some ten times what a fault throws.
MAX_NUMBERS = 32

#: The most reports that wait for room in the channel, of a supervisor that was stopped.
MAX_UNSENT = 1000

#: The pause after a repeat, in seconds: a GPU that throws thousands of XIDs must not keep the
#: interpreter from the readers.
_REPEAT_PAUSE_S = 0.001


class NvmlXids:
    """An event set of NVML for critical XIDs.

    Args:
        nvml: The binding.
        handle_of: Looks up NVML's handle of a GPU by its UUID.
    """

    def __init__(self, nvml: Any, handle_of: Callable[[str], Any]) -> None:
        self._nvml = nvml
        self._handle_of = handle_of
        #: By the address of the handle: an event has the handle, and a lost GPU may not return its
        #: UUID any more.
        self._uuids: dict[int | None, str] = {}
        self._set = nvml.nvmlEventSetCreate()

    def add(self, uuid: str) -> bool:
        """Register a GPU for its XIDs; return False if it does not support that.

        Raises:
            DriverError: The GPU could not be registered.
        """
        nvml = self._nvml
        with translating(self._nvml):
            try:
                handle = self._handle_of(uuid)
                kind = nvml.nvmlEventTypeXidCriticalError
                if not nvml.nvmlDeviceGetSupportedEventTypes(handle) & kind:
                    return False
                nvml.nvmlDeviceRegisterEvents(handle, kind, self._set)
            except nvml.NVMLError as error:
                if error.value in ABSENT:
                    return False
                raise
            self._uuids[_address(handle)] = uuid
            return True

    def wait(self, timeout_s: float) -> Xid | None:
        """Wait for the next event.

        Raises:
            DriverError: The wait failed; a new set is needed.
        """
        nvml = self._nvml
        with translating(self._nvml):
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, math.ceil(timeout_s * 1000))
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    return None
                raise
            if event.eventType != nvml.nvmlEventTypeXidCriticalError:
                return None
            # After a reset of the GPU its handle may be another one.
            uuid = self._uuids.get(_address(event.device))
            if uuid is None:
                uuid = as_text(nvml.nvmlDeviceGetUUID(event.device))
            return Xid(uuid=uuid, number=event.eventData)

    def close(self) -> None:
        """Free the set; one that the driver cannot free is forgotten."""
        with contextlib.suppress(DriverError), translating(self._nvml):
            self._nvml.nvmlEventSetFree(self._set)


def _address(handle: Any) -> int | None:
    """Return the address that a handle is."""
    return ctypes.cast(handle, ctypes.c_void_p).value


class XidGroups:
    """Joins the repeats of each XID of each GPU."""

    def __init__(self) -> None:
        #: By GPU and number: the end of the group, and the repeats so far or None.
        self._groups: dict[tuple[str, int], _Group] = {}

    def take(self, uuid: str, number: int, now: float) -> XidReport | None:
        """Return a report of an XID that is new; count a repeat, and drop one of too many."""
        group = self._groups.get((uuid, number))
        if group is None:
            if sum(group[0] == uuid for group in self._groups) >= MAX_NUMBERS:
                return None
            self._groups[uuid, number] = _Group(until=now + GROUP_S)
            return XidReport(uuid=uuid, number=number, at=now, last_at=now)
        before = group.repeats or XidReport(uuid=uuid, number=number, at=now, last_at=now)
        group.repeats = replace(before, last_at=now, repeats=before.repeats + 1)
        return None

    def ended(self, now: float) -> list[XidReport]:
        """Return the repeats of each group that ends by now."""
        over = [key for key, group in self._groups.items() if group.until <= now]
        groups = [self._groups.pop(key) for key in over]
        return [group.repeats for group in groups if group.repeats is not None]


@dataclass
class _Group:
    until: float
    repeats: XidReport | None = None


class XidWatch:
    """Watches the XIDs of the wanted GPUs.

    Args:
        driver: The driver.
        publisher: Takes the reports.
    """

    def __init__(self, driver: Driver, publisher: Publisher) -> None:
        self._driver = driver
        self._publisher = publisher
        # Written by the thread of the Watch messages, as a whole; it only grows.
        self._wanted: frozenset[str] = frozenset()
        self._changed = threading.Event()
        # Private to the thread of this class. By UUID: since when no XID was missed.
        self._since: dict[str, float] = {}
        self._sent_since: dict[str, float] = {}
        self._sent_at = 0.0
        self._groups = XidGroups()
        self._unsent: list[XidReport] = []
        self._pause_s = MIN_PAUSE_S

    def start(self) -> None:
        """Start the thread; if the host has none left, no XIDs are reported."""
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._run, name="xids", daemon=True).start()

    def want(self, uuids: Collection[str]) -> None:
        """Watch these GPUs, too."""
        if not self._wanted.issuperset(uuids):
            self._wanted = self._wanted.union(uuids)
            self._changed.set()

    def _run(self) -> None:
        try:
            self._changed.wait()
            while True:
                try:
                    with contextlib.closing(self._driver.xids()) as source:
                        self._follow(source)
                except DriverError:  # the readers publish what is wrong with the GPU
                    time.sleep(self._pause_s)
                    self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s)
        except Exception:  # noqa: BLE001 - a thread without XIDs is no reason to end the probe
            traceback.print_exc()

    def _follow(self, source: XidSource) -> None:
        """Post the XIDs of one source until a wait fails."""
        self._since = {}
        #: By UUID: when it was last tried; a GPU that reports no XIDs is not tried again.
        tried: dict[str, float] = {}
        while True:
            self._changed.clear()
            self._add(source, tried)
            if not self._since:
                self._changed.wait(RETRY_S)
                continue
            self._post(time.monotonic())
            now = time.monotonic()
            # Until the readings of a second: the supervisor decides once about all of it.
            xid = source.wait(next_multiple(now, WAIT_S) - now)
            now = time.monotonic()
            self._pause_s = MIN_PAUSE_S
            fresh = xid and self._groups.take(xid.uuid, xid.number, now)
            if xid and not fresh:
                time.sleep(_REPEAT_PAUSE_S)
            self._keep([*([fresh] if fresh else []), *self._groups.ended(now)])

    def _add(self, source: XidSource, tried: dict[str, float]) -> None:
        """Add the wanted GPUs that are missing, and again and again those that fail."""
        for uuid in sorted(self._wanted - self._since.keys()):
            now = time.monotonic()
            if now < tried.get(uuid, now):
                continue
            tried[uuid] = now + RETRY_S
            with contextlib.suppress(DriverError):
                if source.add(uuid):
                    self._since[uuid] = time.monotonic()
                else:
                    tried[uuid] = math.inf

    def _keep(self, reports: list[XidReport]) -> None:
        """Keep reports until the channel has room; of too many, the newest are missed."""
        for report in reports:
            if len(self._unsent) < MAX_UNSENT:
                self._unsent.append(report)
            elif report.uuid in self._since:
                self._since[report.uuid] = report.last_at

    def _post(self, now: float) -> None:
        """Send what is due; reports for which the channel has no room are kept."""
        while self._unsent:
            if not self._publisher.send(self._unsent[0]):
                return
            del self._unsent[0]
        if self._since != self._sent_since or now - self._sent_at >= WAIT_S / 2:
            gpus = tuple(WatchedGpu(uuid=uuid, since=at) for uuid, at in self._since.items())
            self._publisher.send(XidsWatched(at=now, gpus=gpus))
            self._sent_since, self._sent_at = dict(self._since), now
