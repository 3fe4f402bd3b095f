"""The table of all metrics: their names, kinds, labels, and what they mean.

Names, units and kinds are as Prometheus asks for them (https://prometheus.io/docs/practices/naming/):
base units, `_total` for what only grows, a share is a `_ratio`. What is measured of a GPU has the
labels of dcgm-exporter, so that both can be joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

#: What names a GPU: as dcgm-exporter has it, whose `hostname` was `Hostname` until its commit
#: d5e5f51 of 2026-05-12. Its `modelName` is none that `promtool check metrics` lets pass, so here
#: it is `model_name`, which deploy/prometheus/prometheus.yml copies.
GPU_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "model_name", "hostname")

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily | InfoMetricFamily


class Kind(StrEnum):
    """What a metric is, in Prometheus's words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        name: As it is asked for; a histogram's without `_bucket` and its kind.
        labels: All of them; an info's are its values.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]

    def family(self) -> Family:
        """Return it without a value."""
        match self.kind:
            case Kind.GAUGE:
                return GaugeMetricFamily(self.name, self.help, labels=self.labels)
            case Kind.COUNTER:
                return CounterMetricFamily(self.name, self.help, labels=self.labels)
            case Kind.HISTOGRAM:
                return HistogramMetricFamily(self.name, self.help, labels=self.labels)
            case Kind.INFO:
                return InfoMetricFamily(self.name.removesuffix("_info"), self.help)


def _of_gpu(kind: Kind, *rows: tuple[str, str] | tuple[str, str, str]) -> tuple[Metric, ...]:
    """Return metrics of a GPU, given as name, help and where there is one a label more."""
    return tuple(
        Metric(name=f"sentinel_gpu_{name}", kind=kind, help=text, labels=(*GPU_LABELS, *more))
        for name, text, *more in rows
    )


def _of_host(kind: Kind, *rows: tuple[str, str, tuple[str, ...]]) -> tuple[Metric, ...]:
    """Return metrics of the daemon as a whole, given as name, help and labels."""
    return tuple(
        Metric(name=f"sentinel_{name}", kind=kind, help=text, labels=labels)
        for name, text, labels in rows
    )


_HOST = (
    *_of_host(
        Kind.INFO,
        ("build_info", "The version of sentinel.", ("version",)),
        (
            "driver_info",
            "The version of the driver, and whether the GPUs are simulated.",
            ("version", "simulated"),
        ),
    ),
    *_of_host(
        Kind.GAUGE,
        ("up", "Whether the supervisor showed its state within the last 5 s.", ()),
        ("start_time_seconds", "When the daemon began, in seconds since the epoch.", ()),
        (
            "service_start_time_seconds",
            "When the process began that answers scrapes and counts, in seconds since the epoch.",
            (),
        ),
        ("view_age_seconds", "How long ago the supervisor showed its state last.", ()),
        ("state", "1 for the state that the daemon is in.", ("state",)),
        ("gpus", "How many GPUs the daemon cares for.", ()),
        ("reservations", "How many reservations there are.", ()),
        (
            "process_resident_memory_bytes",
            "Memory of the supervisor, and of the service that answers scrapes.",
            ("process",),
        ),
    ),
    *_of_host(
        Kind.COUNTER,
        (
            "process_cpu_seconds_total",
            "Processor time of the supervisor and of the service, in user and system mode.",
            ("process",),
        ),
        (
            "probe_restarts_total",
            "How often the process that asks the driver was replaced, by reason.",
            ("reason",),
        ),
        (
            "driver_failures_total",
            "How often the driver as a whole could not be asked, by its error.",
            ("code",),
        ),
        ("events_lost_total", "Events that the service did not hear, and so did not count.", ()),
    ),
)

_STATES = _of_gpu(
    Kind.GAUGE,
    ("state", "1 for who uses the GPU besides us, as far as is known.", "state"),
    ("stressor_state", "1 for the state that our stressor on the GPU is in.", "state"),
    ("admin_state", "1 for what somebody told us to do with the GPU.", "state"),
    ("condition_state", "1 for how the GPU does.", "state"),
)

_SHOWN = _of_gpu(
    Kind.GAUGE,
    ("reading_age_seconds", "How long ago the GPU was read last."),
    ("telemetry_age_seconds", "How long ago the GPU told its telemetry last."),
    ("memory_size_bytes", "The memory that the GPU has."),
    ("memory_held_bytes", "Memory of the GPU that our stressor holds."),
    ("memory_budget_bytes", "How much of the memory may be promised in all."),
    ("memory_allocated_bytes", "How much of the memory is promised."),
    ("allocations", "To how many a part of the memory is promised."),
    ("guest_processes", "Processes on the GPU to whom memory was promised."),
    ("foreign_processes", "Processes on the GPU that make it busy, as far as they are listed."),
    (
        "multiplier_ratio",
        "The share of its speed that the GPU's health leaves to who works there.",
    ),
    ("leaked", "Whether something stayed in use by nobody after our last stressor."),
    ("stressor_share_ratio", "The share of the time for which our stressor is told to work."),
    ("stressor_iterations_per_second", "What our stressor does, in its workload's unit of work."),
    ("stressor_flops_per_second", "Floating-point operations that our stressor does."),
    ("stressor_bytes_per_second", "Memory of the GPU that our stressor reads and writes."),
    ("stressor_resident_memory_bytes", "Memory of the host that our stressor's process has."),
)

_MEASURED = _of_gpu(
    Kind.GAUGE,
    ("memory_used_bytes", "Memory in use, by us and everybody."),
    ("memory_foreign_bytes", "Memory in use that is not our stressor's."),
    ("memory_reserved_bytes", "Memory that the driver keeps for itself."),
    ("utilization_ratio", "The share of the last second or less in which a kernel ran."),
    ("memory_utilization_ratio", "The share of that time in which its memory was read or written."),
    ("temperature_celsius", "The temperature of the GPU."),
    ("memory_temperature_celsius", "The temperature of its memory."),
    ("temperature_margin_celsius", "How many degrees it is from slowing itself down."),
    ("slowdown_temperature_celsius", "The temperature at which it begins to slow itself down."),
    ("maximum_temperature_celsius", "The highest temperature that it may have in operation."),
    ("shutdown_temperature_celsius", "The temperature at which it turns itself off."),
    ("memory_maximum_temperature_celsius", "The highest temperature that its memory may have."),
    ("power_watts", "The power that it draws."),
    ("power_limit_watts", "The power limit in force."),
    ("sm_clock_hertz", "The clock of its multiprocessors."),
    ("memory_clock_hertz", "The clock of its memory."),
    ("clocks_event_reason", "Whether this is a reason why its clocks are what they are.", "reason"),
    (
        "pcie_generation",
        "The generation of its link as it is now; it falls while there is nothing to do.",
    ),
    ("pcie_width", "How many lanes its link has as it is now."),
    ("row_remap_pending", "Whether a row of its memory waits for a reset to be replaced."),
    ("row_remap_failed", "Whether a row of its memory could not be replaced."),
    ("fan_speed_ratio", "The speed of its fan."),
    ("performance_state", "Its performance state; 0 is the fastest."),
)

_MEASURED_TOTALS = _of_gpu(
    Kind.COUNTER,
    ("energy_joules_total", "The energy that it used since the driver was loaded."),
    ("power_throttled_seconds_total", "For how long power has kept its clocks down."),
    ("thermal_throttled_seconds_total", "For how long heat has kept its clocks down."),
    ("pcie_replays_total", "How often something had to be sent again on its link."),
    ("nvlink_transmitted_bytes_total", "What it sent over all NVLinks."),
    ("nvlink_received_bytes_total", "What it received over all NVLinks."),
    ("ecc_errors_total", "Errors of its memories since the driver was loaded.", "type"),
    ("remapped_rows_total", "Rows of its memory that were replaced, by what was wrong.", "type"),
)

_COUNTED = (
    *_of_gpu(
        Kind.COUNTER,
        ("yields_total", "How often a newcomer got the GPU of us, since the daemon began."),
        ("stressor_starts_total", "Stressors that were started, since the daemon began."),
        ("findings_total", "How often a stressor found the GPU wrong, since the daemon began."),
        ("verification_errors_total", "Results of stressors that were wrong."),
        ("stress_seconds_total", "For how long a stressor was running on the GPU."),
        (
            "stressor_restarts_total",
            "Stressors that were started after one before, by why that one ended.",
            "reason",
        ),
        ("stressor_failures_total", "Stressors that failed, by kind of failure.", "kind"),
        ("foreign_seen_total", "Foreign processes that were seen to come to the GPU."),
        ("unknown_total", "How often it was not known any more who uses the GPU."),
    ),
    *_of_gpu(
        Kind.HISTOGRAM,
        ("handover_kill_seconds", "From the first sign of a newcomer to the SIGKILL."),
        ("handover_exit_seconds", "From the first sign of a newcomer to our stressor's exit."),
        ("handover_memory_back_seconds", "From the first sign to the memory's return."),
    ),
)

#: All that there is, in the order in which it is told.
METRICS: tuple[Metric, ...] = (
    *_HOST,
    *_STATES,
    *_SHOWN,
    *_MEASURED,
    *_MEASURED_TOTALS,
    *_COUNTED,
)
