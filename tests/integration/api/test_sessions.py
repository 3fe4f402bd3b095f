"""Sessions over the API: started, listed, stored and ended by their names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.host.timed_file import SESSIONS, Clocks
from sentinel.protocol.commands import AccessPolicy, EndSession, Level, StartSession
from tests.harness.api_harness import UUIDS, ApiServer, Reply, ask, check_problem, over_tcp
from tests.harness.given_settings import shown


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path) as api:
        yield api


def start(api: ApiServer, **wish: Any) -> Reply:
    return ask(api, "POST", "/v1/sessions", {"name": "train", "gpus": ["1"], **wish})


def on_disk(api: ApiServer) -> list[str]:
    return [
        one.name for one in SESSIONS.load(Path(api.spec.state) / SESSIONS.name, Clocks.read())[0]
    ]


def test_a_session_is_on_disk_when_it_is_acknowledged(api: ApiServer) -> None:
    settings = {"workload": "hold", "memory.target": "1GiB"}
    started = start(api, settings=settings, seconds=60)
    assert started.status == 201
    assert on_disk(api) == ["train"]
    session = started.body["session"]
    assert (session["name"], session["gpus"]) == ("train", [UUIDS[1]])
    assert session["settings"] == settings
    assert session["indices"] == [1]
    assert session["until"] is not None
    (command,) = api.commands
    assert isinstance(command, StartSession)
    assert command.settings == settings
    assert ask(api, "GET", "/v1/sessions").body["sessions"] == [session]
    assert ask(api, "GET", "/v1/status").body["sessions"] == [session]
    found = shown(ask(api, "GET", "/v1/settings").body, UUIDS[1])
    assert found["workload"] == ("hold", "session train: workload")

    ended = ask(api, "DELETE", "/v1/sessions/train")
    assert ended.status == 200
    assert ended.body["gpus"] == [UUIDS[1]]
    assert on_disk(api) == []
    for name in ("train", "a%2Fb"):
        again = ask(api, "DELETE", f"/v1/sessions/{name}")
        check_problem(again, 404, "not_found", f"no session {name.replace('%2F', '/')!r}")


@pytest.mark.parametrize(
    ("wish", "code", "why"),
    [
        ({"gpus": ["7"]}, "no_such_gpu", "'7'"),
        ({"gpus": []}, "invalid", "gpus"),
        ({"gpus": [0]}, "invalid", 'gpus[0]: 0 is not text; write "0"'),
        ({"gpus": [True]}, "invalid", "gpus[0]: true is not text."),
        (
            {"name": "bad name"},
            "invalid",
            'name: "bad name" is not allowed; use 1 to 64 letters, digits or ._:-; begin',
        ),
        ({"name": "7" * 81}, "invalid", f'name: "{"7" * 80}..." is not allowed'),
        ({"settings": {"powr": "1W"}}, "invalid", "Did you mean power?"),
        ({"settings": {"poll": "1s"}}, "invalid", "poll cannot be set for single GPUs"),
        ({"settings": {"workload": "holt"}}, "invalid", "Did you mean hold?"),
        ({"settings": {"workload": "gemm:size=x"}}, "invalid", "size='x' is not a whole number"),
        ({"seconds": -1}, "invalid", "seconds"),
        ({"setings": {}}, "invalid", "setings"),
    ],
)
def test_an_invalid_session_is_refused(
    api: ApiServer, wish: dict[str, Any], code: str, why: str
) -> None:
    refused = start(api, **wish)
    assert refused.body["code"] == code
    assert why in refused.body["detail"]
    assert api.commands == []


def test_a_session_that_cannot_be_stored_is_refused_before_a_stressor_is_stopped(
    api: ApiServer,
) -> None:
    assert start(api).status == 201
    draft = Path(api.spec.state) / f"{SESSIONS.name}.new"
    draft.mkdir()  # in place of the draft of the file
    api.commands.clear()
    refused = start(api, name="other", gpus=["0"])
    check_problem(refused, 503, "unavailable")
    assert api.commands == []
    over = ask(api, "DELETE", "/v1/sessions/train")
    assert over.status == 503
    assert "another daemon would restore it" in over.body["detail"]
    assert [type(command) for command in api.commands] == [EndSession]
    # Ended before, and still in the file: a second request says so as well.
    assert ask(api, "DELETE", "/v1/sessions/train").status == 503


def test_sessions_are_for_administrators_and_registered_workloads(tmp_path: Path) -> None:
    body = {"name": "a", "gpus": ["0"], "settings": {"workload": "hold"}}
    policy = AccessPolicy(tcp=Level.OPERATE, workloads=("hold",))
    with ApiServer(tmp_path, tcp=True, access=policy) as api:
        assert over_tcp(api, "POST", "/v1/sessions", body).status == 403
        assert over_tcp(api, "DELETE", "/v1/sessions/a").status == 403
        assert over_tcp(api, "GET", "/v1/sessions").status == 200
        assert api.commands == []
    (tmp_path / "sentinel.sock").unlink()
    policy = AccessPolicy(tcp=Level.ADMINISTER, workloads=("hold",))
    with ApiServer(tmp_path, tcp=True, access=policy) as api:
        code = {**body, "settings": {"workload": "tmp.evil:run"}}
        refused = over_tcp(api, "POST", "/v1/sessions", code)
        assert refused.status == 403
        assert "only the daemon's own user and root" in refused.body["detail"]
        assert over_tcp(api, "POST", "/v1/sessions", body).status == 201
