"""Metrics have the values of the supervisor's views and events, and no unknown values."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sentinel.api import metrics_page
from sentinel.api.counters import BEGUN_XIDS, BUCKETS
from sentinel.api.metric_table import METRICS
from sentinel.core import gpu_state
from sentinel.protocol.commands import Caller
from sentinel.protocol.gpu import EVENT_REASONS, Telemetry
from sentinel.protocol.views import Allocation, GpuHealth, Phase, VerifiedCounts, VerifiedWork
from sentinel.protocol.xids import XIDS, XidMeaning
from tests.harness.api_harness import UUIDS, ApiServer, UnixConnection, used_gpu
from tests.harness.burnin_report import ENDED
from tests.harness.gpu_environment import ROOT
from tests.harness.metrics_harness import (
    api_with_events,
    ask,
    get_metrics,
    make_telemetry,
    matching_samples,
    samples,
    scrape,
    send_all_views,
    value_of,
)
from tests.harness.narrowing import not_none
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_with_events(tmp_path_factory.mktemp("service")) as api:
        yield api


@pytest.fixture
def api(service: ApiServer) -> ApiServer:
    send_all_views(service)
    return service


# --- values ----------------------------------------------------------------------------------


def test_measurements_are_exported_in_base_units(api: ApiServer) -> None:
    page = scrape(api)
    raw = make_telemetry(0.0)
    wanted = {
        "sentinel_gpu_temperature_celsius": raw.temperature_c,
        "sentinel_gpu_power_watts": raw.power_w,
        "sentinel_gpu_energy_joules_total": raw.energy_j,
        "sentinel_gpu_sm_clock_hertz": (raw.sm_clock_mhz or 0) * 1_000_000,
        "sentinel_gpu_memory_clock_hertz": (raw.memory_clock_mhz or 0) * 1_000_000,
        "sentinel_gpu_nvlink_received_bytes_total": raw.nvlink_rx_bytes_total,
        "sentinel_gpu_fan_speed_ratio": raw.fan_share,
        "sentinel_gpu_row_remap_pending": 0,
        "sentinel_gpu_row_remap_failed": 1,
        "sentinel_gpu_memory_foreign_bytes": 2 * 2**30,
        "sentinel_gpu_memory_budget_bytes": 2**30,
        "sentinel_gpu_multiplier_ratio": 0.25,
        "sentinel_gpu_yields_total": 5,
        "sentinel_gpu_stressor_starts_total": 6,
        "sentinel_gpu_foreign_processes": 1,
    }
    assert {name: value_of(page, name, gpu="0") for name in wanted} == wanted
    kinds = {"corrected": raw.ecc_corrected_total, "uncorrected": raw.ecc_uncorrected_total}
    for kind, value in kinds.items():
        assert value_of(page, "sentinel_gpu_ecc_errors_total", gpu="0", type=kind) == value
    why = "sentinel_gpu_clocks_event_reason"
    assert value_of(page, why, gpu="0", reason="sw_power_cap") == 1
    assert value_of(page, why, gpu="0", reason="gpu_idle") == 0


def test_every_telemetry_field_has_its_own_series(api: ApiServer) -> None:
    page = scrape(api)
    values = [value for found in page.values() for _, value in found]
    raw = make_telemetry(0.0)
    elsewhere = {"at", "reasons", "remap_pending", "remap_failed", "recovery_action"}
    for field in fields(Telemetry):
        if field.name not in elsewhere:
            number = getattr(raw, field.name)
            number *= 1_000_000 if field.name.endswith("_mhz") else 1
            assert values.count(number) == 2, field.name  # one for each GPU


def test_gpu_labels_are_those_of_dcgm_exporter(api: ApiServer) -> None:
    ((labels, _),) = matching_samples(scrape(api), "sentinel_gpu_power_watts", gpu="1")
    assert labels == {
        "gpu": "1",
        "UUID": UUIDS[1],
        "pci_bus_id": "00000000:02:00.0",
        "device": "nvidia1",
        "model_name": "NVIDIA H200",
        "hostname": socket.gethostname(),
    }


def test_no_label_has_unbounded_values(api: ApiServer) -> None:
    text = get_metrics(api)[2].decode()
    found = {
        name for family in parse_text(text) for sample in family.samples for name in sample.labels
    }
    assert found == {label for metric in METRICS for label in metric.labels} | {"le"}
    assert not found & {"pid", "job", "user", "id"}


def test_the_current_state_is_1_and_all_others_are_0(api: ApiServer) -> None:
    page = scrape(api)
    for name, states, now in (
        ("sentinel_gpu_state", metrics_page.OCCUPANCY, "busy"),
        ("sentinel_gpu_stressor_state", metrics_page.STRESSOR, "running"),
        ("sentinel_gpu_admin_state", metrics_page.ADMIN, "enabled"),
        ("sentinel_gpu_health_state", tuple(GpuHealth), "critical"),
    ):
        found = {labels["state"]: value for labels, value in matching_samples(page, name, gpu="0")}
        assert found == {state: float(state == now) for state in states}
    causes = matching_samples(page, "sentinel_gpu_health_cause", gpu="0")
    found = {labels["cause"]: value for labels, value in causes}
    assert found == {"temperature": 1.0, "memory": 0.0, "hardware": 0.0}
    found = {labels["state"]: value for labels, value in matching_samples(page, "sentinel_state")}
    assert found == {phase.value: float(phase == Phase.OCCUPYING) for phase in Phase}


def test_the_exported_states_are_those_of_the_supervisor() -> None:
    stressors = (
        gpu_state.Stopped,
        gpu_state.Starting,
        gpu_state.Running,
        gpu_state.Stopping,
        gpu_state.Backoff,
        gpu_state.Fatal,
    )
    occupancies = (gpu_state.Unknown, gpu_state.Busy, gpu_state.Idle)
    assert [kind.__name__.lower() for kind in stressors] == list(metrics_page.STRESSOR)
    assert [kind.__name__.lower() for kind in occupancies] == list(metrics_page.OCCUPANCY)
    code = (ROOT / "sentinel/core/state.py").read_text()
    assert {"enabled", *map(str.lower, re.findall(r'admin="(\w+)"', code))} == set(
        metrics_page.ADMIN
    )


def test_events_are_counted(api: ApiServer) -> None:
    page = scrape(api)

    def of_gpu(name: str, **labels: str) -> float | None:
        return value_of(page, f"sentinel_gpu_{name}", gpu="0", **labels)

    assert of_gpu("foreign_seen_total") == 4
    assert of_gpu("verification_errors_total") == 7
    assert of_gpu("unknown_total") == 1
    assert of_gpu("xids_total", xid="79") == 5
    assert of_gpu("xids_total", xid="43") is None  # Sentinel's own doing
    assert of_gpu("xids_total", xid="other") == 1
    assert of_gpu("stressor_failures_total", kind="hang") == 1
    assert of_gpu("stressor_failures_total", kind="crash") == 0
    assert of_gpu("stressor_restarts_total", reason="yield") == 1
    assert of_gpu("stressor_restarts_total", reason="hang") == 1
    assert of_gpu("stressor_restarts_total", reason="policy") is None  # there was no second start
    assert of_gpu("handover_kill_seconds_sum") == pytest.approx(0.007)
    assert of_gpu("handover_kill_seconds_bucket", le="0.005") == 0
    assert of_gpu("handover_kill_seconds_bucket", le="0.01") == 1
    assert of_gpu("handover_kill_seconds_bucket", le="+Inf") == 1
    assert of_gpu("handover_exit_seconds_count") == 1
    assert of_gpu("handover_memory_back_seconds_count") == 0  # the event has no measurement
    assert (
        len(matching_samples(page, "sentinel_gpu_handover_kill_seconds_bucket", gpu="0"))
        == len(BUCKETS) + 1
    )
    assert value_of(page, "sentinel_probe_restarts_total", reason="hung") == 1
    assert value_of(page, "sentinel_probe_restarts_total", reason="exited") == 1
    assert value_of(page, "sentinel_driver_failures_total", code="driver_not_loaded") == 1
    assert value_of(page, "sentinel_events_lost_total") == 0


def test_what_is_counted_begins_at_0(api: ApiServer) -> None:
    """Otherwise ``increase()`` misses the first one of a series."""
    faults = {str(xid.number) for xid in XIDS.values() if xid.meaning == XidMeaning.FAIL}
    assert set(BEGUN_XIDS) == {*faults, "other"}
    none = {"power_throttled_s": 0.0, "thermal_throttled_s": 0.0, "reasons": ()}
    api.change_gpu(1, telemetry=make_telemetry(time.monotonic(), **none))
    wanted: dict[str, set[str | None]] = {
        "xids_total": {*BEGUN_XIDS},
        "power_throttled_seconds_total": {None},
        "thermal_throttled_seconds_total": {None},
        "clocks_event_reason": {*EVENT_REASONS.values()},
    }

    def zeros(name: str) -> set[str | None]:
        found = matching_samples(scrape(api), f"sentinel_gpu_{name}", gpu="1")
        return {labels.get("xid", labels.get("reason")) for labels, value in found if value == 0}

    eventually(lambda: all(zeros(name) == labels for name, labels in wanted.items()))


def test_lost_events_are_counted_by_their_numbers(api: ApiServer) -> None:
    api._published += 3
    api.publish("gpu.idle")
    eventually(lambda: value_of(scrape(api), "sentinel_events_lost_total") == 3)


def test_a_malformed_line_is_ignored(api: ApiServer) -> None:
    before = value_of(scrape(api), "sentinel_gpu_verification_errors_total", gpu="1")
    api.publish("stressor.mismatch", gpu=UUIDS[1], errors=None)
    api.publish("gpu.busy", gpu=UUIDS[1], processes="not a list")
    api.publish("gpu.handed_over", gpu=UUIDS[1], processes=[None], kill_s="soon")
    api.publish("stressor.mismatch", gpu=UUIDS[1], errors=2)
    errors = "sentinel_gpu_verification_errors_total"
    eventually(lambda: value_of(scrape(api), errors, gpu="1") == (before or 0) + 2)


def test_stressor_seconds_grow_only_while_a_stressor_runs(api: ApiServer) -> None:
    def stress(gpu: str) -> float:
        return value_of(scrape(api), "sentinel_gpu_stress_seconds_total", gpu=gpu) or 0.0

    began = time.monotonic()  # no view in which GPU 1 is stopped is older
    api.change_gpu(1, stressor="STOPPED", pid=None)
    state = {"gpu": "1", "state": "stopped"}
    eventually(lambda: value_of(scrape(api), "sentinel_gpu_stressor_state", **state) == 1)
    before = (stress("0"), stress("1"))
    eventually(lambda: stress("0") > before[0] + 0.5)
    assert stress("0") - before[0] <= time.monotonic() - began
    assert stress("1") == before[1]


def test_memory_and_cpu_time_are_exported_for_each_own_process(api: ApiServer) -> None:
    page = scrape(api)
    for process in ("supervisor", "service"):
        resident = value_of(page, "sentinel_process_resident_memory_bytes", process=process)
        assert resident is not None
        assert 2**22 < resident < 2**32
    child = not_none(value_of(page, "sentinel_gpu_stressor_resident_memory_bytes", gpu="0"))
    assert child > 2**22


def test_allocated_memory_is_summed_for_each_gpu(api: ApiServer) -> None:
    given = [
        Allocation(id=str(n), gpu=UUIDS[0], size=2**30, by=Caller(via="unix"), since=0.0)
        for n in range(2)
    ]
    api.set(allocations={allocation.id: allocation for allocation in given})
    eventually(lambda: value_of(scrape(api), "sentinel_gpu_allocations", gpu="0") == 2)
    page = scrape(api)
    assert value_of(page, "sentinel_gpu_memory_allocated_bytes", gpu="0") == 2**31
    assert value_of(page, "sentinel_gpu_memory_allocated_bytes", gpu="1") == 0


# --- what is not known -----------------------------------------------------------------------

MEASURED = {metric.name for metric in METRICS if metric.measured and "" in metric.fields}


def measured(api: ApiServer) -> set[str]:
    """Select the exported measurements of the first GPU."""
    page = scrape(api)
    return {name for name in MEASURED if matching_samples(page, name, gpu="0")}


def test_an_unknown_value_has_no_series(api: ApiServer) -> None:
    with api.change_supervisor() as supervisor:
        bare = used_gpu(0)
        supervisor.gpus[UUIDS[0]] = replace(
            bare,
            held=None,
            memory_used=None,
            handover=None,
            processes=(),
            occupancy="UNKNOWN",
            stressor="STOPPED",
        )
    eventually(lambda: not measured(api))
    page = scrape(api)
    names = {name for name in page if matching_samples(page, name, gpu="0")}
    assert not names & {
        "sentinel_gpu_memory_held_bytes",
        "sentinel_gpu_health_state",
        "sentinel_gpu_foreign_processes",
        "sentinel_gpu_clocks_event_reason",
        "sentinel_gpu_telemetry_age_seconds",
        "sentinel_gpu_stressor_resident_memory_bytes",
        "sentinel_gpu_stressor_share_ratio",
    }
    assert value_of(page, "sentinel_gpu_state", gpu="0", state="unknown") == 1
    assert value_of(page, "sentinel_gpu_power_watts", gpu="1") is not None


def test_a_stale_value_is_not_exported(api: ApiServer) -> None:
    old = time.monotonic() - 60
    api.set(stops_reading=True)
    api.change_gpu(read=old, telemetry=make_telemetry(old))
    eventually(lambda: not measured(api))
    page = scrape(api)
    for name in ("reading", "telemetry"):
        age = not_none(value_of(page, f"sentinel_gpu_{name}_age_seconds", gpu="0"))
        assert 60 <= age < 60 + TIMEOUT_S


@pytest.mark.long
def test_only_ages_and_counts_are_exported_for_a_stuck_supervisor(api: ApiServer) -> None:
    api.set(sends_no_views=True)
    eventually(lambda: value_of(scrape(api), "sentinel_up") == 0)
    page = scrape(api)
    assert not MEASURED & page.keys()
    assert not {name for name in page if name.endswith("state")}
    age = not_none(value_of(page, "sentinel_view_age_seconds"))
    assert age >= 5
    assert value_of(page, "sentinel_gpu_yields_total", gpu="0") == 5
    assert value_of(page, "sentinel_gpu_reading_age_seconds", gpu="0") is not None


# --- the page --------------------------------------------------------------------------------


def test_the_exposition_is_text_or_openmetrics(api: ApiServer) -> None:
    _, plain, body = get_metrics(api)
    assert plain["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "sentinel_build_info" in samples(body.decode())
    for accept in (
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=99.0.0;escaping=no-such",
    ):
        _, headers, body = get_metrics(api, accept=accept)
        assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0;")
        families = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]
        assert {family.name for family in families} >= {"sentinel_build"}
    for accept in ("application/openmetrics-text;version=x", "text/plain;version=x", "image/png"):
        assert get_metrics(api, accept=accept)[1]["content-type"] == plain["content-type"]


def test_the_exposition_is_compressed_on_request(api: ApiServer) -> None:
    _, headers, body = get_metrics(api, accept_encoding="gzip")
    assert headers["content-encoding"] == "gzip"
    page = gzip.decompress(body)
    assert "sentinel_build_info" in samples(page.decode())
    assert len(body) < len(page) / 5


def test_metrics_over_the_api_need_its_access_rights(api: ApiServer) -> None:
    def names() -> set[str]:
        status, _, body = ask(UnixConnection(api.path))
        assert status == 200
        return set(samples(body.decode()))

    eventually(lambda: names() >= {"sentinel_up", "sentinel_gpu_power_watts"})

    def over_tcp(**headers: str) -> int:
        to = http.client.HTTPConnection("127.0.0.1", api.port, timeout=TIMEOUT_S)
        return ask(to, **headers)[0]

    token = Path(api.spec.token or "").read_text().strip()
    assert over_tcp(Authorization=f"Bearer {token}") == 200
    assert over_tcp() == 401


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/metrics", 200),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
        ("GET", "/v1/status", 404),
        ("POST", "/v1/stop", 404),
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
    ],
)
def test_the_scrape_endpoint_serves_only_metrics(
    api: ApiServer, method: str, path: str, status: int
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.metrics_port, timeout=TIMEOUT_S)
    got, headers, body = ask(connection, method, path)
    assert got == status
    assert not api.commands
    if method == "HEAD":
        assert int(headers["content-length"]) > 1000
        assert body == b""
    else:
        assert json.loads(body)["status"] == status
        assert headers["content-type"] == "application/problem+json"


def test_many_scrape_connections_do_not_affect_the_api(api: ApiServer) -> None:
    many = [socket.create_connection(("127.0.0.1", api.metrics_port)) for _ in range(200)]
    try:
        many[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert many[-1].recv(64).startswith(b"HTTP/1.1 200")
        assert many[0].recv(64) == b"", "the oldest ones are closed"
        assert ask(UnixConnection(api.path))[0] == 200
    finally:
        for connection in many:
            connection.close()
    eventually(lambda: get_metrics(api)[0] == 200)


@pytest.mark.long
def test_a_replaced_api_process_serves_scrapes_at_the_same_address(tmp_path: Path) -> None:
    with ApiServer(tmp_path, metrics=True) as api:
        began = value_of(scrape(api), "sentinel_service_start_time_seconds")
        api.kill()
        api.start()
        # A connection waits to be accepted; on a busy host, the first views come too late for it.
        eventually(lambda: get_metrics(api)[0] == 200)
        again = value_of(scrape(api), "sentinel_service_start_time_seconds")
        assert began is not None
        assert not_none(again) > began


@pytest.mark.long
def test_without_views_the_exposition_is_unavailable(tmp_path: Path) -> None:
    api = ApiServer(tmp_path, metrics=True)
    api.supervisor.sends_no_views = True
    with api:
        status, _, body = get_metrics(api)
        assert status == 503
        assert json.loads(body)["code"] == "starting"


def test_verified_work_has_only_what_a_crash_leaves(tmp_path: Path) -> None:
    seconds, findings = "sentinel_gpu_verified_seconds_total", "sentinel_gpu_findings_total"
    counts = VerifiedCounts(seconds=60.0, checks=700, errors=7)  # wrong results are stored at once
    with api_with_events(tmp_path) as api:
        api.change_gpu(1, verified=VerifiedWork(counts=counts, at=time.monotonic()))
        eventually(lambda: value_of(scrape(api), seconds, gpu="1") == 60.0)
        more = VerifiedWork(counts=replace(counts, seconds=70.0), at=time.monotonic())
        api.change_gpu(1, verified=more, findings=9)
        eventually(lambda: value_of(scrape(api), findings, gpu="1") == 9)
        assert value_of(scrape(api), seconds, gpu="1") == 60.0


def test_a_gpu_has_what_it_has_proved_and_its_progress_in_a_burn_in(api: ApiServer) -> None:
    seconds = "sentinel_gpu_verified_seconds_total"
    eventually(lambda: value_of(scrape(api), seconds, gpu="1") == 60.0)  # once it is on disk
    samples = scrape(api)
    for name, value in (
        ("verified_seconds_total", 60.0),
        ("verified_results_total", 700.0),
        ("burnin_phase", 3.0),
        ("burnin_phases", 12.0),
        ("burnin_left_seconds", 200.0),
    ):
        ((_, found),) = matching_samples(samples, f"sentinel_gpu_{name}", gpu="1")
        assert found == value, name
    ((_, last),) = matching_samples(samples, "sentinel_gpu_verified_timestamp_seconds", gpu="1")
    assert last == pytest.approx(time.time(), abs=3600)


def test_a_gpu_has_the_verdict_of_its_last_burn_in(api: ApiServer) -> None:
    name = "sentinel_gpu_burnin_verdict"  # the reports are read after the start
    eventually(lambda: matching_samples(scrape(api), name, gpu="0"))
    samples = scrape(api)
    for gpu, verdict in (("0", "pass"), ("1", "fail")):
        found = matching_samples(samples, name, gpu=gpu)
        assert {labels["verdict"] for labels, value in found if value} == {verdict}
        assert len(found) == 5
        ((_, ended),) = matching_samples(samples, "sentinel_gpu_burnin_timestamp_seconds", gpu=gpu)
        assert ended == ENDED.timestamp()
