"""The change feed sends the complete status, then changes once a second, and events."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.api import event_streams as watches
from sentinel.api.app import HEADERS, PUBLIC_PATHS
from sentinel.api.event_streams import SUBSCRIBERS, ChangeFeed, EventBuffer, LoggedEvent
from sentinel.api.snapshots import Views
from sentinel.protocol.api_types import Changes
from sentinel.protocol.commands import ApiSpec
from sentinel.protocol.views import HostView, LogRecord, Phase
from tests.harness.api_harness import UUIDS, ApiServer, ask, exchange
from tests.harness.sse_reader import Event, following
from tests.harness.timing import TIMEOUT_S


def watching(api: ApiServer, query: str = "") -> AbstractContextManager[Iterator[Event]]:
    return following(api, f"/v1/watch{query}")


def until(stream: Iterator[Event], name: str) -> Event:
    return next(event for event in stream if event.name == name)


def test_the_first_message_is_the_complete_status(api: ApiServer) -> None:
    with watching(api) as stream:
        first = next(stream)
        assert first.name == "status"
        assert first.data.keys() == ask(api, "GET", "/v1/status").body.keys()
        assert [gpu["uuid"] for gpu in first.data["gpus"]] == list(UUIDS)
        assert first.data["daemon"]["tcp"] == f"127.0.0.1:{api.port}"


@pytest.mark.long
def test_later_messages_have_only_changes(api: ApiServer) -> None:
    with watching(api) as stream:
        next(stream)
        quiet = [until(stream, "changes").data for _ in range(2)]
        assert quiet[-1].keys() == {
            *("schema_version", "age_s", "daemon", "gpus", "reservations", "queue", "allocations"),
            "sessions",
        }
        assert (quiet[-1]["gpus"], quiet[-1]["daemon"], quiet[-1]["reservations"]) == (
            *([], None, None),
        )
        with api.change_supervisor() as supervisor:
            supervisor.gpus[UUIDS[1]] = replace(supervisor.gpus[UUIDS[1]], temperature_c=71)
            supervisor.phase = Phase.WAITING
        changed = next(one.data for one in stream if one.data.get("gpus"))
        assert [gpu["temperature_c"] for gpu in changed["gpus"]] == [71]
        assert changed["daemon"]["phase"] == "waiting"
        assert changed["reservations"] is None


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("PUT", "/v1/reservations/1a2b3c4d", {"count": 1, "seconds": 60}, "reservations"),
        pytest.param(
            *("POST", "/v1/sessions", {"name": "train", "gpus": ["0"]}, "sessions"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_start_and_the_end_of_what_a_client_has_are_changes(
    api: ApiServer, method: str, path: str, body: dict[str, Any], kind: str
) -> None:
    with watching(api) as stream:
        next(stream)
        assert until(stream, "changes").data[kind] is None
        assert ask(api, method, path, body).status < 300
        assert len(next(one.data[kind] for one in stream if one.data.get(kind))) == 1
        ask(api, "DELETE", path if method == "PUT" else f"{path}/train")
        while next(one.data[kind] for one in stream if one.data.get(kind) is not None):
            pass  # the end of a lease is a change as well


@pytest.mark.long
def test_changes_are_sent_at_most_once_a_second(api: ApiServer) -> None:
    with watching(api) as stream:
        next(stream)
        until(stream, "changes")
        began = time.monotonic()
        for degrees in range(20):
            api.change_gpu(temperature_c=degrees)
        seen: list[int] = []
        while not seen or seen[-1] != 19:
            data = until(stream, "changes").data
            seen += [gpu["temperature_c"] for gpu in data["gpus"]]
        assert len(seen) <= 2 + (time.monotonic() - began)


def test_missed_events_are_sent_before_new_ones(api: ApiServer) -> None:
    seen = api.publish("gpu.first")
    api.publish("gpu.missed")
    with watching(api, f"?since={seen}") as stream:
        assert until(stream, "gpu.missed").id == str(seen + 1)
        api.publish("gpu.next")
        assert until(stream, "gpu.next").id == str(seen + 2)


def test_change_feeds_count_as_followers(api: ApiServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(SUBSCRIBERS.total + 1):
            stack.enter_context(watching(api))
        assert ask(api, "GET", "/v1/events").status == 503
        assert ask(api, "GET", "/v1/watch").status == 503


@pytest.mark.long
def test_a_feed_without_views_is_an_error_and_no_stream(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as api:
        api.stop_supervisor()
        api.kill()
        api.supervisor.sends_no_views = True
        api.start()
        api.wait_for(lambda: api.heartbeats > 0)
        assert ask(api, "GET", "/v1/watch").body["code"] == "starting"


SPEC = ApiSpec(socket="s", state="s", log=None, began=0.0, version="1")


def some_views() -> Views:
    views = Views()
    host = HostView(
        at=0.0,
        pid=1,
        phase=Phase.OCCUPYING,
        driver="580",
        simulated=True,
        workload="gemm",
        gpus=(),
    )
    views.update(host)
    return views


def test_a_failed_update_is_reported_once_and_later_ones_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second and the third update fail; then the complete status follows."""
    warnings: list[str] = []
    changed, looks = ChangeFeed._difference, iter([False, True, True])

    def fails(watch: ChangeFeed, before: HostView) -> Changes:
        if next(looks, False):
            raise RuntimeError("what a bug says")
        return changed(watch, before)

    async def scene() -> list[bytes]:
        watch = ChangeFeed(SPEC, some_views(), EventBuffer(), warnings.append)
        keeping = asyncio.create_task(watch.run())
        pieces = watch.follow(None)
        async with asyncio.timeout(TIMEOUT_S):
            found = [await anext(pieces) for _ in range(6)]
        keeping.cancel()
        return [piece.split(b"\n")[0] for piece in found]

    monkeypatch.setattr(watches, "INTERVAL_S", 0.02)
    monkeypatch.setattr(ChangeFeed, "_difference", fails)
    status, changes = b"event: status", b"event: changes"
    names = asyncio.run(scene())
    assert names[:2] == [status, changes]
    assert names[2:].count(status) in {1, 2}
    assert names[-1] == changes
    assert warnings == [
        "a bug in sentinel, a change was not published: RuntimeError('what a bug says')"
    ]


def test_a_slow_client_receives_the_complete_status_again() -> None:
    views, event_buffer, spec = some_views(), EventBuffer(), SPEC
    watch = ChangeFeed(spec, views, event_buffer, pytest.fail)
    whole, number = watch._after(None)
    assert whole.startswith(b"event: status")
    for one in range(1, 20):
        watch._number = one
        watch._changes.append((one, b"%d," % one))
    assert watch._after(number)[0].startswith(b"event: status")
    assert watch._after(17) == (b"18,19,", 19)
    event_buffer.add(LoggedEvent.of(LogRecord(number=1, event={})))
    assert watch._after(19) == (b"", 19)


# --- the page as files -----------------------------------------------------------------------


def over_tcp(
    api: ApiServer, path: str, headers: Mapping[str, str] = {}
) -> tuple[int, bytes, Mapping[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=dict(headers))
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return response.status, response.read(), found


@pytest.mark.parametrize("path", sorted(PUBLIC_PATHS))
def test_the_page_needs_no_token_and_has_a_content_security_policy(
    api: ApiServer, path: str
) -> None:
    status, body, headers = over_tcp(api, path)
    assert status == 200
    assert body
    assert headers.items() >= HEADERS.items()
    assert over_tcp(api, path, {"If-None-Match": headers["etag"]})[:2] == (304, b"")


@pytest.mark.parametrize(
    "headers", [{"Host": "elsewhere.example"}, {"Origin": "http://elsewhere.example"}]
)
def test_the_page_is_refused_to_other_origins(api: ApiServer, headers: dict[str, str]) -> None:
    assert over_tcp(api, "/", headers)[0] == 403


@pytest.mark.parametrize("path", ["/page/", "/page/__init__.py", "/page/../gate.py", "/v1/watch"])
def test_every_other_path_needs_the_token(api: ApiServer, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=TIMEOUT_S)
    assert exchange(connection, "GET", path).status == 401
