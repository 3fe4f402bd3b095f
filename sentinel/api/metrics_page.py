"""Collect the metrics of one scrape, and write them in one of Prometheus's text formats.

An unknown value has no series: None is never 0. A measured value has a series only while its
reading is fresh; otherwise Prometheus would record an old value as a current one.
"""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sentinel.api.bodies import CLOSE, ProblemError, problem
from sentinel.api.counters import Counters, GpuCounters
from sentinel.api.history import FILE_NAME as HISTORY_FILE
from sentinel.api.metric_table import METRICS, Family
from sentinel.api.snapshots import STATE_MAX_AGE_S, Views
from sentinel.api.turns import Turns
from sentinel.host import verified_store
from sentinel.host.last_verdicts import LastVerdict
from sentinel.host.lookups import node_name
from sentinel.host.paths import shared_folder
from sentinel.host.procfs import read_usage
from sentinel.host.regular_file import files_set_aside
from sentinel.host.timed_file import FAULTS, RESERVATIONS, SESSIONS
from sentinel.host.verified_store import StoredWork, proof_of
from sentinel.protocol.commands import ApiSpec, Level
from sentinel.protocol.gpu import EVENT_REASONS, Telemetry
from sentinel.protocol.problem import Code
from sentinel.protocol.stressor import FailureKind
from sentinel.protocol.views import (
    FaultKind,
    GpuHealth,
    GpuView,
    HealthCause,
    Phase,
    VerifiedCounts,
)

#: All states, so that each has a series from the start.
OCCUPANCY = ("unknown", "busy", "idle")
STRESSOR = ("stopped", "starting", "running", "stopping", "backoff", "fatal")
ADMIN = ("enabled", "paused", "reserved", "released")
#: The label of each verdict of a burn-in.
VERDICTS = {
    "PASS": "pass",
    "WARN": "warn",
    "INCOMPLETE": "incomplete",
    "FAIL": "fail",
    "N/A": "not_applicable",
}

#: The supported formats, as in an Accept header: the classic one, and OpenMetrics.
_TEXT = "text/plain;version=0.0.4"
_OPENMETRICS = "application/openmetrics-text;version=1.0.0"
#: The time for which a written page is served again: the supervisor does not publish changes more
#: often. With eight GPUs a page takes 20 ms to write, and frequent scrapes must not use all of the
#: processor time.
_CACHE_S = 0.25
#: gzip's level: the lines of a page are similar, and it shrinks to a twentieth even at level 1.
_GZIP_LEVEL = 1

#: The path of the metrics, here and in the API.
PATH = "/metrics"


class DaemonCollector(Collector):
    """Collects all metrics at the time of a scrape.

    Args:
        spec: The specification of this process.
        views: The supervisor's state.
        counters: The counters of this process.
    """

    def __init__(self, spec: ApiSpec, views: Views, counters: Counters) -> None:
        self._spec = spec
        self._views = views
        self._counters = counters
        self._started = time.time()
        self._hostname = node_name()
        state = Path(spec.state)
        #: The files that are set aside if they are damaged.
        self._state_files = (
            state / RESERVATIONS.name,
            state / SESSIONS.name,
            state / FAULTS.name,
            state / HISTORY_FILE,
            shared_folder(state) / verified_store.NAME,
        )

    def collect(self) -> Iterator[Family]:
        """Yield every metric that has a value.

        Raises:
            ProblemError: The supervisor has not sent its state yet.
        """
        families, now = _Families(), time.monotonic()
        self._add_host(families, now)
        for view in self._views.gpus:
            gpu = _GpuMetrics(families, view, self._hostname, now)
            gpu.add_ages()
            gpu.add_counters(self._counters.of(view.uuid))
            gpu.add_proof(self._views.verified.get(view.uuid), self._views.stored.get(view.uuid))
            gpu.add_verdict(self._views.verdicts.get(view.uuid))
            if self._views.fresh:
                gpu.add_states()
                gpu.add_values()
                sizes = [
                    allocation.size
                    for allocation in self._views.host.allocations
                    if allocation.gpu == view.uuid
                ]
                gpu.add("allocations", len(sizes))
                gpu.add("memory_allocated_bytes", sum(sizes))
        yield from families.with_values()

    def _add_host(self, families: _Families, now: float) -> None:
        host, counters, fresh = self._views.host, self._counters, self._views.fresh
        families.add_info("build_info", version=self._spec.version)
        families.add_info("driver_info", version=host.driver, simulated=str(host.simulated).lower())
        families.add("up", fresh)
        families.add("start_time_seconds", self._spec.began)
        families.add("service_start_time_seconds", self._started)
        families.add("view_age_seconds", max(0.0, now - host.at))
        families.add("gpus", len(host.gpus))
        families.add("gpus_expected", host.expected_gpus)
        families.add("events_lost_total", counters.lost)
        for path in self._state_files:
            families.add("files_set_aside", len(files_set_aside(path)), path.name)
        for recipient, results in counters.notifications.items():
            for result in ("sent", "failed", "dropped"):
                families.add("notifications_total", results[result], recipient, result)
        for reason in ("exited", "hung"):
            families.add("probe_restarts_total", counters.probe[reason], reason)
        for code, times in counters.driver.items():
            families.add("driver_failures_total", times, code)
        for process, pid in (("supervisor", host.pid), ("service", os.getpid())):
            usage = read_usage(pid)
            if usage is not None:
                families.add("process_resident_memory_bytes", usage.resident, process)
                families.add("process_cpu_seconds_total", usage.processor, process)
        if fresh:
            families.add(
                "reservations", sum(bool(reservation.gpus) for reservation in host.reservations)
            )
            for phase in Phase:
                families.add("state", phase == host.phase, phase.value)


class _Families:
    """The metric families of one scrape."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {metric.name: metric.family() for metric in METRICS}

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add a value, unless it is None."""
        if value is not None:
            self._families[f"sentinel_{name}"].add_metric(labels, float(value))

    def add_info(self, name: str, **values: str) -> None:
        """Add an info metric; its values are labels."""
        self._families[f"sentinel_{name}"].add_metric((), values)

    def add_histogram(
        self, name: str, labels: Sequence[str], buckets: list[tuple[str, float]], total: float
    ) -> None:
        """Add a histogram."""
        self._families[f"sentinel_{name}"].add_metric(labels, buckets, total)

    def with_values(self) -> Iterator[Family]:
        """Yield the families that have a value."""
        return (family for family in self._families.values() if family.samples)


class _GpuMetrics:
    """The metrics of one GPU in one scrape."""

    def __init__(self, families: _Families, view: GpuView, hostname: str, now: float) -> None:
        self._families = families
        self._view = view
        self._now = now
        self._labels = (
            str(view.index),
            view.uuid,
            view.pci_bus_id,
            f"nvidia{view.index}",
            view.name,
            hostname,
        )

    def add(self, name: str, value: float | None, *more: str) -> None:
        """Add a value of this GPU, unless it is None."""
        self._families.add(f"gpu_{name}", value, *self._labels, *more)

    def add_ages(self) -> None:
        """Add the ages of the readings."""
        self.add("reading_age_seconds", self._age(self._view.read))
        telemetry = self._view.telemetry
        self.add(
            "telemetry_age_seconds", self._age(telemetry.at if telemetry is not None else None)
        )

    def add_counters(self, counters: GpuCounters) -> None:
        """Add the counters of the supervisor and of this process."""
        self.add("yields_total", self._view.yields)
        self.add("stressor_starts_total", self._view.starts)
        self.add("findings_total", self._view.findings)
        self.add("verification_errors_total", counters.errors)
        self.add("stress_seconds_total", counters.stress_s)
        self.add("foreign_seen_total", counters.foreign)
        self.add("unknown_total", counters.unknown)
        for reason in dict.fromkeys(("yield", *counters.restarts)):
            self.add("stressor_restarts_total", counters.restarts[reason], reason)
        for kind in dict.fromkeys((*FailureKind, *counters.failures)):
            self.add("stressor_failures_total", counters.failures[kind], kind)
        for xid, number in counters.xids.items():
            self.add("xids_total", number, xid)
        for step, durations in (
            ("kill", counters.kill),
            ("exit", counters.exit),
            ("memory_back", counters.memory_back),
        ):
            name = f"gpu_handover_{step}_seconds"
            self._families.add_histogram(name, self._labels, durations.buckets(), durations.sum)

    def add_proof(self, work: StoredWork | None, stored: VerifiedCounts | None) -> None:
        """Add what the GPU has proved, and how far it is in a burn-in.

        Counters have what is stored: one that a crash sets back would seem to begin at zero.
        """
        if stored is not None:
            self.add("verified_seconds_total", stored.seconds)
            self.add("verified_results_total", stored.checks)
        if work is not None:
            self.add("verified_timestamp_seconds", work.last)
            self.add("wrong_results", proof_of(work).wrong)
        burnin = self._view.burnin
        if burnin is not None:
            self.add("burnin_phase", burnin.number)
            self.add("burnin_phases", burnin.phases)
            self.add("burnin_left_seconds", burnin.left_s)

    def add_verdict(self, last: LastVerdict | None) -> None:
        """Add the verdict of the last burn-in."""
        if last is None:
            return
        for verdict, label in VERDICTS.items():
            self.add("burnin_verdict", verdict == last.verdict, label)
        if last.ended is not None:
            self.add("burnin_timestamp_seconds", last.ended.timestamp())

    def add_states(self) -> None:
        """Add all states: 1 for the current one, and 0 for the others; and the serial number."""
        view = self._view
        self.add("info", None if view.serial is None else 1, view.serial or "")
        self._add_state("state", OCCUPANCY, view.occupancy.lower())
        self._add_state("stressor_state", STRESSOR, view.stressor.lower())
        self._add_state("admin_state", ADMIN, view.admin.lower())
        known = {fault.kind for fault in view.faults}
        for kind in FaultKind:
            self.add("fault", kind in known, kind.value)
        if view.health is not None:
            self._add_state("health_state", tuple(GpuHealth), view.health)
            for cause in HealthCause:
                self.add("health_cause", cause == view.health_cause, cause.value)

    def add_values(self) -> None:
        """Add the state, and fresh measurements."""
        view, telemetry = self._view, self._view.telemetry
        self.add("allocated_processes", len(view.allocated_processes))
        if view.occupancy != "UNKNOWN":
            self.add("foreign_processes", len(view.processes))
        usage = read_usage(view.pid) if view.pid is not None else None
        self.add("stressor_resident_memory_bytes", usage.resident if usage is not None else None)
        sources: list[object] = [view] if self._fresh(view.read) else []
        if telemetry is not None and self._fresh(telemetry.at):
            sources.append(telemetry)
            self._add_reasons(telemetry)
        measured = {
            name: value
            for source in sources
            for name, value in vars(source).items()
            if value is not None
        }
        for metric in METRICS:
            shown = measured if metric.measured else vars(view)
            for label, field in metric.fields.items():
                value = shown.get(field)
                if value is not None:
                    name = metric.name.removeprefix("sentinel_gpu_")
                    self.add(name, value * metric.factor, *filter(None, [label]))

    def _add_reasons(self, telemetry: Telemetry) -> None:
        if telemetry.reasons is not None:
            for reason in dict.fromkeys((*EVENT_REASONS.values(), *telemetry.reasons)):
                self.add("clocks_event_reason", reason in telemetry.reasons, reason)

    def _add_state(self, name: str, states: Sequence[str], state: str) -> None:
        for known in dict.fromkeys((*states, state)):
            self.add(name, known == state, str(known))

    def _fresh(self, at: float | None) -> bool:
        return at is not None and self._now - at < STATE_MAX_AGE_S

    def _age(self, at: float | None) -> float | None:
        return None if at is None else max(0.0, self._now - at)


@dataclass(frozen=True)
class _Page:
    """A written page."""

    #: When it was written, of the monotonic clock.
    at: float
    content_type: str
    body: bytes

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.body, _GZIP_LEVEL)


class MetricsPage:
    """The page at ``/metrics``, written at a scrape.

    Args:
        spec: The specification of this process.
        views: The supervisor's state.
        counters: The counters of this process.
    """

    def __init__(self, spec: ApiSpec, views: Views, counters: Counters) -> None:
        # Not the library's default registry, which has metrics of this process.
        self._registry = CollectorRegistry()
        self._registry.register(DaemonCollector(spec, views, counters))
        self._cache: dict[str, _Page] = {}

    def respond(self, headers: Headers) -> Response:
        """Respond to a scrape in the format and encoding of its headers.

        Raises:
            ProblemError: The supervisor has not sent its state yet.
        """
        page = self._write(_format(headers.get("accept", "")))
        # Not as media_type, to which Starlette adds a charset.
        sent = {"content-type": page.content_type, "vary": "Accept, Accept-Encoding"}
        if gzip_accepted(headers.get("accept-encoding", "")):
            return Response(page.compressed, headers={**sent, "content-encoding": "gzip"})
        return Response(page.body, headers=sent)

    def _write(self, format_: str) -> _Page:
        now, cached = time.monotonic(), self._cache.get(format_)
        if cached is not None and now - cached.at < _CACHE_S:
            return cached
        encode, content_type = choose_encoder(format_)
        self._cache[format_] = _Page(now, content_type, encode(self._registry))
        return self._cache[format_]


def _format(accept: str) -> str:
    """Choose the format for an Accept header; the library itself has more versions."""
    try:
        _, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is not a number
        return _TEXT
    return _OPENMETRICS if content_type.startswith("application/openmetrics-text") else _TEXT


class ScrapeApp:
    """An ASGI application that serves the metrics.

    Args:
        page: The metrics.
        turns: The order of the requests.
    """

    def __init__(self, page: MetricsPage, turns: Turns) -> None:
        self._page = page
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        if await scope["state"]["take_turn"](self._turns, None, Level.NONE):
            await self._respond(scope)(scope, receive, send)

    def _respond(self, scope: Scope) -> Response:
        if scope["path"] != PATH:
            return problem(Code.NOT_FOUND, f"This address serves only {PATH}.", headers=CLOSE)
        if scope["method"] not in {"GET", "HEAD"}:
            why = f"{PATH} supports GET and HEAD, not {scope['method']}."
            allow = {"allow": "GET, HEAD"}
            return problem(
                Code.INVALID, why, status=HTTPStatus.METHOD_NOT_ALLOWED, headers=allow | CLOSE
            )
        try:
            return self._page.respond(Headers(scope=scope))
        except ProblemError as error:
            return problem(error.code, error.detail, headers=CLOSE)
