"""A real API process with every source of metrics, and a parser of its exposition."""

from __future__ import annotations

import http.client
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as parse_text

from sentinel.protocol.commands import NotifySpec
from sentinel.protocol.gpu import Telemetry
from sentinel.protocol.views import (
    GpuHealth,
    GpuView,
    HealthCause,
    VerifiedCounts,
    VerifiedWork,
)
from tests.harness.api_harness import UUIDS, ApiServer, used_gpu
from tests.harness.burnin_report import PROGRESS, write_report
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

Samples = dict[str, list[tuple[dict[str, str], float]]]


def make_telemetry(at: float, **values: Any) -> Telemetry:
    """Build telemetry with a different value in each field, except for ``values``."""
    numbers: dict[str, Any] = {
        field.name: 100 + number for number, field in enumerate(fields(Telemetry))
    }
    plain = {"at": at, "reasons": ("sw_power_cap",), "remap_pending": False, "remap_failed": True}
    plain |= {"recovery_action": "none"}
    return Telemetry(**{**numbers, **plain, **values})


#: A number of findings for each reset, which tells its views from those of the test before.
_findings = itertools.count(1)


def full_view(index: int, findings: int) -> GpuView:
    now = time.monotonic()
    return replace(
        used_gpu(index),
        serial=f"165{index}",
        occupancy="BUSY",
        pid=os.getpid(),
        memory_used=3 * 2**30,
        memory_foreign=2 * 2**30,
        budget=2**30,
        share=0.5,
        iterations_per_s=1.0,
        flops_per_s=2e12,
        bytes_per_s=3e12,
        findings=findings,
        yields=5,
        starts=6,
        health=GpuHealth.CRITICAL,
        health_cause=HealthCause.TEMPERATURE,
        health_since=now,
        multiplier=0.25,
        telemetry=make_telemetry(now),
        verified=VerifiedWork(
            counts=VerifiedCounts(seconds=60.0, checks=700, errors=7), at=now, workload="gemm"
        ),
        burnin=PROGRESS,
    )


EVENTS: tuple[dict[str, Any], ...] = (
    {"name": "gpu.busy", "processes": [{"pid": 1}, {"pid": 2}]},
    {"name": "gpu.busy", "processes": [{"pid": 2}, {"pid": 3}]},  # one process is new
    {"name": "gpu.idle"},
    {"name": "gpu.yielding", "processes": []},
    {
        "name": "gpu.handed_over",
        "kill_s": 0.007,
        "exit_s": 0.15,
        "memory_back_s": None,
        "processes": [{"pid": 2}],
    },
    {"name": "stressor.starting"},
    {"name": "stressor.failed", "kind": "hang"},
    {"name": "stressor.starting"},
    {"name": "stressor.stopped", "cause": "policy"},
    {"name": "stressor.mismatch", "errors": 7, "checks": 9},
    {"name": "gpu.unknown", "reason": "why"},
    {"name": "gpu.xid", "xid": 79, "repeats": 0, "own": False},
    {"name": "gpu.xid", "xid": 79, "repeats": 4, "own": False},
    {"name": "gpu.xid", "xid": 43, "repeats": 0, "own": True},
    {"name": "gpu.xid", "xid": 2**40, "repeats": 0, "own": False},
)


@contextmanager
def api_with_events(folder: Path) -> Iterator[ApiServer]:
    """Run an API process that has received every kind of event."""
    write_report(folder, {UUIDS[0]: "PASS", UUIDS[1]: "FAIL"})
    notify = NotifySpec(command=("/bin/true",), events=("sentinel.stalled",))
    with ApiServer(folder, tcp=True, metrics=True, notify=notify) as api:
        for event in EVENTS:
            name, *more = event.items()
            api.publish(name[1], gpu=UUIDS[0], **dict(more))
        api.publish("probe.hung")
        api.publish("probe.exited", gpu=UUIDS[1])
        api.publish("driver.unavailable", code="driver_not_loaded")
        yield api


def send_all_views(api: ApiServer) -> None:
    """Reset the fake supervisor and send complete views of two GPUs."""
    findings, name = next(_findings), "sentinel_gpu_findings_total"
    api.reset()
    with api.change_supervisor() as supervisor:
        supervisor.gpus = {UUIDS[index]: full_view(index, findings) for index in range(2)}
    # The exposition may be a quarter of a second old.
    eventually(lambda: value_of(scrape(api), name, gpu="0") == findings)


def get_metrics(api: ApiServer, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Request the metrics at the scrape address."""
    return ask(
        http.client.HTTPConnection("127.0.0.1", api.metrics_port, timeout=TIMEOUT_S), **headers
    )


def ask(
    connection: http.client.HTTPConnection,
    method: str = "GET",
    path: str = "/metrics",
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=sent)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, {k.lower(): v for k, v in response.getheaders()}, body


def samples(text: str) -> Samples:
    """Parse an exposition into samples by name."""
    found: Samples = {}
    for family in parse_text(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def scrape(api: ApiServer) -> Samples:
    status, _, body = get_metrics(api)
    assert status == 200
    return samples(body.decode())


def matching_samples(page: Samples, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
    """Select the samples of this name with these labels."""
    return [found for found in page.get(name, []) if labels.items() <= found[0].items()]


def value_of(page: Samples, name: str, **labels: str) -> float | None:
    """Return the only value of this name with these labels, or None without a sample."""
    found = matching_samples(page, name, **labels)
    assert len(found) <= 1, found
    return found[0][1] if found else None
