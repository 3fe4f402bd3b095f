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
            "The driver, and whether the GPUs are simulated.",
            ("version", "simulated"),
        ),
    ),
    *_of_host(
        "gauge",
        ("up", "Whether the supervisor published its state within 5 s.", ()),
        ("start_time_seconds", "Start of the daemon, since the epoch.", ()),
        (
            "service_start_time_seconds",
            "Start of the API process and its counters, since the epoch.",
            (),
        ),
        ("view_age_seconds", "Age of the supervisor's last published state.", ()),
        ("state", "State of the daemon.", ("state",)),
        ("gpus", "GPUs that the daemon manages.", ()),
        ("gpus_expected", "GPUs that the node must have, by `expect-gpus`.", ()),
        ("reservations", "Reservations.", ()),
        (
            "files_set_aside",
            "Damaged state files, renamed to `.bad`, that are still there.",
            ("file",),
        ),
        (
            "process_resident_memory_bytes",
            "Host memory.",
            ("process",),
        ),
    ),
    *_of_host(
        "counter",
        (
            "process_cpu_seconds_total",
            "Processor time, user and system.",
            ("process",),
        ),
        ("probe_restarts_total", "Replacements of the probe.", ("reason",)),
        ("driver_failures_total", "Failures of the driver as a whole.", ("code",)),
        (
            "notifications_total",
            "Notifications; failed: after all attempts.",
            ("recipient", "result"),
        ),
        ("events_lost_total", "Events that the API process missed and did not count.", ()),
    ),
)

_STATES = _of_gpu(
    "gauge",
    ("state", "Occupancy by foreign processes.", "state"),
    ("stressor_state", "State of the stressor.", "state"),
    ("admin_state", "The operator's hold.", "state"),
    ("health_state", "Health.", "state"),
    ("health_cause", "Cause of a health that is not optimal.", "cause"),
    ("fault", "Whether a fault of this kind is known.", "fault"),
)

_GPU_STATE = _of_gpu(
    "gauge",
    ("info", "1, with the serial number of the board.", "serial"),
    ("reading_age_seconds", "Age of the last reading."),
    ("telemetry_age_seconds", "Age of the last telemetry."),
    ("memory_size_bytes", "All memory."),
    ("memory_held_bytes", "Memory of the stressor."),
    ("memory_budget_bytes", "Memory that allocations may use in all."),
    ("memory_allocated_bytes", "Memory allocated to processes."),
    ("allocations", "Allocations of memory."),
    ("allocated_processes", "Processes with an allocation."),
    ("foreign_processes", "Foreign processes, as far as listed."),
    ("multiplier_ratio", "Share of full speed that the health permits."),
    ("leaked", "Whether memory or load without a process remained after the last stressor."),
    ("stressor_share_ratio", "Target share of time in which the stressor works."),
    ("stressor_iterations_per_second", "Iterations of the workload."),
    ("stressor_flops_per_second", "Floating-point operations."),
    ("stressor_bytes_per_second", "GPU memory read and written."),
    ("stressor_resident_memory_bytes", "Host memory of the stressor."),
    ("verified_timestamp_seconds", "End of the last verified work, since the epoch."),
    ("wrong_results", "Errors and findings, under all daemons, not acknowledged."),
    ("burnin_verdict", "Verdict of the last burn-in; fail until a pass.", "verdict"),
    ("burnin_timestamp_seconds", "End of the last burn-in, since the epoch."),
    ("burnin_phase", "Current phase of a burn-in, from 1."),
    ("burnin_phases", "Phases of its plan."),
    ("burnin_left_seconds", "Work left of a burn-in, at least."),
)

_MEASURED = _of_gpu(
    "gauge",
    ("memory_used_bytes", "Memory in use by all processes."),
    ("memory_foreign_bytes", "Memory in use that is not the stressor's."),
    ("memory_reserved_bytes", "Memory of the driver itself."),
    ("utilization_ratio", "Share of the last second or less in which a kernel ran."),
    ("memory_utilization_ratio", "Share of that time in which memory was read or written."),
    ("temperature_celsius", "Temperature of the GPU."),
    ("memory_temperature_celsius", "Temperature of its memory."),
    ("temperature_margin_celsius", "Degrees to the nearest limit of any sensor."),
    ("slowdown_temperature_celsius", "Temperature at which the GPU slows down."),
    ("maximum_temperature_celsius", "Maximum temperature in operation."),
    ("shutdown_temperature_celsius", "Temperature at which the GPU shuts down."),
    ("memory_maximum_temperature_celsius", "Maximum temperature of its memory."),
    ("power_watts", "Power draw."),
    ("power_limit_watts", "Power limit in force."),
    ("sm_clock_hertz", "Clock of the multiprocessors."),
    ("memory_clock_hertz", "Clock of the memory."),
    ("clocks_event_reason", "Whether this reason determines the clocks.", "reason"),
    ("pcie_generation", "Generation of the PCIe link; it falls while idle."),
    ("pcie_width", "PCIe lanes."),
    ("row_remap_pending", "Whether the replacement of a row waits for a reset."),
    ("row_remap_failed", "Whether a row could not be replaced."),
    ("fan_speed_ratio", "Speed of the fan."),
    ("performance_state", "Performance state; 0 is the fastest."),
)

_MEASURED_TOTALS = _of_gpu(
    "counter",
    ("energy_joules_total", "Energy since the driver was loaded."),
    ("power_throttled_seconds_total", "Time at clocks reduced by the power limit."),
    ("thermal_throttled_seconds_total", "Time at clocks reduced by heat."),
    ("pcie_replays_total", "Replays on the PCIe link."),
    ("nvlink_transmitted_bytes_total", "Data sent over all NVLinks."),
    ("nvlink_received_bytes_total", "Data received over all NVLinks."),
    ("ecc_errors_total", "Memory errors since the driver was loaded.", "type"),
    ("remapped_rows_total", "Replaced memory rows, by error.", "type"),
)

_COUNTED = (
    *_of_gpu(
        "counter",
        ("yields_total", "Yields to a newcomer."),
        ("stressor_starts_total", "Starts of stressors."),
        ("findings_total", "Findings of stressors."),
        ("verification_errors_total", "Wrong results of stressors."),
        ("stress_seconds_total", "Time with a running stressor."),
        ("verified_seconds_total", "Work with checked results, under all daemons."),
        ("verified_results_total", "Checked results, under all daemons."),
        (
            "stressor_restarts_total",
            "Starts of stressors, by the end of the one before.",
            "reason",
        ),
        ("stressor_failures_total", "Failures of stressors.", "kind"),
        ("foreign_seen_total", "Foreign processes that appeared."),
        ("unknown_total", "Changes of the occupancy to unknown."),
        ("xids_total", "XIDs that NVML delivered, but for those of own kills.", "xid"),
    ),
    *_of_gpu(
        "histogram",
        ("handover_kill_seconds", "From the first evidence to SIGKILL."),
        ("handover_exit_seconds", "From the first evidence to the stressor's exit."),
        ("handover_memory_back_seconds", "From the first evidence to free memory."),
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
