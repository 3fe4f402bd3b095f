"""The history through the API, of a real API process and of a whole daemon."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from sentinel.api.bodies import ProblemError
from sentinel.api.history import History
from sentinel.client import Client, connect
from sentinel.errors import NoSuchGpuError
from sentinel.protocol.commands import Level
from sentinel.protocol.gpu import GpuProcess
from tests.harness.api_harness import UUIDS, ApiServer, ask
from tests.harness.daemon_harness import Daemon
from tests.harness.history_harness import is_intact
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

SIZE = 64 * 2**20


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("service"), history=SIZE) as api:
        yield api


@pytest.fixture
def client(api: ApiServer) -> Client:
    return connect(api.path, timeout=TIMEOUT_S)


def test_root_reads_the_history_next_and_users_read_it_in_turn() -> None:
    order: list[str] = []

    async def read() -> None:
        history = History(Path("none"), None, order.append)
        loop = asyncio.get_running_loop()

        async def ask_as(user: str, level: Level) -> None:
            await history.query(
                lambda _: order.append(user),
                lambda turns: turns.take(user, level, loop.create_future()),
            )

        readers = [ask_as(user, Level.READ) for user in "aaaaabb"]
        await asyncio.gather(*readers, ask_as("root", Level.OWN))
        await history.close()

    asyncio.run(read())
    assert order == ["a", "root", "a", "b", "a", "b", "a", "a"]


def test_a_query_whose_client_has_left_is_not_made() -> None:
    async def leave() -> None:
        async def has_left(_: object) -> bool:
            return False

        history = History(Path("none"), None, lambda _: None)
        with pytest.raises(ProblemError, match="disconnected"):
            await history.query(lambda _: pytest.fail("made"), has_left)
        await history.close()

    asyncio.run(leave())


def warm(api: ApiServer, *degrees: int) -> None:
    """Show GPU 0 at these temperatures, each until it is stored for a separate second."""
    client = connect(api.path, timeout=TIMEOUT_S)
    for value in degrees:
        api.change_gpu(temperature_c=value, read=time.monotonic(), power_w=100.0)
        until = int(time.time()) + 2  # the last view of a second counts

        def there(until: int = until) -> bool:
            return client.history(0, "1m")[-1].at.timestamp() >= until

        eventually(there)
        assert client.history(0, "1m")[-1].temperature_c == value


@pytest.mark.long
def test_the_latest_views_are_in_the_history(service: ApiServer, client: Client) -> None:
    warm(service, 61, 64)
    whole_time = client.history(UUIDS[0], "10m", points=1)
    assert len(whole_time) == 1
    assert (whole_time[0].temperature_min_c, whole_time[0].temperature_max_c) == (61, 64)
    assert whole_time[0].ours == 1
    assert whole_time[0].busy == 0
    trend = client.trend("GPU-aaaa", minutes=10)
    assert (trend.minimum_c, trend.current_c, trend.maximum_c) == (61, 64, 64)
    assert trend.samples >= 2
    assert client.trend(1).trend == "unknown"


def test_events_are_stored_with_their_fields(service: ApiServer, client: Client) -> None:
    service.publish("gpu.handed_over", gpu=UUIDS[1], index=1, exit_s=0.2, at=12.5)
    service.publish("gpu.status", gpu=UUIDS[1], index=1)
    service.publish("sentinel.stalled", s=2.0)

    def kept() -> bool:
        # Both have the same time, so neither is first.
        names = {recorded_event.name for recorded_event in client.recorded_events()[-2:]}
        return names == {"gpu.handed_over", "sentinel.stalled"}

    eventually(kept)
    (event,) = client.recorded_events(1, "1h", name="gpu.handed_over", limit=1)
    assert (event.gpu, event.index, event.fields) == (UUIDS[1], 1, {"exit_s": 0.2})
    assert abs(event.at.timestamp() - time.time()) < 60
    assert client.recorded_events(0, "1h", name="gpu.handed_over") == ()


def test_events_are_selected_by_kind(service: ApiServer, client: Client) -> None:
    for name in ("gpu.overheat", "gpu.resumed", "gpu.yielding"):
        service.publish(name, gpu=UUIDS[0], index=0)
    wanted = {
        "?kind=finding&gpu=0": {"gpu.overheat"},
        "?kind=command&kind=yield": {"gpu.resumed", "gpu.yielding"},
        "?kind=command&name=gpu.yielding": set(),
        "?kind=yield&gpu=1": set(),
    }

    def found(query: str) -> set[str]:
        events = ask(service, "GET", f"/v1/history/events{query}").body["events"]
        return {event["name"] for event in events}

    eventually(lambda: client.recorded_events(limit=1)[-1].name == "gpu.yielding")
    assert {query: found(query) for query in wanted} == wanted


def test_processes_on_a_gpu_are_named(client: Client) -> None:
    eventually(lambda: client.usage(0))
    use = client.usage(0, datetime.now().astimezone())[-1]
    assert (use.who, use.pid, use.user, use.going_on, use.ours) == (
        "python",
        4711,
        "anna",
        True,
        False,
    )
    assert use.gpu == UUIDS[0]


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("history/readings", 422, "gpu"),
        ("history/readings?gpu=9", 404, "9"),
        ("history/readings?gpu=all", 422, "selects 2 GPUs"),
        ("history/readings?gpu=0&since=soon", 422, "'soon' is not a duration; write one such as"),
        (
            "history/readings?gpu=0&since=10",
            422,
            "since: '10' has no unit; write 10s, 10m, 10h or 10d, or a date such as 2026-11-20T19",
        ),
        ("history/usage?since=2999-01-01T00:00:00Z", 422, "Z' is in the future."),
        ("history/readings?gpu=0&since=2026-11-20T10:00:00", 422, "since"),
        ("history/readings?gpu=0&points=3601", 422, "points"),
        ("history/events?limit=0", 422, "limit"),
        ("history/events?kind=all", 422, 'kind: "all" is not '),
        ("history/usage?gpu=GPU-missing", 404, "GPU-missing"),
        ("history/hours?gpu=GPU-missing", 404, "GPU-missing"),
        ("history/hours?since=soon", 422, "since"),
        ("gpus/0/trend?minutes=61", 422, "minutes"),
    ],
)
def test_an_invalid_query_is_refused_with_the_reason(
    service: ApiServer, path: str, status: int, says: str
) -> None:
    refused = ask(service, "GET", f"/v1/{path}")
    assert refused.status == status
    assert says in refused.body["detail"]


def test_a_removed_gpu_is_found_by_its_uuid(service: ApiServer, client: Client) -> None:
    gone = "GPU-cccc3333-0000-0000-0000-000000000000"
    with service.lock:
        view = replace(service.supervisor.gpus[UUIDS[1]], uuid=gone, at=time.monotonic())
        service.child.send(view)
    eventually(lambda: any(use.gpu == gone for use in client.usage()))
    assert client.history(gone)
    with pytest.raises(NoSuchGpuError):
        client.history(gone[:12])


@pytest.mark.long
def test_without_a_file_the_last_hour_is_kept_in_memory(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as api:
        eventually(lambda: ask(api, "GET", "/v1/history/readings?gpu=0").body["readings"])
        assert not list(tmp_path.glob("history*"))
        assert not api.warnings


@pytest.mark.long
def test_a_full_disk_is_reported_once_and_queries_are_answered(tiny_disk: Path) -> None:
    with ApiServer(tiny_disk, history=SIZE) as api:
        api.wait_for(lambda: any(warning.about == "history" for warning in api.warnings))
        api.publish("gpu.busy", gpu=UUIDS[0], index=0)
        client = connect(api.path, timeout=TIMEOUT_S)
        eventually(lambda: client.recorded_events() and client.history(0) and client.usage(0))
        before = api.heartbeats
        api.wait_for(lambda: api.heartbeats > before + 3)  # the write was repeated by then
        assert [warning.about for warning in api.warnings].count("history") == 1


@pytest.mark.long
def test_after_a_kill_of_the_api_the_file_is_intact_and_has_all_served_events(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.db"
    known: set[int] = set()
    api = ApiServer(tmp_path, history=SIZE)
    with api:
        for turn in range(2):
            ended, told = threading.Event(), threading.Event()
            talker = threading.Thread(target=talk, args=(api, ended, told, known))
            talker.start()
            assert told.wait(TIMEOUT_S)
            time.sleep(random.Random(turn).uniform(0.2, 0.8))  # the kill comes at any moment
            ended.set()
            api.kill()
            talker.join()
            assert is_intact(path)
            kept = numbers(path)
            assert known <= kept, "what a client was told is there"
            api.start()
            api.wait_for(lambda: api.heartbeats > 0)
        assert known
        assert not [warning for warning in api.warnings if warning.about == "history"]
        client = connect(api.path, timeout=TIMEOUT_S)
        uses = client.usage(0)
        assert [(use.pid, use.going_on) for use in uses] == [(4711, True)], "one, over all of it"


def talk(api: ApiServer, ended: threading.Event, told: threading.Event, known: set[int]) -> None:
    """Publish events and query them; every returned event was written before."""
    number = max(known, default=0)
    while not ended.is_set():
        for _ in range(5):
            number += 1
            api.publish("gpu.idle", number=number)
        try:
            body = ask(api, "GET", "/v1/history/events?limit=1000").body
        except (
            OSError,
            ValueError,
            http.client.HTTPException,
        ):  # the API process was killed during the request
            return
        known.update(one["fields"]["number"] for one in body["events"] if one["name"] != "lost")
        if known:
            told.set()


def numbers(path: Path) -> set[int]:
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute("SELECT line FROM events WHERE name = 'gpu.idle'").fetchall()
    finally:
        connection.close()
    return {json.loads(line)["number"] for (line,) in rows}


# --- a whole daemon --------------------------------------------------------------------------


@pytest.mark.long
def test_the_history_names_a_finished_job(daemon: Daemon) -> None:
    refused = daemon.run_unchecked("start", "--simulate", "1", "--history-size", "1MiB")
    assert refused.code == 2
    assert "allowed is from 16MiB to 1TiB" in refused.err
    daemon.start(1, "--history-size", "32MiB")
    daemon.wait_until_occupied(0)
    with daemon.host.job(share=0.5, stay=3600) as job:
        assert job.got_memory()
        eventually(lambda: job.pid in [use.pid for use in daemon.client.usage(0)])
        eventually(lambda: any(user.allocated_s > 0.9 for user in daemon.client.gpu_hours(0).users))
        job.kill()
        job.wait_for_exit()
    daemon.wait_until_occupied(0)
    eventually(lambda: daemon.client.history(0, points=1)[0].ours)
    lines = daemon.run("history").splitlines()
    assert lines[0].split() == ["GPU", "FROM", "UNTIL", "FOR", "USER"]
    (mine,) = [line for line in lines if str(job.pid) in line.split()]
    assert "now" not in mine
    assert "now" in [line for line in lines if "sentinel" in line][-1]
    by_user = [line.split() for line in lines[lines.index("") + 1 :]]
    assert by_user[0] == ["USER", "HOURS", "UNUSED"]
    assert [row[0] for row in by_user[1:4]] == [mine.split()[4], "(stressors)", "(idle)"]
    below = by_user[-1]
    assert below[0] == "0"
    assert "%" in below[-2]

    body = json.loads(daemon.run("history", "--gpus", "0", "--since", "10m", "--json"))
    assert body["schema_version"] == 1
    assert [use["ours"] for use in body["usage"]] == [True, False, True]
    (user,) = body["hours"]["users"]
    assert 0.9 < user["allocated_s"] < TIMEOUT_S
    assert body["hours"]["stressors_s"] > 0
    (reading,) = body["gpus"]
    assert 0 < reading["ours"] < 1
    assert 0 < reading["busy"] < 1

    events = daemon.run("history", "--events", "--gpus", "0")
    assert "handed over" in events
    assert "busy" in events
    for text, why in (
        (
            "yesterday",
            "is not a duration; write one such as 25ms, 10s, 5m or 1h30m\nOr write a time",
        ),
        (
            "10",
            "has no unit; write 10s, 10m, 10h or 10d\nOr write a time such as '2026-11-20 19:40'.",
        ),
        ("2999-01-01", "is in the future"),
    ):
        wrong = daemon.run_unchecked("history", "--since", text)
        assert wrong.code == 2
        assert f"--since: {text!r} {why}" in wrong.err
    daemon.kill()
    assert is_intact(daemon.places.state / "history.db")


def test_a_second_process_is_named_with_its_own_time(service: ApiServer, client: Client) -> None:
    with service.change_supervisor() as supervisor:
        view = supervisor.gpus[UUIDS[1]]
        supervisor.gpus[UUIDS[1]] = replace(
            view, processes=(*view.processes, GpuProcess(pid=815, name="ollama", user="bert"))
        )
    eventually(lambda: 815 in [use.pid for use in client.usage(1)])
    with service.change_supervisor() as supervisor:
        supervisor.gpus[UUIDS[1]] = view

    def over() -> bool:
        (use,) = [use for use in client.usage(1) if use.pid == 815]
        return not use.going_on and use.who == "ollama"

    eventually(over)
