"""The screen of `sentinel top` with textual's pilot: keys, panels, sizes and stale data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from sentinel.cli.tui import Live
from sentinel.client import connect
from tests.harness.stub_daemon import (
    DAEMON,
    GPU,
    RESERVATION,
    STATUS,
    Reply,
    StubDaemon,
    stub_daemon,
)
from tests.harness.timing import TIMEOUT_S

#: A screen takes about a second.
pytestmark = pytest.mark.long

SIZES = [(60, 24), (80, 24), (120, 30), (200, 50)]


def card(index: int, **fields: Any) -> dict[str, Any]:
    return {
        **GPU,
        "index": index,
        "uuid": f"GPU-{index:08d}",
        "temperature_c": 40 + index,
        **fields,
    }


def busy(index: int) -> dict[str, Any]:
    process = {"pid": 2**22 - index, "name": "train", "user": "ana", "command": "python train.py"}
    changed = {"stressor": "STOPPED", "occupancy": "BUSY", "pid": None}
    return card(index, **changed, processes=[process])


def event(number: int, name: str, **fields: Any) -> str:
    time = "2026-11-23T08:00:00+00:00"
    data = {"time": time, "at": 1.0, "event": name, "gpu": "GPU-00000001", "index": 1, **fields}
    return f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n"


EVENTS = (
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: daemon=abc newest=2\n\n"
    + event(1, "gpu.idle", left_alone_s=3.0)
    + event(2, "gpu.handed_over", evidence="memory", kill_s=0.01, exit_s=0.1, memory_back_s=0.147)
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[StubDaemon]:
    with stub_daemon(tmp_path / "s") as daemon:
        status = {**STATUS, "daemon": {**DAEMON, "host": "node7"}, "gpus": [card(0), busy(1)]}
        daemon.replies["GET /v1/status"] = Reply(status)
        daemon.replies["GET /v1/events?since=0"] = Reply(EVENTS.encode(), 0)
        daemon.replies["POST /v1/pause"] = Reply({"text": "paused GPU 0"})
        yield daemon


def drive(
    daemon: StubDaemon,
    script: Callable[[Live, Pilot[None]], Awaitable[None]],
    size: tuple[int, int] = (80, 24),
    **options: Any,
) -> None:
    """Run the screen, and what a person does at it."""

    async def run() -> None:
        client = connect(daemon.socket, timeout=TIMEOUT_S)
        app = Live(client, client.status(), every=0.2, **options)
        async with app.run_test(size=size) as pilot:
            await script(app, pilot)

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


async def until(pilot: Pilot[None], true: Callable[[], object]) -> None:
    """Wait until something is so; the time limit is that of the whole test."""
    while not true():  # noqa: ASYNC110 - threads of the app make it so
        await asyncio.sleep(0.02)
    await pilot.pause()


def text(app: Live, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


def indices(app: Live) -> list[str]:
    table = app.query_one("#gpus", DataTable)
    return [str(table.get_row_at(row)[0]) for row in range(table.row_count)]


def shown_panels(app: Live) -> list[str]:
    return [one for one in ("processes", "details", "events") if app.query_one(f"#{one}").display]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [2, 16])
def test_nothing_is_wider_than_the_screen(
    daemon: StubDaemon, size: tuple[int, int], count: int
) -> None:
    gpus = [busy(n) if n % 2 else card(n) for n in range(count)]
    daemon.replies["GET /v1/status"] = Reply({**STATUS, "gpus": gpus})

    async def script(app: Live, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "train.py" in text(app, "processes-text"))
        table = app.query_one("#gpus", DataTable)
        assert table.virtual_size.width <= size[0]
        assert table.row_count == count
        assert app.query_one("#below").size.height >= 8
        panels = [app.query_one(f"#{name}") for name in shown_panels(app)]
        assert len(panels) == (3 if size[0] >= 110 else 1 if count == 16 else 2)
        rows = {row for panel in panels for row in range(panel.region.y, panel.region.bottom)}
        assert rows == set(range(table.region.bottom, size[1] - 1)), "no row is left empty"
        columns = [str(column.value) for column in table.columns]
        assert ("HAND-OVER" in columns) is (size[0] == 200)

    drive(daemon, script, size)


def test_what_arrives_after_the_screen_is_gone_ends_no_command(daemon: StubDaemon) -> None:
    async def script(app: Live, pilot: Pilot[None]) -> None:
        await app.screen.remove_children()
        app.post(app.add_events, [])
        await pilot.pause()

    drive(daemon, script)


def test_events_and_hand_overs_are_those_of_the_daemon(daemon: StubDaemon) -> None:
    async def script(app: Live, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "handed over" in text(app, "events-text"))
        assert text(app, "events-text").index("handed over") < text(app, "events-text").index(
            "may start in"
        ), "newest first"
        assert "last hand-overs" in text(app, "details-text")
        assert "147 ms" in text(app, "details-text")

    drive(daemon, script, (160, 40))


def test_a_large_screen_has_the_other_gpus_and_the_queue_beside_the_selected_one(
    daemon: StubDaemon,
) -> None:
    queued = {**RESERVATION, "id": "77aa", "gpus": [], "indices": [], "place": 1}
    gpus = [card(n) for n in range(8)]
    daemon.replies["GET /v1/status"] = Reply({**STATUS, "gpus": gpus, "queue": [queued]})

    async def script(app: Live, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "request 77aa" in text(app, "details-text"))
        shown = text(app, "details-text").splitlines()
        assert [line for line in shown if line.startswith("GPU 1 ")]
        assert len(shown) == app.query_one("#details").size.height, "every row is used"

    drive(daemon, script, (200, 60))


def test_tab_shows_one_panel_after_the_other_on_a_small_screen(daemon: StubDaemon) -> None:
    async def script(app: Live, pilot: Pilot[None]) -> None:
        for panel in ("processes", "details", "events", "processes"):
            assert panel in shown_panels(app)
            await pilot.press("tab")
        await pilot.resize_terminal(140, 40)
        await until(pilot, lambda: len(shown_panels(app)) == 3)

    drive(daemon, script, (60, 16))


def test_sorting_keeps_the_selected_gpu(daemon: StubDaemon) -> None:
    async def script(app: Live, pilot: Pilot[None]) -> None:
        await pilot.press("down")
        assert app.selected() is not None
        await pilot.press(*"ssss")  # state, load, memory, temperature
        assert "sort: temperature" in text(app, "facts")
        assert indices(app) == ["1", "0"]
        selected = app.selected()
        assert selected is not None
        assert selected.index == 1

    drive(daemon, script)


def test_a_filter_has_the_matching_gpus_and_their_processes(daemon: StubDaemon) -> None:
    async def script(app: Live, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "sentinel gemm" in text(app, "processes-text"))
        await pilot.press("slash")
        app.screen.query_one(Input).value = "train.py"
        await pilot.press("enter")
        assert indices(app) == ["1"]
        assert "filter: train.py (1 GPU)" in text(app, "facts")
        assert "sentinel gemm" not in text(app, "processes-text")
        await pilot.press("escape")
        assert indices(app) == ["0", "1"]

    drive(daemon, script)


def test_the_options_filter_and_sort_from_the_start(daemon: StubDaemon) -> None:
    async def script(app: Live, pilot: Pilot[None]) -> None:
        assert indices(app) == ["1"]
        await pilot.press("escape")
        assert indices(app) == ["1", "0"]

    drive(daemon, script, words="busy", sort="temperature")


def test_f_shows_what_belongs_to_the_selected_gpu(daemon: StubDaemon) -> None:
    async def script(app: Live, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "train.py" in text(app, "processes-text"))
        await pilot.press("f")
        assert "train.py" not in text(app, "processes-text")
        await pilot.press("down")
        assert "train.py" in text(app, "processes-text")
        assert "sentinel gemm" not in text(app, "processes-text")

    drive(daemon, script)


@pytest.mark.parametrize(
    ("typed", "sent"),
    [("30m", {"seconds": 1800, "wait_s": 0}), ("", {"wait_s": 0}), (None, None)],
)
def test_pause_asks_for_how_long(
    daemon: StubDaemon, typed: str | None, sent: dict[str, Any] | None
) -> None:
    async def script(app: Live, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        assert app.screen.query_one(Input).value == ""
        if typed is None:
            await pilot.press("escape")
            assert len(app.screen_stack) == 1
            return
        app.screen.query_one(Input).value = typed
        await pilot.press("enter")
        await until(pilot, lambda: posts(daemon))

    drive(daemon, script)
    assert posts(daemon) == ([] if sent is None else [{"gpus": ["GPU-00000000"], **sent}])


def test_a_wrong_duration_keeps_the_question(daemon: StubDaemon) -> None:
    async def script(app: Live, pilot: Pilot[None]) -> None:
        await pilot.press("v")
        field = app.screen.query_one(Input)
        field.value = "soon"
        await pilot.press("enter")
        assert len(app.screen_stack) == 2
        assert app.screen.query_one(Input) is field

    drive(daemon, script)
    assert posts(daemon) == []


def posts(daemon: StubDaemon) -> list[Any]:
    return [body for request, body in daemon.requests if request.startswith("POST")]


def test_help_names_every_key(daemon: StubDaemon) -> None:
    async def script(app: Live, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        shown = str(app.screen.query_one(Static).render())
        for key in ("p ", "r ", "v ", "e ", "/ ", "s ", "Tab", "f ", "? ", "q "):
            assert f"\n{key}" in shown
        await pilot.press("escape")
        assert len(app.screen_stack) == 1

    drive(daemon, script)


def test_stale_data_is_grey_until_the_daemon_answers(daemon: StubDaemon) -> None:
    async def script(app: Live, pilot: Pilot[None]) -> None:
        assert not app.query_one("#gpus").has_class("stale")
        fresh = daemon.replies["GET /v1/status"]
        daemon.replies["GET /v1/status"] = Reply(b"")
        await until(pilot, lambda: app.query_one("#gpus").has_class("stale"))
        assert "closed the connection" in text(app, "facts")
        assert indices(app) == ["0", "1"]
        assert "node7" in text(app, "facts")
        daemon.replies["GET /v1/status"] = fresh
        await until(pilot, lambda: not app.query_one("#gpus").has_class("stale"))

    drive(daemon, script)


def test_an_old_state_of_the_supervisor_is_grey(daemon: StubDaemon) -> None:
    old = {**DAEMON, "age_s": 9.0}
    daemon.replies["GET /v1/status"] = Reply({**STATUS, "daemon": old, "gpus": [card(0)]})

    async def script(app: Live, pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert app.query_one("#gpus").has_class("stale")
        assert "STALE" in text(app, "facts")

    drive(daemon, script)
