"""All metrics: name, type, help text and labels.

Names, units and types follow Prometheus (https://prometheus.io/docs/practices/naming/): base units,
`_total` for counters, `_ratio` for shares. Metrics of a GPU have the labels of dcgm-exporter, so
that both can be joined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

#: The labels of a GPU, as in dcgm-exporter. Its `hostname` was `Hostname` until its commit d5e5f51
#: of 2026-05-12. `promtool check metrics` rejects its `modelName`, so the name here is
#: `model_name`, which deploy/prometheus/prometheus.yml copies.
GPU_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "model_name", "hostname")

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily | InfoMetricFamily


_FAMILIES: dict[str, Callable[..., Family]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric."""

    #: The full name; for a histogram, without `_bucket` and the other suffixes.
    name: str
    #: The type: gauge, counter, histogram or info.
    kind: str
    help: str
    #: All labels; those of an info metric are its values.
    labels: tuple[str, ...]

    def family(self) -> Family:
        """Create the metric family, without values."""
        if self.kind == "info":
            return InfoMetricFamily(self.name.removesuffix("_info"), self.help)
        return _FAMILIES[self.kind](self.name, self.help, labels=self.labels)


def _of_gpu(kind: str, *rows: tuple[str, str] | tuple[str, str, str]) -> tuple[Metric, ...]:
    """Define metrics of a GPU by name, help text and additional label."""
    return tuple(
        Metric(name=f"sentinel_gpu_{name}", kind=kind, help=text, labels=(*GPU_LABELS, *more))
        for name, text, *more in rows
    )


def _of_host(kind: str, *rows: tuple[str, str, tuple[str, ...]]) -> tuple[Metric, ...]:
    """Define metrics of the daemon by name, help text and labels."""
    return tuple(
        Metric(name=f"sentinel_{name}", kind=kind, help=text, labels=labels)
        for name, text, labels in rows
    )


_HOST = (
    *_of_host(
        "info",
        ("build_info", "The version of sentinel.", ("version",)),
        (
            "driver_info",
            "The version of the driver, and whether the GPUs are simulated.",
            ("version", "simulated"),
        ),
    ),
    *_of_host(
        "gauge",
        ("up", "Whether the supervisor published its state within the last 5 s.", ()),
        ("start_time_seconds", "Start of the daemon, in seconds since the epoch.", ()),
        (
            "service_start_time_seconds",
            "Start of the API process, whose counters begin then, in seconds since the epoch.",
            (),
        ),
        ("view_age_seconds", "Age of the supervisor's last published state.", ()),
        ("state", "1 for the current state of the daemon.", ("state",)),
        ("gpus", "GPUs that the daemon manages.", ()),
        ("reservations", "Reservations.", ()),
        (
            "files_set_aside",
            "Damaged state files that were renamed to `.bad` and are still there, by name.",
            ("file",),
        ),
        (
            "process_resident_memory_bytes",
            "Host memory of the supervisor and of the API process.",
            ("process",),
        ),
    ),
    *_of_host(
        "counter",
        (
            "process_cpu_seconds_total",
            "Processor time of the supervisor and of the API process, in user and system mode.",
            ("process",),
        ),
        ("probe_restarts_total", "Replacements of the probe process, by reason.", ("reason",)),
        ("driver_failures_total", "Failures of the driver as a whole, by its error.", ("code",)),
        (
            "notifications_total",
            "Notifications by recipient and result: sent, failed after all attempts, or dropped.",
            ("recipient", "result"),
        ),
        ("events_lost_total", "Events that the API process missed, and so did not count.", ()),
    ),
)

_STATES = _of_gpu(
    "gauge",
    ("state", "1 for the occupancy of the GPU by foreign processes.", "state"),
    ("stressor_state", "1 for the state of the stressor on the GPU.", "state"),
    ("admin_state", "1 for the operator's hold on the GPU.", "state"),
    ("health_state", "1 for the health of the GPU.", "state"),
    ("health_cause", "1 for the cause of a health that is not optimal.", "cause"),
)

_GPU_STATE = _of_gpu(
    "gauge",
    ("info", "1, with the serial number of the board.", "serial"),
    ("reading_age_seconds", "Age of the last reading of the GPU."),
    ("telemetry_age_seconds", "Age of the GPU's last telemetry."),
    ("memory_size_bytes", "Memory of the GPU."),
    ("memory_held_bytes", "Memory of the GPU that the stressor holds."),
    ("memory_budget_bytes", "Memory that allocations may use in all."),
    ("memory_allocated_bytes", "Memory that is allocated to processes."),
    ("allocations", "Allocations of the GPU's memory."),
    ("allocated_processes", "Processes on the GPU with an allocation."),
    ("foreign_processes", "Foreign processes on the GPU, as far as they are listed."),
    ("multiplier_ratio", "The share of full speed that the GPU's health permits."),
    ("leaked", "Whether memory or load remained without a process after the last stressor."),
    ("stressor_share_ratio", "The target share of time in which the stressor works."),
    ("stressor_iterations_per_second", "Iterations of the stressor's workload."),
    ("stressor_flops_per_second", "Floating-point operations of the stressor."),
    ("stressor_bytes_per_second", "GPU memory that the stressor reads and writes."),
    ("stressor_resident_memory_bytes", "Host memory of the stressor's process."),
    ("verified_timestamp_seconds", "The end of the last verified work, since the epoch."),
    ("wrong_results", "Errors and findings, under all daemons, that are not acknowledged."),
    ("burnin_verdict", "1 for the verdict of the last burn-in; fail until a pass.", "verdict"),
    ("burnin_timestamp_seconds", "The end of the last burn-in, since the epoch."),
    ("burnin_phase", "The number of the current phase of a burn-in, from 1."),
    ("burnin_phases", "The number of phases of its plan."),
    ("burnin_left_seconds", "Work left of a burn-in, without warming up and passes."),
)

_MEASURED = _of_gpu(
    "gauge",
    ("memory_used_bytes", "Memory in use by all processes."),
    ("memory_foreign_bytes", "Memory in use that is not the stressor's."),
    ("memory_reserved_bytes", "Memory that the driver reserves for itself."),
    ("utilization_ratio", "The share of the last second or less in which a kernel ran."),
    ("memory_utilization_ratio", "The share of that time in which memory was read or written."),
    ("temperature_celsius", "The temperature of the GPU."),
    ("memory_temperature_celsius", "The temperature of its memory."),
    ("temperature_margin_celsius", "Degrees below the temperature at which the GPU slows down."),
    ("slowdown_temperature_celsius", "The temperature at which the GPU slows down."),
    ("maximum_temperature_celsius", "The maximum temperature in operation."),
    ("shutdown_temperature_celsius", "The temperature at which the GPU shuts down."),
    ("memory_maximum_temperature_celsius", "The maximum temperature of its memory."),
    ("power_watts", "The power draw."),
    ("power_limit_watts", "The power limit in force."),
    ("sm_clock_hertz", "The clock of the multiprocessors."),
    ("memory_clock_hertz", "The clock of the memory."),
    ("clocks_event_reason", "Whether this reason currently determines the clocks.", "reason"),
    ("pcie_generation", "The current generation of the PCIe link; it falls while idle."),
    ("pcie_width", "The current number of PCIe lanes."),
    ("row_remap_pending", "Whether the replacement of a memory row waits for a reset."),
    ("row_remap_failed", "Whether a memory row could not be replaced."),
    ("fan_speed_ratio", "The speed of the fan."),
    ("performance_state", "The performance state; 0 is the fastest."),
)

_MEASURED_TOTALS = _of_gpu(
    "counter",
    ("energy_joules_total", "Energy since the driver was loaded."),
    ("power_throttled_seconds_total", "Time in which the power limit reduced the clocks."),
    ("thermal_throttled_seconds_total", "Time in which heat reduced the clocks."),
    ("pcie_replays_total", "Replays on the PCIe link."),
    ("nvlink_transmitted_bytes_total", "Data sent over all NVLinks."),
    ("nvlink_received_bytes_total", "Data received over all NVLinks."),
    ("ecc_errors_total", "Memory errors since the driver was loaded.", "type"),
    ("remapped_rows_total", "Replaced memory rows, by type of error.", "type"),
)

_COUNTED = (
    *_of_gpu(
        "counter",
        ("yields_total", "Yields of the GPU to a newcomer since the daemon's start."),
        ("stressor_starts_total", "Starts of stressors since the daemon's start."),
        ("findings_total", "Findings of stressors since the daemon's start."),
        ("verification_errors_total", "Wrong results of stressors."),
        ("stress_seconds_total", "Time with a running stressor on the GPU."),
        ("verified_seconds_total", "Work of which results were checked, under all daemons."),
        ("verified_results_total", "Checked results, under all daemons."),
        (
            "stressor_restarts_total",
            "Starts of stressors after an earlier one, by why that one ended.",
            "reason",
        ),
        ("stressor_failures_total", "Failures of stressors, by kind.", "kind"),
        ("foreign_seen_total", "Foreign processes that appeared on the GPU."),
        ("unknown_total", "Changes of the occupancy to unknown."),
        ("xids_total", "XIDs that NVML delivered, by number, but for those of own kills.", "xid"),
    ),
    *_of_gpu(
        "histogram",
        ("handover_kill_seconds", "From the first evidence of a newcomer to SIGKILL."),
        ("handover_exit_seconds", "From the first evidence of a newcomer to the stressor's exit."),
        ("handover_memory_back_seconds", "From the first evidence of a newcomer to free memory."),
    ),
)

#: All metrics, in the order of the page.
METRICS: tuple[Metric, ...] = (
    *_HOST,
    *_STATES,
    *_GPU_STATE,
    *_MEASURED,
    *_MEASURED_TOTALS,
    *_COUNTED,
)
