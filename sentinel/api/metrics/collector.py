"""Makes the metrics of one scrape, from what the supervisor showed last and what was counted.

What is not known has no series: null is never 0. What was measured has one only as long as the
reading is fresh; a value of long ago, told as one of now, would be a lie.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client.registry import Collector

from sentinel.api.metrics.counters import Counting, GpuCounts
from sentinel.api.metrics.definitions import METRICS, Family
from sentinel.api.state.snapshots import FRESH, Views
from sentinel.host.procfs import read_usage
from sentinel.protocol.commands import ServiceSpec
from sentinel.protocol.stressor import FailureKind
from sentinel.protocol.telemetry import EVENT_REASONS, Telemetry
from sentinel.protocol.views import GpuHealth, GpuView, Phase

#: The states that there are, so that each has a series from the beginning.
OCCUPANCY = ("unknown", "busy", "idle")
STRESSOR = ("stopped", "starting", "running", "stopping", "backoff", "fatal")
ADMIN = ("enabled", "paused", "reserved", "drained", "released")

#: What the supervisor knows of a GPU, by the field of GpuView.
_KNOWN = {
    "memory_total": "memory_size_bytes",
    "held": "memory_held_bytes",
    "budget": "memory_budget_bytes",
    "multiplier": "multiplier_ratio",
    "leaked": "leaked",
    "share": "stressor_share_ratio",
    "iterations_per_s": "stressor_iterations_per_second",
    "flops_per_s": "stressor_flops_per_second",
    "bytes_per_s": "stressor_bytes_per_second",
}
#: What was measured, by the field of GpuView, of Telemetry or of both.
MEASURED = {
    "memory_used": "memory_used_bytes",
    "memory_foreign": "memory_foreign_bytes",
    "memory_reserved": "memory_reserved_bytes",
    "utilization": "utilization_ratio",
    "memory_utilization": "memory_utilization_ratio",
    "temperature_c": "temperature_celsius",
    "memory_temperature_c": "memory_temperature_celsius",
    "temperature_margin_c": "temperature_margin_celsius",
    "slowdown_c": "slowdown_temperature_celsius",
    "maximum_c": "maximum_temperature_celsius",
    "shutdown_c": "shutdown_temperature_celsius",
    "memory_maximum_c": "memory_maximum_temperature_celsius",
    "power_w": "power_watts",
    "power_limit_w": "power_limit_watts",
    "energy_j": "energy_joules_total",
    "power_throttled_s": "power_throttled_seconds_total",
    "thermal_throttled_s": "thermal_throttled_seconds_total",
    "pcie_generation": "pcie_generation",
    "pcie_width": "pcie_width",
    "pcie_replays_total": "pcie_replays_total",
    "nvlink_tx_bytes_total": "nvlink_transmitted_bytes_total",
    "nvlink_rx_bytes_total": "nvlink_received_bytes_total",
    "remap_pending": "row_remap_pending",
    "remap_failed": "row_remap_failed",
    "fan_share": "fan_speed_ratio",
    "performance_state": "performance_state",
}
#: The same, in MHz.
_CLOCKS = {"sm_clock_mhz": "sm_clock_hertz", "memory_clock_mhz": "memory_clock_hertz"}
_HERTZ = 1e6
#: The same, with a label more.
_TYPES = {
    "ecc_corrected_total": ("ecc_errors_total", "corrected"),
    "ecc_uncorrected_total": ("ecc_errors_total", "uncorrected"),
    "remapped_corrected_total": ("remapped_rows_total", "corrected"),
    "remapped_uncorrected_total": ("remapped_rows_total", "uncorrected"),
}


class DaemonCollector(Collector):
    """Tells Prometheus's client library what there is at the moment of a scrape.

    Args:
        spec: What the service was told.
        views: What the supervisor showed last.
        counting: What was counted.
    """

    def __init__(self, spec: ServiceSpec, views: Views, counting: Counting) -> None:
        self._spec = spec
        self._views = views
        self._counting = counting
        self._began = time.time()
        self._hostname = socket.gethostname()

    def collect(self) -> Iterator[Family]:
        """Yield every metric that has a value.

        Raises:
            ProblemError: Nothing was shown yet.
        """
        page, now = _Page(), time.monotonic()
        self._tell_host(page, now)
        for view in self._views.gpus:
            one = _Gpu(page, view, self._hostname, now)
            one.tell_ages()
            one.tell_counts(self._counting.of(view.uuid))
            if self._views.fresh:
                one.tell_states()
                one.tell_values()
                mine = [given for given in self._views.host.allocations if given.gpu == view.uuid]
                one.put("allocations", len(mine))
                one.put("memory_allocated_bytes", sum(given.size for given in mine))
        yield from page.told()

    def _tell_host(self, page: _Page, now: float) -> None:
        host, counting, fresh = self._views.host, self._counting, self._views.fresh
        page.inform("build_info", version=self._spec.version)
        page.inform("driver_info", version=host.driver, simulated=str(host.simulated).lower())
        page.put("up", fresh)
        page.put("start_time_seconds", self._spec.began)
        page.put("service_start_time_seconds", self._began)
        page.put("view_age_seconds", max(0.0, now - host.at))
        page.put("gpus", len(host.gpus))
        page.put("events_lost_total", counting.lost)
        for reason in ("exited", "hung"):
            page.put("probe_restarts_total", counting.probe[reason], reason)
        for code, times in counting.driver.items():
            page.put("driver_failures_total", times, code)
        for process, pid in (("supervisor", host.pid), ("service", os.getpid())):
            usage = read_usage(pid)
            if usage is not None:
                page.put("process_resident_memory_bytes", usage.resident, process)
                page.put("process_cpu_seconds_total", usage.processor, process)
        if fresh:
            page.put("reservations", len(host.reservations))
            for phase in Phase:
                page.put("state", phase == host.phase, phase.value)


class _Page:
    """The families of one scrape."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {metric.name: metric.family() for metric in METRICS}

    def put(self, name: str, value: float | None, *labels: str) -> None:
        """Add a value; one that is not known is left out."""
        if value is not None:
            self._families[f"sentinel_{name}"].add_metric(labels, float(value))

    def inform(self, name: str, **values: str) -> None:
        """Add what is said in labels."""
        self._families[f"sentinel_{name}"].add_metric((), values)

    def distribute(
        self, name: str, labels: Sequence[str], buckets: list[tuple[str, float]], total: float
    ) -> None:
        """Add a histogram."""
        self._families[f"sentinel_{name}"].add_metric(labels, buckets, total)

    def told(self) -> Iterator[Family]:
        """Yield those that have a value."""
        return (family for family in self._families.values() if family.samples)


class _Gpu:
    """One GPU in a scrape."""

    def __init__(self, page: _Page, view: GpuView, hostname: str, now: float) -> None:
        self._page = page
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

    def put(self, name: str, value: float | None, *more: str) -> None:
        """Add a value of this GPU; one that is not known is left out."""
        self._page.put(f"gpu_{name}", value, *self._labels, *more)

    def tell_ages(self) -> None:
        """Tell how old what is known is."""
        self.put("reading_age_seconds", self._age(self._view.read))
        told = self._view.telemetry
        self.put("telemetry_age_seconds", self._age(told.at if told is not None else None))

    def tell_counts(self, counts: GpuCounts) -> None:
        """Tell what was counted, by the supervisor and by this service."""
        self.put("yields_total", self._view.yields)
        self.put("stressor_starts_total", self._view.starts)
        self.put("findings_total", self._view.findings)
        self.put("verification_errors_total", counts.errors)
        self.put("stress_seconds_total", counts.stress)
        self.put("foreign_seen_total", counts.foreign)
        self.put("unknown_total", counts.unknown)
        for reason in dict.fromkeys(("yield", *counts.restarts)):
            self.put("stressor_restarts_total", counts.restarts[reason], reason)
        for kind in dict.fromkeys((*FailureKind, *counts.failures)):
            self.put("stressor_failures_total", counts.failures[kind], kind)
        for step, durations in (
            ("kill", counts.kill),
            ("exit", counts.exit),
            ("memory_back", counts.memory_back),
        ):
            name = f"gpu_handover_{step}_seconds"
            self._page.distribute(name, self._labels, durations.buckets(), durations.sum)

    def tell_states(self) -> None:
        """Tell what state it is in: 1 for that, and 0 for the others."""
        view = self._view
        self._tell_state("state", OCCUPANCY, view.occupancy.lower())
        self._tell_state("stressor_state", STRESSOR, view.stressor.lower())
        self._tell_state("admin_state", ADMIN, view.admin.lower())
        if view.health is not None:
            self._tell_state("condition_state", tuple(GpuHealth), view.health)

    def tell_values(self) -> None:
        """Tell what is known of it, and what was measured lately."""
        view, told = self._view, self._view.telemetry
        for field, name in _KNOWN.items():
            self.put(name, getattr(view, field))
        self.put("guest_processes", len(view.allocated_processes))
        if view.occupancy != "UNKNOWN":
            self.put("foreign_processes", len(view.processes))
        usage = read_usage(view.pid) if view.pid is not None else None
        self.put("stressor_resident_memory_bytes", usage.resident if usage is not None else None)
        measured = {}
        if self._fresh(view.read):
            measured = {name: value for name, value in vars(view).items() if value is not None}
        if told is not None and self._fresh(told.at):
            measured |= {name: value for name, value in vars(told).items() if value is not None}
            self._tell_reasons(told)
        for field, name in MEASURED.items():
            self.put(name, measured.get(field))
        for field, name in _CLOCKS.items():
            clock = measured.get(field)
            self.put(name, clock * _HERTZ if clock is not None else None)
        for field, (name, kind) in _TYPES.items():
            self.put(name, measured.get(field), kind)

    def _tell_reasons(self, told: Telemetry) -> None:
        if told.reasons is not None:
            for reason in dict.fromkeys((*EVENT_REASONS.values(), *told.reasons)):
                self.put("clocks_event_reason", reason in told.reasons, reason)

    def _tell_state(self, name: str, states: Sequence[str], state: str) -> None:
        for one in dict.fromkeys((*states, state)):
            self.put(name, one == state, str(one))

    def _fresh(self, at: float | None) -> bool:
        return at is not None and self._now - at < FRESH

    def _age(self, at: float | None) -> float | None:
        return None if at is None else max(0.0, self._now - at)
