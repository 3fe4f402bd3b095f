"""All metrics: name, type, help text, labels and source of each, of metrics.toml."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

from sentinel.protocol.shipped_tables import shipped_table

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
    #: The fields of a view that it shows, each with the value of its own label, or "" without one.
    fields: Mapping[str, str] = field(default_factory=dict)
    #: Whether they are those of a reading or of telemetry.
    measured: bool
    #: What a field is multiplied by.
    factor: float = 1.0

    def family(self) -> Family:
        """Create the metric family, without values."""
        if self.kind == "info":
            return InfoMetricFamily(self.name.removesuffix("_info"), self.help)
        return _FAMILIES[self.kind](self.name, self.help, labels=self.labels)


def _read() -> Iterator[Metric]:
    """Read the table that comes with Sentinel."""
    for group in shipped_table("sentinel.api", "metrics.toml")["group"]:
        prefix, common = ("gpu_", GPU_LABELS) if group.get("of_gpu") else ("", ())
        for row in group["metrics"]:
            yield Metric(
                name=f"sentinel_{prefix}{row['name']}",
                kind=group["kind"],
                help=row["help"],
                labels=(*common, *row.get("labels", ())),
                fields=row.get("fields", {"": row["field"]} if "field" in row else {}),
                measured=group.get("measured", False),
                factor=row.get("factor", 1.0),
            )


#: All metrics, in the order of the page.
METRICS = tuple(_read())
