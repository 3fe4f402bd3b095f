"""The routes of the GPU Management System have its fields and units."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.api.routes.compat_schemas import ConfigChange, Monitoring, as_settings
from sentinel.config.sources import from_flags
from sentinel.protocol.commands import Allocate, Configure, Given
from sentinel.protocol.gpu import Telemetry
from sentinel.protocol.views import GpuHealth, HealthCause
from tests.harness.api_harness import UUIDS, ApiServer, UnixConnection, over_tcp
from tests.harness.api_harness import ask as plain
from tests.harness.given_settings import shown
from tests.harness.openapi_document import openapi_document
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

MIB = 2**20


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    given = from_flags({"memory.target": "50%"})
    folder = tmp_path_factory.mktemp("service")
    with ApiServer(folder, given=given, environment={"HOME": str(folder)}) as api:
        yield api


def ask(api: ApiServer, method: str, path: str, body: object = None) -> tuple[int, Any]:
    connection = UnixConnection(api.path)
    try:
        raw = None if body is None else json.dumps(body)
        headers = {} if raw is None else {"content-type": "application/json"}
        connection.request(method, f"/api/gpu{path}", raw, headers)
        response: http.client.HTTPResponse = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    assert answer["success"] is (response.status == 200)
    if not answer["success"]:
        assert answer.keys() == {"success", "error"}
        assert response.getheader("content-type") == "application/json"
    return response.status, answer


def data(api: ApiServer, path: str) -> Any:
    status, answer = ask(api, "GET", path)
    assert status == 200, answer
    return answer["data"]


def hot(api: ApiServer) -> None:
    api.change_gpu(
        health=GpuHealth.THROTTLED,
        multiplier=0.5,
        temperature_c=80,
        utilization=0.452,
        power_w=450.0,
        memory_used=70 * 2**30,
        telemetry=Telemetry(at=time.monotonic(), fan_share=0.3),
    )


def test_a_gpu_has_the_documented_fields(api: ApiServer) -> None:
    hot(api)
    got = data(api, "/status?gpu_id=0")
    assert got.pop("timestamp") is not None
    assert got == {
        "available": True,
        "gpu_id": 0,
        "name": "NVIDIA H200",
        "state": "throttled",
        "state_color": "orange",
        "temperature_celsius": 80.0,
        "temp_trend": "unknown",
        "load_percent": 45.2,
        "memory": {
            "used_mb": 71680.0,
            "total_mb": 143360.0,
            "percent": 50.0,
            "allocation_stats": {
                "total_mb": 143360.0,
                "limit_mb": 142336.0,
                "allocated_mb": 0.0,
                "available_mb": 142336.0,
                "allocation_count": 0,
                "allocations": {},
            },
        },
        "thresholds": {
            "temp_optimal": 65.0,
            "temp_normal": 75.0,
            "temp_throttle": 85.0,
            "temp_critical": 90.0,
        },
        "throttling": {"is_throttled": True, "should_throttle": True, "speed_multiplier": 0.5},
    }
    every = data(api, "/status/all")
    assert every["gpu_count"] == 2
    # An unreadable value is neither a good state nor zero.
    other = every["gpus"][1]
    assert (other["state"], other["temperature_celsius"]) == ("unavailable", None)


def test_metrics_history_and_trend_have_the_documented_fields(api: ApiServer) -> None:
    hot(api)
    one = data(api, "/metrics?gpu_id=0")
    assert one.keys() == {
        "timestamp",
        "gpu_id",
        "gpu_name",
        "load_percent",
        "memory_used_mb",
        "memory_total_mb",
        "memory_percent",
        "temperature_celsius",
        "fan_speed_percent",
        "power_draw_watts",
        "state",
    }
    assert (one["fan_speed_percent"], one["power_draw_watts"]) == (30.0, 450.0)
    past = data(api, "/metrics/history?gpu_id=0&limit=1")
    assert past["count"] == 1
    assert past["metrics"][0]["temperature_celsius"] == 80.0
    assert past["metrics"][0]["state"] == "throttled"
    assert data(api, "/metrics/history")["count"] >= 2  # of both GPUs
    trend = data(api, "/temperature/trend?gpu_id=0&duration=5")
    assert (trend["duration_minutes"], trend["current_temp"], trend["max_temp"]) == (5, 80.0, 80.0)
    assert trend.keys() >= {"min_temp", "avg_temp", "trend", "sample_count", "is_stable"}


def test_the_throttling_state_is_that_of_the_worst_gpu(api: ApiServer) -> None:
    api.change_gpu(0, health=GpuHealth.OPTIMAL)
    api.change_gpu(1, health=GpuHealth.CRITICAL, multiplier=0.0)
    assert data(api, "/throttle/status") == {
        "should_throttle": True,
        "speed_multiplier": 0.0,
        "is_throttled": True,
        "current_state": "critical",
        "gpu_id": 1,
    }
    # The state and its slowdown are those of the same row of its table, whatever the cause is.
    for cause in (HealthCause.MEMORY, HealthCause.HARDWARE):
        api.change_gpu(1, health=GpuHealth.CRITICAL, health_cause=cause, multiplier=1.0)
        full = data(api, "/throttle/status")
        assert (full["gpu_id"], full["current_state"]) == (1, "critical")
        assert (full["should_throttle"], full["speed_multiplier"]) == (True, 0.0)
    api.change_gpu(1, health=GpuHealth.THROTTLED, health_cause=HealthCause.MEMORY, multiplier=1.0)
    assert data(api, "/status?gpu_id=1")["throttling"]["speed_multiplier"] == 0.5
    api.change_gpu(0, health=GpuHealth.NORMAL, multiplier=0.8)
    normal = data(api, "/throttle/status?gpu_id=0")
    assert (normal["should_throttle"], normal["speed_multiplier"]) == (False, 0.8)


def test_memory_is_allocated_by_the_same_commands(api: ApiServer) -> None:
    body = {"allocation_id": "llm_model", "required_mb": 2048, "gpu_id": 1, "pid": os.getpid()}
    status, made = ask(api, "POST", "/memory/allocate", body)
    assert status == 200, made
    left = 139 * 1024 - 2048
    assert made["data"] == {
        "allocation_id": "llm_model",
        "allocated_mb": 2048.0,
        "available_mb": left,
    }
    order = next(order for order in api.commands if isinstance(order, Allocate))
    assert (order.gpu, order.size) == (UUIDS[1], 2048 * MIB)
    stats = data(api, "/status?gpu_id=1")["memory"]["allocation_stats"]
    assert stats["allocations"] == {"llm_model": 2048.0}
    assert data(api, "/memory/available?gpu_id=1") == {"gpu_id": 1, "available_mb": left}
    status, taken = ask(api, "POST", "/memory/allocate", body)
    assert status == 409
    assert taken["error"] == "GPU 1 has an allocation 'llm_model'."
    status, given = ask(api, "POST", "/memory/deallocate", {"allocation_id": "llm_model"})
    assert given["data"] == {"allocation_id": "llm_model", "available_mb": 139 * 1024}
    assert ask(api, "POST", "/memory/deallocate", {"allocation_id": "llm_model"})[0] == 404


def test_ids_of_allocations_are_per_gpu(api: ApiServer) -> None:
    def allocations(gpu: int) -> dict[str, float]:
        found = data(api, f"/status?gpu_id={gpu}")["memory"]["allocation_stats"]["allocations"]
        assert isinstance(found, dict)
        return found

    def deallocate(**which: int) -> int:
        body = {"allocation_id": "llm_model", **which}
        return ask(api, "POST", "/memory/deallocate", body)[0]

    body = {"allocation_id": "llm_model", "required_mb": 1024, "pid": os.getpid()}
    assert ask(api, "POST", "/memory/allocate", {**body, "gpu_id": 0})[0] == 200
    assert deallocate(gpu_id=1) == 404, "it is on GPU 0"
    assert ask(api, "POST", "/memory/allocate", {**body, "gpu_id": 1, "required_mb": 512})[0] == 200
    assert (allocations(0), allocations(1)) == ({"llm_model": 1024.0}, {"llm_model": 512.0})
    assert deallocate() == 200, "GPU 0 is the default"
    assert (allocations(0), allocations(1)) == ({}, {"llm_model": 512.0})
    assert deallocate(gpu_id=0) == 404
    assert deallocate() == 200, "it is the only one"
    assert (allocations(0), allocations(1)) == ({}, {})
    made = {"gpu": "1", "size": 2**20, "pid": os.getpid()}
    assert plain(api, "PUT", "/v1/allocations/llm_model", made).status == 200
    assert deallocate(gpu_id=1) == 200, "Sentinel's own route has made it"


def test_a_misspelt_field_of_an_allocation_is_answered_with_the_right_one(api: ApiServer) -> None:
    status, answer = ask(api, "POST", "/memory/allocate", {"id": "llm", "required_mb": 1})
    assert status == 422
    assert "id: there is no such field; did you mean allocation_id?" in answer["error"]


@pytest.mark.long
def test_a_stop_of_monitoring_stops_the_history_until_the_next_start(api: ApiServer) -> None:
    hot(api)

    def newest() -> str:
        return str(data(api, "/metrics/history?gpu_id=0&limit=1")["metrics"][0]["timestamp"])

    def newest_read() -> str:
        path = "/v1/history/readings?gpu=0&since=1m&points=3600"
        return str(plain(api, "GET", path).body["readings"][-1]["at"])

    assert ask(api, "PUT", "/config", {"monitor_interval": 1})[0] == 200
    begin = newest_read()
    eventually(lambda: newest()[:19] > begin[:19])
    status, answer = ask(api, "POST", "/monitoring/stop")
    assert (status, answer.keys()) == (200, {"success", "message"})
    stopped = newest_read()
    eventually(lambda: newest_read() > stopped)  # the second of the stop is over
    last, samples = newest(), data(api, "/temperature/trend?gpu_id=0")["sample_count"]
    later = newest_read()
    eventually(lambda: newest_read() > later)  # the daemon goes on
    assert newest() == last
    assert data(api, "/temperature/trend?gpu_id=0")["sample_count"] == samples
    assert data(api, "/metrics?gpu_id=0")["temperature_celsius"] == 80.0
    assert ask(api, "POST", "/monitoring/start")[0] == 200
    eventually(lambda: newest() > last)
    assert ask(api, "PUT", "/config", {"monitor_interval": 3})[0] == 200
    assert [order for order in api.commands if not isinstance(order, Configure)] == []


def given(api: ApiServer) -> dict[str, str]:
    """Return the settings of the last Configure."""
    order = next(order for order in reversed(api.commands) if isinstance(order, Configure))
    return {value.key: value.text for value in order.given}


def test_the_configuration_maps_sentinels_settings_to_its_names(api: ApiServer) -> None:
    change = {"temp_throttle": 80, "memory_limit_mb": 7168, "memory_normal": 80, "history_size": 50}
    status, changed = ask(api, "PUT", "/config", change)
    assert status == 200, changed
    assert changed["message"].endswith("only with `--throttle full`"), "memory_normal"
    assert (
        ask(api, "PUT", "/config", {"temp_throttle": 80})[1]["message"] == "Configuration updated"
    )
    assert given(api) == {
        "memory.target": "50%",
        "throttle.temp_critical_from": "80",
        "throttle.memory_throttled_from": "80%",
        "budget.limit": "7168MiB",
    }
    config = data(api, "/config")
    assert config == changed["data"]
    assert {key: config[key] for key in change} == change
    assert (config["temp_optimal"], config["memory_optimal"]) == (65.0, 70.0)
    assert (config["throttle_cooldown_seconds"], config["critical_pause_seconds"]) == (30.0, 60.0)
    assert (config["memory_reserve_mb"], config["monitor_interval"]) == (512.0, 3)
    back = {"temp_throttle": 85, "memory_normal": 85, "history_size": 200, "memory_limit_mb": None}
    assert ask(api, "PUT", "/config", back)[0] == 200


#: From the document of the GPU Management System.
DEFAULTS = {
    "temp_optimal": 65,
    "temp_normal": 75,
    "temp_throttle": 85,
    "temp_critical": 90,
    "memory_optimal": 70,
    "memory_normal": 85,
    "memory_critical": 95,
    "memory_limit_mb": 6144,
    "memory_reserve_mb": 512,
    "monitor_interval": 3,
    "history_size": 200,
}


def test_its_own_default_configuration_is_accepted_and_so_is_what_it_returns(
    api: ApiServer,
) -> None:
    status, changed = ask(api, "PUT", "/config", DEFAULTS)
    assert status == 200, changed
    assert {key: changed["data"][key] for key in DEFAULTS} == DEFAULTS
    status, again = ask(api, "PUT", "/config", changed["data"])
    assert (status, again["data"]) == (200, changed["data"])
    assert ask(api, "PUT", "/config", {"memory_limit_mb": None})[0] == 200


def test_null_removes_the_limit_and_zero_the_reserve(api: ApiServer) -> None:
    assert ask(api, "PUT", "/config", {"memory_limit_mb": 6144})[0] == 200
    assert given(api)["budget.limit"] == "6144MiB"
    change = {"memory_limit_mb": None, "memory_reserve_mb": 0}
    status, changed = ask(api, "PUT", "/config", change)
    assert status == 200, changed
    assert {key: changed["data"][key] for key in change} == change
    # Not only the flag is removed: a file may have a limit, too.
    assert (given(api)["budget.limit"], given(api)["budget.keep_unallocated"]) == ("off", "0MiB")
    assert ask(api, "PUT", "/config", {"memory_reserve_mb": 512})[0] == 200


@pytest.mark.parametrize(
    ("health", "color"),
    [
        (GpuHealth.OPTIMAL, "green"),
        (GpuHealth.NORMAL, "blue"),
        (GpuHealth.THROTTLED, "orange"),
        (GpuHealth.CRITICAL, "red"),
        (None, "gray"),
    ],
)
def test_each_state_has_its_colour(api: ApiServer, health: GpuHealth | None, color: str) -> None:
    api.change_gpu(health=health)
    assert data(api, "/status")["state_color"] == color


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("POST", "/status", 405), ("DELETE", "/config", 405)],
)
def test_an_unknown_path_or_method_has_the_documented_form_of_errors(
    api: ApiServer, method: str, path: str, status: int
) -> None:
    got, answer = ask(api, method, path)
    assert got == status
    assert answer["error"]


def test_malformed_json_has_the_documented_form_of_errors(api: ApiServer) -> None:
    connection = UnixConnection(api.path)
    connection.request("PUT", "/api/gpu/config", "{", {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.status == 422
    assert json.loads(response.read()).keys() == {"success", "error"}
    connection.close()


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (70.1 + 1e-14, "70.1"),
        (80.0, "80"),
        (0.0, "0"),
        (0.1 + 0.2, "0.3"),
        (66.125, "66.125"),
        (1e15, "1000000000000000"),
    ],
)
def test_numbers_are_formatted_as_in_the_configuration_file(number: float, text: str) -> None:
    change = ConfigChange(memory_reserve_mb=number)
    assert as_settings(change) == {"budget.keep_unallocated": f"{text}MiB"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"temp_max": 80}, "The keys are: temp_optimal, temp_normal,"),
        ({"temp_throttle": "hot"}, 'temp_throttle: "hot" is not a number'),
        ({"temp_throttle": 500}, "^temp_throttle: 500 is above 120. "),
        ({"memory_limit_mb": -4}, "^memory_limit_mb: -4 is not above 0. "),
        ({"memory_reserve_mb": -0.5}, "^memory_reserve_mb: -0.5 is below 0. "),
        ({"memory_optimal": 0}, "^memory_optimal: 0 is not above 0. "),
        ({"memory_critical": 120}, "^memory_critical: 120 is above 100. "),
        ({"critical_pause_seconds": -4}, "^critical_pause_seconds: -4 is below 0.1. "),
        (
            {"temp_optimal": 64.123456789},
            "'64.123456789' is not a temperature; write degrees Celsius",
        ),
        ({"temp_optimal": 64.123456789}, "three decimals"),
        ({"throttle_cooldown_seconds": 1e-05}, "1e-05 is below 0.1"),
        (
            {"temp_throttle": 70},
            "temp_normal is 75 and temp_throttle is 70\ntemp_normal must be below temp_throttle",
        ),
        (
            {"memory_optimal": 90, "memory_normal": 70},
            "^memory_optimal, memory_normal: memory_optimal is 90% and memory_normal is 70%\n",
        ),
        ({"temp_thottle": 70}, "temp_thottle: there is no such field; did you mean temp_throttle?"),
        ({"monitor_interval": 0}, "monitor_interval: 0 is below 1"),
        ({"temp_optimal": None}, "temp_optimal: null is not a number"),
        ({"history_size": None}, "history_size: null is not a number"),
        ({"history_size": 0}, "history_size: 0 is below 1"),
    ],
)
def test_an_invalid_change_is_refused_with_its_field_and_value_and_changes_nothing(
    api: ApiServer, change: dict[str, Any], expected: str
) -> None:
    before = data(api, "/config")
    status, answer = ask(api, "PUT", "/config", change)
    assert status == 422
    assert expected in f"^{answer['error']}. "
    assert data(api, "/config") == before
    assert api.commands == []


@pytest.mark.parametrize(
    "path", ["/status?gpu_id=9", "/metrics?gpu_id=9", "/memory/available?gpu_id=9"]
)
def test_an_unknown_gpu_is_an_error(api: ApiServer, path: str) -> None:
    status, answer = ask(api, "GET", path)
    assert status == 404
    assert answer["error"] == "gpu_id: no GPU matches '9'; there are: 0-1."


@pytest.mark.long
def test_the_settings_in_use_are_shown_and_not_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[throttle]\ntemp_critical_from = 81\n")
    source = f"{file}: throttle.temp_critical_from"
    hot = Given(key="throttle.temp_critical_from", text="83", source=source)
    values = (hot, *from_flags({"util.target": "50%"}), replace(hot, gpu="1"))
    expected: dict[str, Any] = {"config": str(file), "given": values}
    with ApiServer(tmp_path, environment={"HOME": str(tmp_path)}, **expected) as api:
        found = plain(api, "GET", "/v1/settings").body
        assert shown(found)[hot.key] == ("83", source)
        assert shown(found, "1") == {hot.key: ("83", source)}
        assert data(api, "/config")["temp_throttle"] == 83
        assert data(api, "/status")["thresholds"]["temp_throttle"] == 83
        file.write_text("[throttle]\ntemp_critical_from = 82\n")
        assert plain(api, "POST", "/v1/reload").status == 200
        assert given(api) == {hot.key: "82", "util.target": "50%"}
        assert data(api, "/config")["temp_throttle"] == 82
        assert shown(plain(api, "GET", "/v1/settings").body, "1") == {}


@pytest.mark.long
def test_a_request_without_access_has_the_form_of_these_routes(tmp_path: Path) -> None:
    """A token that is missing, and a name of the host that is not its own."""
    with ApiServer(tmp_path, tcp=True) as api:
        for headers, status in (({}, 401), ({"Host": "elsewhere"}, 403)):
            connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=TIMEOUT_S)
            connection.request("GET", "/api/gpu/status", headers=headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            connection.close()
            assert (response.status, answer["success"]) == (status, False)
            assert answer.keys() == {"success", "error"}
            assert over_tcp(api, headers=headers, name=None).status == status


def test_the_openapi_document_is_that_of_the_daemon() -> None:
    paths = openapi_document()["paths"]
    ours = {path.removeprefix("/api/gpu"): set(paths[path]) for path in paths if "/api/gpu" in path}
    assert ours == {
        "/status": {"get"},
        "/status/all": {"get"},
        "/metrics": {"get"},
        "/metrics/history": {"get"},
        "/temperature/trend": {"get"},
        "/memory/available": {"get"},
        "/memory/allocate": {"post"},
        "/memory/deallocate": {"post"},
        "/throttle/status": {"get"},
        "/monitoring/start": {"post"},
        "/monitoring/stop": {"post"},
        "/config": {"get", "put"},
    }


def test_readings_of_a_pause_are_left_out() -> None:
    times = iter((10.0, 20.0))
    one = Monitoring(lambda: next(times))
    assert one.includes(5.0)
    one.stop()
    one.stop()  # has no effect
    assert [one.includes(at) for at in (9.0, 10.0, 20.0)] == [True, False, False]
    one.start()
    one.start()
    assert [one.includes(at) for at in (9.0, 10.0, 19.0, 20.0)] == [True, False, False, True]
