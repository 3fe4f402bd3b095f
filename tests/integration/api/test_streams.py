"""Clients receive events live, can request missed ones, and learn the number of lost ones."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.api import event_streams as pipelines
from sentinel.api.event_streams import MAX_EVENTS, SUBSCRIBERS, EventBuffer, LoggedEvent
from sentinel.client import connect
from sentinel.client.event_stream import EventStream, Follower
from sentinel.protocol.views import LogRecord
from tests.harness.api_harness import ApiServer, UnixConnection, ask, check_problem
from tests.harness.sentinel_process import eventually
from tests.harness.sse_reader import Event, following
from tests.harness.timing import TIMEOUT_S


def test_a_client_receives_each_event_when_it_is_published(api: ApiServer) -> None:
    with following(api) as stream:
        number = api.publish("gpu.idle", time="now", gpu="GPU-1")
        assert next(stream) == Event(
            str(number), "gpu.idle", {"event": "gpu.idle", "time": "now", "gpu": "GPU-1"}
        )
        api.publish("gpu.yielding")
        assert next(stream).name == "gpu.yielding"


def test_a_stream_is_silent_without_events(api: ApiServer) -> None:
    connection = UnixConnection(api.path)
    connection.request("GET", "/v1/events")
    response = connection.getresponse()
    time.sleep(0.6)  # views arrive meanwhile
    number = api.publish()
    assert [response.readline() for _ in range(3)][2] == f"id: {number}\n".encode()
    connection.close()


@pytest.mark.parametrize("way", ["query", "header"])
def test_a_reconnected_client_receives_the_missed_events(api: ApiServer, way: str) -> None:
    seen = api.publish()
    missed = [str(api.publish("gpu.claimed", number=number)) for number in range(3)]
    api.publish("gpu.last")
    with following(api, "/v1/events?since=0") as stream:  # all events have arrived
        list(iter(lambda: next(stream).name, "gpu.last"))
    query = f"?since={seen}" if way == "query" else ""
    headers = {} if way == "query" else {"Last-Event-ID": str(seen)}
    with following(api, f"/v1/events{query}", headers) as stream:
        assert [next(stream).id for _ in missed] == missed


def test_events_that_left_the_buffer_are_counted(api: ApiServer) -> None:
    first = api.publish("gpu.first")
    for _ in range(MAX_EVENTS + 100):
        last = api.publish()
    api.publish("gpu.last")
    with following(api, "/v1/events?since=0") as stream:
        list(iter(lambda: next(stream).name, "gpu.last"))
    with following(api, f"/v1/events?since={first - 1}") as stream:
        lost = next(stream)
        kept = next(stream)
    assert lost.name == "lost"
    assert lost.data == {"schema_version": 1, "count": last + 1 - MAX_EVENTS - first + 1}
    assert kept.id == str(last + 2 - MAX_EVENTS)


def test_followers_are_limited_and_a_departure_admits_another(api: ApiServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(SUBSCRIBERS.total + 1):
            stack.enter_context(following(api))
        refused = ask(api, "GET", "/v1/events")
        check_problem(refused, 503, "unavailable")
    while ask_for_events(api) == 503:  # the next iteration of the loop notices the departures
        pass
    with following(api) as stream:
        api.publish("gpu.after")
        assert next(stream).name == "gpu.after"


@pytest.mark.long
def test_concurrent_followers_are_counted_before_their_admission(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as api, contextlib.ExitStack() as stack:
        many = [UnixConnection(api.path) for _ in range(2 * SUBSCRIBERS.total)]
        os.kill(api.child.pid, signal.SIGSTOP)
        for connection in many:
            stack.callback(connection.close)
            connection.request("GET", "/v1/events")
        os.kill(api.child.pid, signal.SIGCONT)
        statuses = Counter(connection.getresponse().status for connection in many)
    assert statuses == {200: SUBSCRIBERS.total + 1, 503: SUBSCRIBERS.total - 1}


def ask_for_events(api: ApiServer) -> int:
    connection = UnixConnection(api.path)
    connection.request("GET", "/v1/events")
    with contextlib.closing(connection):
        return connection.getresponse().status


@pytest.mark.long
def test_a_position_with_a_daemon_id_misses_no_event_of_another_daemon(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as api:
        client = connect(api.path)
        for number in range(3):
            api.publish(f"gpu.e{number}")
        with client.events(0) as stream:
            assert next(stream).name == "gpu.e0"
            daemon = stream.daemon
        with client.events(2, daemon) as stream:
            assert next(stream).name == "gpu.e2"
            assert stream.newest == 3
        with client.events(2, "another") as stream:
            assert next(stream).name == "gpu.e0"
        with client.events(None, daemon).open() as stream:
            api.publish("gpu.new")
            assert next(stream).name == "gpu.new"


@pytest.mark.long
def test_a_follower_receives_every_event_after_its_last_one(tmp_path: Path) -> None:
    heard: list[str] = []
    again = threading.Event()

    def events(since: int | None, daemon: str | None) -> EventStream:
        assert since is None or again.wait(TIMEOUT_S)
        return client.events(since, daemon)

    with ApiServer(tmp_path) as api:
        client = connect(api.path)
        follower = Follower(events, lambda event: heard.append(event.name))
        follower.start()
        for number in range(5):
            api.publish(f"old.{number}")
        eventually(lambda: len(heard) == 5)
        api.kill()
        api.spec = replace(api.spec, began=api.spec.began + 60)
        api._published = 0
        api.start()
        api.wait_for(lambda: api.heartbeats > 0)
        for number in range(8):
            api.publish(f"new.{number}")
        eventually(lambda: len(list(kept(api))) == 8)
        again.set()
        eventually(lambda: "new.7" in heard)
        follower.stop()
    assert heard == [*(f"old.{n}" for n in range(5)), *(f"new.{n}" for n in range(8))]


def kept(api: ApiServer) -> Iterator[str]:
    """Yield the names of the stored events."""
    with connect(api.path).events(0).open() as stream:
        for event in stream if stream.newest else ():
            yield event.name
            if event.id == stream.newest:
                return


# --- the ring alone --------------------------------------------------------------------------


def logged_event(number: int, size: int = 0) -> LoggedEvent:
    fields = {"event": f"e{number}", "fill": "x" * size}
    return LoggedEvent.of(LogRecord(number=number, event=fields))


def names(piece: bytes) -> list[str]:
    lines = piece.decode().splitlines()
    return [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]


def test_a_slow_follower_receives_the_number_of_lost_events() -> None:
    event_buffer = EventBuffer()
    for number in range(1, 2 * MAX_EVENTS + 1):
        event_buffer.add(logged_event(number, 100))
    piece, last = event_buffer.after(10)
    assert names(piece)[:2] == ["lost", f"e{MAX_EVENTS + 1}"]
    assert f'"count": {MAX_EVENTS - 10}' in piece.decode()
    assert names(event_buffer.after(last)[0])[0] == f"e{(last or 0) + 1}"


def test_a_gap_in_the_numbers_counts_as_lost_events() -> None:
    event_buffer = EventBuffer()
    for number in (1, 2, 5):
        event_buffer.add(logged_event(number))
    assert names(event_buffer.after(1)[0]) == ["e2", "lost", "e5"]


def test_restarted_numbers_of_a_new_daemon_skip_no_event() -> None:
    event_buffer = EventBuffer()
    event_buffer.add(logged_event(1))
    assert names(event_buffer.after(900)[0]) == ["e1"]


def test_large_events_push_out_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "MAX_BYTES", 100_000)
    event_buffer = EventBuffer()
    for number in range(1, 21):
        event_buffer.add(logged_event(number, 20_000))
    piece, _ = event_buffer.after(0)
    assert names(piece)[:2] == ["lost", "e17"]


def test_a_line_without_an_event_name_is_forwarded(tmp_path: Path) -> None:
    event_buffer = EventBuffer()
    event_buffer.add(LoggedEvent.of(LogRecord(number=1, event={})))
    assert names(event_buffer.after(0)[0]) == ["message"]
