"""The API serves the supervisor's views and forwards commands."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.client import connect
from sentinel.host.procfs import own_stat
from sentinel.protocol.api_types import GpuVerdict
from sentinel.protocol.commands import (
    CommandReply,
    Configure,
    PauseGpus,
    Refusal,
    ReloadConfig,
    ResumeGpus,
    StopDaemon,
)
from sentinel.protocol.views import Phase
from tests.harness.api_harness import UUIDS, ApiServer, ask, check_problem, in_background
from tests.harness.burnin_report import ENDED, write_report
from tests.harness.given_settings import texts_of, texts_of_gpus
from tests.harness.sentinel_process import eventually


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder = tmp_path_factory.mktemp("service")
    config = folder / "config.toml"
    config.write_text('poll = "2s"\n[gpu.1]\nworkload = "hold"\n')
    with ApiServer(folder, config=str(config), environment={"SENTINEL_REARM": "7s"}) as api:
        yield api


@pytest.fixture
def api(service: ApiServer) -> ApiServer:
    service.reset()
    (Path(service.spec.state) / "config.toml").write_text(
        'poll = "2s"\n[gpu.1]\nworkload = "hold"\n'
    )
    return service


# --- looking ---------------------------------------------------------------------------------


def test_the_status_has_daemon_gpus_ages_and_reservations(api: ApiServer) -> None:
    ask(api, "PUT", "/v1/reservations/1a2b3c4d", {"gpus": ["1"], "seconds": 60, "reason": "demo"})
    status = ask(api, "GET", "/v1/status").body
    assert status["daemon"]["phase"] == "occupying"
    assert status["daemon"]["socket"] == api.path
    assert status["daemon"]["version"] == "1.2.3"
    assert status["daemon"]["age_s"] < 5
    assert "+" in status["daemon"]["since"] or status["daemon"]["since"].endswith("Z")
    first, second = status["gpus"]
    assert first["gpu"] == "GPU-aaaa1111"
    assert first["uuid"] == UUIDS[0]
    assert 90 <= first["since_s"] < 200
    assert 60 <= first["handover"]["ago_s"] < 200
    assert first["processes"][0]["user"] == "anna"
    assert first["until_s"] is None
    assert second["stressor"] == "STOPPED"
    (reservation,) = status["reservations"]
    assert reservation["gpus"] == [UUIDS[1]]
    assert reservation["indices"] == [1]
    assert reservation["holder"] == {
        "uid": os.getuid(),
        "user": pwd.getpwuid(os.getuid()).pw_name,
        "pid": os.getpid(),
        "name": own_stat().name,
    }


def test_a_gpu_has_the_verdict_of_its_last_burn_in(tmp_path: Path) -> None:
    write_report(tmp_path, {UUIDS[1]: "PASS"})
    with ApiServer(tmp_path) as api:
        eventually(lambda: connect(api.path).gpu(1).verdict is not None)
        first, second = connect(api.path).status().gpus
    assert first.verdict is None
    assert second.verdict == GpuVerdict(verdict="PASS", plan="standard", run="run-1", ended=ENDED)


@pytest.mark.parametrize(
    ("selector", "index"),
    [("0", 0), (UUIDS[1], 1), ("gpu-aabb", 1), ("00000000:02:00.0", 1), ("1:0.0", 0)],
)
def test_a_gpu_is_found_by_each_selector(api: ApiServer, selector: str, index: int) -> None:
    found = ask(api, "GET", f"/v1/gpus/{selector}")
    assert found.status == 200
    assert found.body["index"] == index


@pytest.mark.parametrize(
    ("selector", "status", "code"),
    [("7", 404, "no_such_gpu"), ("GPU-aa", 404, "no_such_gpu"), ("all", 422, "invalid")],
)
def test_an_ambiguous_or_unknown_selector_is_refused_with_the_candidates(
    api: ApiServer, selector: str, status: int, code: str
) -> None:
    refused = ask(api, "GET", f"/v1/gpus/{selector}")
    check_problem(refused, status, code)


# --- orders ----------------------------------------------------------------------------------


def test_each_command_has_its_caller(api: ApiServer) -> None:
    ask(api, "POST", "/v1/resume")
    by = api.commands[-1].by
    assert (by.via, by.uid, by.pid) == ("unix", os.getuid(), os.getpid())
    assert by.started == own_stat().started


def test_a_resume_a_stop_and_a_restart_are_passed_on(api: ApiServer) -> None:
    resumed = ask(api, "POST", "/v1/resume", {})
    assert resumed.body["text"] == "idle GPUs are occupied"
    assert resumed.body["gpus"] == list(UUIDS)
    assert ask(api, "POST", "/v1/stop").status == 200
    assert ask(api, "POST", "/v1/restart").status == 200
    resume, stop, restart = api.commands
    assert isinstance(resume, ResumeGpus)
    assert isinstance(stop, StopDaemon)
    assert isinstance(restart, StopDaemon)
    assert (stop.restart, restart.restart) == (False, True)


def test_a_pause_of_all_is_answered_when_all_memory_is_free(api: ApiServer) -> None:
    api.set(keeps_memory=True)
    with in_background(lambda: ask(api, "POST", "/v1/pause")) as replies:
        api.wait_for(lambda: bool(api.commands))
        time.sleep(0.1)  # a reply would have arrived by now
        assert not replies
        with api.change_supervisor() as supervisor:
            supervisor.free_memory()
    assert replies[0].status == 200


def test_a_pause_that_times_out_names_the_held_gpus(api: ApiServer) -> None:
    api.set(keeps_memory=True)
    late = ask(api, "POST", "/v1/pause", {"wait_s": 0.1})
    check_problem(late, 504, "timeout", "GPUs 0-1 (stopping for up to", "2.0 GiB in all")
    assert ask(api, "POST", "/v1/pause", {"wait_s": 0}).status == 200


@pytest.mark.parametrize("left", [{"leaked": True}, {"ended": 3.0}, {"read": None}])
def test_a_pause_is_not_answered_before_a_reading_shows_the_memory_free(
    api: ApiServer, left: dict[str, Any]
) -> None:
    with api.change_supervisor() as supervisor:
        view = replace(supervisor.gpus[UUIDS[1]], stressor="STOPPED", ended=1.0, read=2.0)
        supervisor.gpus[UUIDS[1]] = replace(view, **left)
    late = ask(api, "POST", "/v1/pause", {"wait_s": 0.1})
    check_problem(late, 504, "timeout")
    with api.change_supervisor() as supervisor:  # a foreign process has no effect
        supervisor.gpus[UUIDS[1]] = replace(view, occupancy="BUSY")
    assert ask(api, "POST", "/v1/pause").status == 200
    with api.change_supervisor() as supervisor:  # no GPU is read after the release of the driver
        supervisor.gpus[UUIDS[1]] = replace(view, **left)
    assert ask(api, "POST", "/v1/pause", {"release": True}).status == 200


def test_a_pause_accepts_any_selector_and_waits_only_for_its_gpus(api: ApiServer) -> None:
    paused = ask(api, "POST", "/v1/pause", {"gpus": ["GPU-aabb"], "seconds": 60})
    assert paused.body["gpus"] == [UUIDS[1]]
    (order,) = api.commands
    assert isinstance(order, PauseGpus)
    assert (order.gpus, order.seconds, order.release) == ((UUIDS[1],), 60, False)
    assert ask(api, "POST", "/v1/resume", {"gpus": ["1"]}).status == 200
    assert isinstance(api.commands[-1], ResumeGpus)
    assert ask(api, "POST", "/v1/pause", {"gpus": ["5"]}).body["code"] == "no_such_gpu"


def test_a_pause_that_releases_the_driver_waits_until_it_is_released(api: ApiServer) -> None:
    assert ask(api, "POST", "/v1/pause", {"release": True}).status == 200
    assert api.supervisor.phase is Phase.RELEASED


@pytest.mark.long
def test_a_silent_supervisor_is_reported_to_clients(api: ApiServer) -> None:
    assert ask(api, "GET", "/v1/health").status == 200
    api.set(sends_no_replies=True, sends_no_views=True)
    began = time.monotonic()
    silent = ask(api, "POST", "/v1/resume")
    check_problem(silent, 503, "unavailable")
    assert time.monotonic() - began > 4.5
    while (health := ask(api, "GET", "/v1/health")).status == 200:
        pass
    check_problem(health, 503, "unavailable")
    assert ask(api, "GET", "/v1/status").body["daemon"]["age_s"] > 4  # with its age


# --- settings --------------------------------------------------------------------------------


def test_a_reload_reads_flags_variables_and_the_file_again(api: ApiServer) -> None:
    assert ask(api, "POST", "/v1/reload").status == 200
    (order,) = api.commands
    assert isinstance(order, Configure)
    assert texts_of(order.given) == {"poll": "2s", "rearm": "7s"}
    assert texts_of_gpus(order.given) == {"1": {"workload": "hold"}}


def test_a_reload_of_an_invalid_file_changes_nothing_and_has_a_reason(api: ApiServer) -> None:
    Path(api.spec.config or "").write_text('poll = "a while"\n')
    refused = ask(api, "POST", "/v1/reload")
    check_problem(refused, 422, "invalid", "config.toml: poll: 'a while' is not a duration")
    assert not api.commands


def test_settings_that_were_refused_are_not_kept(api: ApiServer) -> None:
    api.set(configure_error="no", phase=Phase.RELEASED)
    changes = {"settings": {"poll": "700ms"}}
    refused = ask(api, "PATCH", "/v1/settings", changes)
    assert (refused.status, refused.body["detail"]) == (422, "no")
    assert [type(order) for order in api.commands] == [Configure]
    assert api.supervisor.phase is Phase.RELEASED
    api.set(configure_error=None)
    assert ask(api, "POST", "/v1/reload").status == 200
    reload = api.commands[-1]
    assert isinstance(reload, Configure)
    assert "700ms" not in [value.text for value in reload.given]


def test_settings_are_read_again_at_the_supervisors_request(api: ApiServer) -> None:
    api.send(ReloadConfig())
    api.wait_for(lambda: bool(api.commands))
    assert isinstance(api.commands[0], Configure)
    Path(api.spec.config or "").write_text("polll = 1\n")
    api.send(ReloadConfig())
    api.wait_for(lambda: bool(api.warnings))
    assert api.warnings[0].about == "settings"
    assert "Did you mean poll" in api.warnings[0].text


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nothing", None, 404, "not_found"),
        ("GET", "/page/../gate.py", None, 404, "not_found"),
        ("GET", "/v2/status", None, 404, "not_found"),
        ("DELETE", "/v1/status", None, 405, "invalid"),
        ("BREW", "/v1/status", None, 405, "invalid"),
        ("POST", "/v1/pause", b"{", 422, "invalid"),
        ("POST", "/v1/pause", b"\xff\xfe", 422, "invalid"),
        ("POST", "/v1/pause", b"[" * 30_000, 422, "invalid"),
        ("POST", "/v1/pause", {"wait": 3}, 422, "invalid"),
        ("POST", "/v1/pause", {"wait_s": "3"}, 422, "invalid"),
        ("POST", "/v1/pause", b'{"wait_s": NaN}', 422, "invalid"),
        ("POST", "/v1/pause", {"gpus": []}, 422, "invalid"),
        ("POST", "/v1/pause", {"seconds": 0}, 422, "invalid"),
        ("PUT", "/v1/reservations/1a2b3c4d", {}, 422, "invalid"),
        ("PUT", "/v1/reservations/no%20id", {"count": 1}, 422, "invalid"),
        ("PUT", "/v1/reservations/1a2b3c4d", {"count": 1}, 422, "invalid"),
        ("PUT", "/v1/reservations/1a2b3c4d", {"count": 1, "reason": "a\nb"}, 422, "invalid"),
        ("DELETE", "/v1/reservations/none", None, 404, "not_found"),
        ("GET", "/v1/events?since=x", None, 422, "invalid"),
        ("POST", "/v1/pause", b" " * 70_000, 413, "too_large"),
        ("POST", "/v1/pause", b" " * 1_000_000, 413, "too_large"),
    ],
)
def test_every_error_has_one_shape(
    api: ApiServer, method: str, path: str, body: object, status: int, code: str
) -> None:
    refused = ask(api, method, path, body)
    check_problem(refused, status, code)
    assert not any(isinstance(order, PauseGpus) for order in api.commands)


@pytest.mark.parametrize(("refusal", "status"), [(Refusal.ENDING, 503), (Refusal.CONFLICT, 409)])
def test_a_rejection_of_the_supervisor_becomes_a_status_code(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, refusal: Refusal, status: int
) -> None:
    answer = api.supervisor.reply_to

    def refuse(order: ResumeGpus) -> CommandReply:
        return replace(answer(order), refused=refusal, text="no")

    monkeypatch.setattr(api.supervisor, "reply_to", refuse)
    refused = ask(api, "POST", "/v1/resume")
    check_problem(refused, status, refusal.value)


@pytest.mark.long
def test_a_daemon_with_a_lost_socket_requests_its_stop(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as api:
        Path(api.path).rename(tmp_path / "elsewhere")
        api.wait_for(lambda: bool(api.commands))
        (order,) = api.commands
        assert isinstance(order, StopDaemon)
        assert [trouble.about for trouble in api.warnings] == ["socket"]
