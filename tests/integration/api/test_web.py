"""The web page in a real browser: what it shows is so, and what is done on it is done."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli.display.log_lines import describe
from sentinel.protocol.events import EVENTS, Kind
from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.views import GpuHealth, HealthCause
from tests.harness.api_harness import ApiServer
from tests.harness.browser import (
    LIVE,
    NEEDS_BROWSER,
    Browser,
    Page,
    address,
    cells,
    choose,
    opened,
    state,
    token,
    words,
)
from tests.harness.daemon_harness import Daemon, isolated_daemon
from tests.harness.example_node import ExampleNode
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.prometheus import free_port
from tests.harness.sentinel_process import eventually

pytestmark = NEEDS_BROWSER

PAGE = ROOT / "sentinel" / "web"
#: One event of each type, with all of its fields.
EXAMPLES = ROOT / "docs" / "events.jsonl"
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Daemon]:
    host = SimulatedHost(tmp_path_factory.mktemp("gpus"))
    with pytest.MonkeyPatch.context() as patch, isolated_daemon(host, patch) as one:
        one.start(2, "--tcp", f"127.0.0.1:{port}")
        one.wait_until_occupied(0, 1)
        yield one


# --- with a real daemon ------------------------------------------------------------------------


def test_a_card_shows_a_newcomer(daemon: Daemon, chrome: Browser) -> None:
    host = daemon.host
    with opened(chrome, daemon.run("status", "--page").strip()) as page:
        page.wait_until(f"{state(0)} === 'occupied'")
        assert "token" not in page.evaluate("location.href")
        with host.job(0, share=0.6, stay=60) as job:
            there = host.registry.processes
            eventually(lambda: job.pid in {one.pid for one in there(host.uuid(0))})
            page.wait_until(f"{state(0)} === 'busy'")
            page.wait_until(f"{words(0)}.includes('(pid {job.pid}')")
            page.wait_until(
                "document.getElementById('timeline').innerText.includes('memory free after')"
            )
            page.wait_until(f"/foreign.*GiB/.test({words(0)})")
        page.wait_until(f"{state(0)} === 'occupied'")


def test_a_card_names_the_session_of_its_gpu(daemon: Daemon, chrome: Browser) -> None:
    with opened(chrome, daemon.run("status", "--page").strip()) as page:
        page.wait_until(f"{state(0)} === 'occupied'")
        daemon.client.start_session("train", [0], {"memory.chunk": "256MiB"})
        page.wait_until(f"{words(0)}.includes('[train]')")
        assert "[train]" not in page.evaluate(words(1))
        daemon.client.stop_session("train")
        page.wait_until(f"!{words(0)}.includes('[train]')")
        page.wait_until(f"{state(0)} === 'occupied'")


def test_a_reservation_made_on_the_page_is_visible_to_the_command_line(
    daemon: Daemon, chrome: Browser
) -> None:
    with opened(chrome, daemon.run("status", "--page").strip()) as page:
        page.wait_until(f"{state(1)} === 'occupied'")
        page.evaluate("document.querySelector('#gpu-1 [aria-label=\"Reserve GPU 1\"]').click()")
        page.evaluate("document.querySelector('#reserve-dialog [name=reason]').focus()")
        page.type_text(HOSTILE)
        page.press("Enter")
        page.wait_until("!document.querySelector('dialog[open]')")
        (held,) = daemon.client.status().reservations
        assert (held.indices, held.reason) == ((1,), HOSTILE)
        assert held.until is not None
        assert held.until - held.since == timedelta(hours=1), "unless another length is chosen"
        assert f"for {HOSTILE}" in daemon.run("status")
        page.wait_until(f"{state(1)} === 'reserved'")
        assert HOSTILE in page.evaluate(words(1))
        page.evaluate(
            "document.querySelector('#gpu-1 [aria-label=\"End reservation GPU 1\"]').click()"
        )
        page.press("Enter")
        eventually(lambda: not daemon.client.status().reservations)
        page.wait_until(f"{state(1)} === 'occupied'")
        page.evaluate("document.querySelector('#gpu-1 [aria-label=\"Reserve GPU 1\"]').click()")
        page.evaluate("document.querySelector('#reserve-dialog [name=seconds]').value = 'null'")
        page.evaluate("document.querySelector('#reserve-dialog [name=reason]').focus()")
        page.press("Enter")
        page.wait_until("!document.querySelector('dialog[open]')")
        (held,) = daemon.client.status().reservations
        assert held.until is None, "until the user ends it, as chosen"
        mine = daemon.client.reserve([0], seconds=600, reason="a demo")
        page.wait_until(f"{state(0)} === 'reserved'")
        user = pwd.getpwuid(os.getuid()).pw_name
        page.wait_until(f"{words(0)}.includes('a demo ({user})')")
        mine.end()
    daemon.run("reserve", "--cancel", held.id)
    daemon.wait_until_occupied(0, 1)


def test_the_page_lists_who_waits_for_gpus(daemon: Daemon, chrome: Browser) -> None:
    queue = "document.querySelector('#queue-table')"
    visible = f"{queue}.checkVisibility()"
    user = pwd.getpwuid(os.getuid()).pw_name
    named, job = ("exec", "--gpus", "1"), ("--", "true")
    with opened(chrome, daemon.run("status", "--page").strip()) as page:
        page.wait_until(LIVE)
        assert not page.evaluate(visible), "nothing waits"
        with (
            daemon.client.reserve([0, 1], seconds=600),
            daemon.start_command(*named, "--reason", HOSTILE, *job) as first,
        ):
            eventually(lambda: len(daemon.client.queue()) == 1)
            with daemon.start_command("exec", "--count", "2", *job) as second:
                page.wait_until(f"{visible} && {queue}.tBodies[0].rows.length === 2")
                one, other = cells(page, "queue-table")
                assert (one[0], one[2:4]) == ("1", ["GPU 1", HOSTILE])
                assert f" ({user}), " in one[1]
                assert one[1].endswith(f" {first.pid}")
                assert re.fullmatch(r"\d\d:\d\d:\d\d", one[4])
                assert (other[0], other[2]) == ("2", "2 GPUs")
                assert other[1].endswith(f" {second.pid}")
                first.kill()
                second.kill()
        page.wait_until(f"!{visible}")
    daemon.wait_until_occupied(0, 1)


def test_a_gpu_is_paused_and_resumed_by_the_keyboard_alone(daemon: Daemon, chrome: Browser) -> None:
    focus = "document.activeElement.getAttribute('aria-label')"
    with opened(chrome, daemon.run("status", "--page").strip()) as page:
        page.wait_until(f"{state(1)} === 'occupied'")
        for _ in range(20):
            page.press("Tab")
            if page.evaluate(focus) == "Pause GPU 1":
                break
        assert page.evaluate(focus) == "Pause GPU 1"
        page.press("Enter")
        page.wait_until("document.querySelector('#pause-dialog').open")
        page.press("Escape")
        page.wait_until("!document.querySelector('dialog[open]')")
        assert page.evaluate(focus) == "Pause GPU 1"
        page.press("Enter")
        page.press("Tab", 2)  # from how long, past Cancel
        assert page.evaluate("document.activeElement.type") == "submit"
        page.press("Enter")
        page.wait_until(f"{state(1)} === 'paused'")
        assert daemon.gpu(1).admin == "PAUSED"
        page.wait_until("!document.querySelector('dialog[open]')")
        assert page.evaluate(focus) == "Resume GPU 1"
        page.press("Enter", 2)
        page.wait_until(f"{state(1)} === 'occupied'")


def test_the_page_shows_that_the_daemon_is_gone_and_recovers_with_it(
    daemon: Daemon, chrome: Browser, port: int
) -> None:
    with opened(chrome, daemon.run("status", "--page").strip()) as page:
        daemon.kill()
        page.wait_until("document.getElementById('lost').innerText.includes('Connection lost')")
        assert page.evaluate("document.body.dataset.connection") == "lost"
        assert page.evaluate("document.getElementById('connection').innerText") == "lost"
        assert page.evaluate(f"[{state(0)}, {state(1)}]") == ["unknown", "unknown"]
        assert page.evaluate("document.querySelector('#gpu-0 .actions button').disabled")
        daemon.start(2, "--tcp", f"127.0.0.1:{port}")
        page.wait_until(LIVE)
        assert page.evaluate("document.getElementById('lost').hidden")
        page.wait_until(f"{state(0)} === 'occupied'")


# --- with a supervisor that is a script --------------------------------------------------------


def test_external_text_is_never_interpreted_as_markup(api: ApiServer, chrome: Browser) -> None:
    others = (GpuProcess(pid=4711, name=HOSTILE, user=HOSTILE),)
    busy: dict[str, Any] = {
        "stressor": "STOPPED",
        "occupancy": "BUSY",
        "processes": others,
        "reason": HOSTILE,
    }
    api.change_gpu(name=HOSTILE, held=None, **busy)
    with opened(chrome, address(api)) as page:
        api.publish(
            "gpu.busy", index=0, at=1.0, reason=HOSTILE, processes=[{"pid": 1, "name": HOSTILE}]
        )
        api.publish("gpu.reserved", index=0, at=2.0, reason=HOSTILE, for_s=None, by=None)
        page.wait_until("document.querySelectorAll('#timeline li').length === 2")
        page.evaluate("document.querySelector('#gpu-0 [aria-label=\"Details GPU 0\"]').click()")
        for part in ("#gpu-0", "#timeline", "#facts", "#detail-dialog"):
            page.wait_until(f"document.querySelector('{part}').textContent.includes('<img src=x')")
        assert (
            page.evaluate("document.querySelectorAll('main img, main b, dialog img').length") == 0
        )
        assert "taken" not in page.evaluate("document.title")


@pytest.mark.parametrize(
    ("reason", "shown_text"),
    [
        ("not yet", r"not yet; may change in (9|10).min"),
        ("quiet hours until 05:00", r"quiet hours until 05:00 \(in (9|10).min"),
    ],
)
def test_a_gpu_that_is_not_occupied_says_why_and_when_that_may_change(
    api: ApiServer, chrome: Browser, reason: str, shown_text: str
) -> None:
    idle: dict[str, Any] = {
        "stressor": "STOPPED",
        "held": None,
        "rule": "idle.wait",
        "reason": reason,
    }
    api.change_gpu(rule_until=time.monotonic() + 600, **idle)
    with opened(chrome, address(api)) as page:
        page.evaluate("document.querySelector('#gpu-0 [aria-label=\"Details GPU 0\"]').click()")
        for part in ("#gpu-0", "#detail-dialog"):
            shown = f"document.querySelector('{part}').textContent"
            page.wait_until(f"/{shown_text}/.test({shown})")


def timeline(page: Page, count: int) -> list[tuple[str, str, str]]:
    """Wait for the oldest ``count`` events of the page; return the word, GPUs and text of each."""
    items = "[...document.querySelectorAll('#timeline li')]"
    parts = "['strong', '.gpu', '.text'].map((part) => item.querySelector(part).textContent)"
    found: list[list[str]] = []
    while len(found) != count:  # a later event draws the list again
        page.wait_until(f"{items}.length === {count}")
        found = page.evaluate(f"{items}.reverse().map((item) => {parts})")
    return [(word, gpus, text) for word, gpus, text in found]


def test_the_timeline_describes_every_event_of_the_catalogue_but_details(
    tmp_path: Path, chrome: Browser
) -> None:
    examples = [json.loads(line) for line in EXAMPLES.read_text().splitlines()]
    assert {event["event"] for event in examples} == set(EVENTS)
    listed = [event for event in examples if EVENTS[event["event"]].kind is not Kind.DETAIL]
    with ApiServer(tmp_path, tcp=True) as api, opened(chrome, address(api)) as page:
        for event in examples:
            api.publish(event["event"], **{key: event[key] for key in event.keys() - {"event"}})
        shown = timeline(page, len(listed))
    for event, (word, gpus, text) in zip(listed, shown, strict=True):
        name = event["event"]
        assert (name, word) == (name, EVENTS[name].word)
        assert gpus == (f"GPU {event['index']}" if "index" in event else "")
        if re.search(r"\{\w+:", EVENTS[name].sentence):  # formats that differ from the terminal's
            assert text
            assert not re.search(r"[][{}?]|undefined|null|NaN|object", text), (name, text)
        else:
            assert (word, text) == describe(name, event)


CALLER = {"uid": None, "user": None, "pid": None}


def test_the_timeline_says_who_ended_a_reservation(tmp_path: Path, chrome: Browser) -> None:
    callers: list[dict[str, Any] | None] = [None]
    callers += [{**CALLER, "via": via} for via in ("sentinel", "signal", "tcp", "unix", "later")]
    callers.append({**CALLER, "via": "unix", "uid": 1000, "user": "ada"})
    with ApiServer(tmp_path, tcp=True) as api, opened(chrome, address(api)) as page:
        for by in callers:
            api.publish("gpu.unreserved", index=0, id="fb09a776", reason="demo", by=by)
        shown = [text for _, _, text in timeline(page, len(callers))]
    ended = {"id": "fb09a776", "reason": "demo"}
    terminal = [describe("gpu.unreserved", {**ended, "by": by})[1] for by in callers[:-1]]
    assert shown == [*terminal, "fb09a776: demo, by ada"], (
        "only the terminal names the transport of a user"
    )
    assert shown[1] == "fb09a776: demo, its process or its request has ended"
    assert shown[2] == "fb09a776: demo, by a signal"


def test_a_card_tells_the_pace_from_the_target(tmp_path: Path, chrome: Browser) -> None:
    with ApiServer(tmp_path, tcp=True) as api:
        api.change_gpu(share=0.45, stressor="RUNNING", utilization=0.3)
        with opened(chrome, address(api)) as page:
            tile = "document.querySelector('#gpu-0 .tile.load')"
            page.wait_until(f"{tile}.querySelector('.unit').textContent === 'pace 45\u00a0%'")
            assert page.evaluate(f"{tile}.title").startswith("Pace: the share of the time")


def test_equal_events_of_several_gpus_are_one_item(tmp_path: Path, chrome: Browser) -> None:
    with ApiServer(tmp_path, tcp=True) as api, opened(chrome, address(api)) as page:
        for index in (0, 1, 3):
            api.publish("gpu.unknown", index=index, at=10.0, reason="no answer")
        api.publish("gpu.unknown", index=4, at=20.0, reason="no answer")
        assert timeline(page, 2) == [
            ("unknown", "GPU 0\N{EN DASH}1, 3", "no answer"),
            ("unknown", "GPU 4", "no answer"),
        ]


def test_the_timeline_is_filtered_by_the_selected_kind(tmp_path: Path, chrome: Browser) -> None:
    visible = "[...document.querySelectorAll('#timeline li strong')]"
    words = f"{visible}.map((word) => word.textContent).join()"
    everything = ("gpu.idle", "gpu.yielding", "gpu.overheat", "gpu.resumed")
    with ApiServer(tmp_path, tcp=True) as api, opened(chrome, address(api)) as page:
        for name in everything:
            api.publish(name, index=0, by=None)
        timeline(page, len(everything))
        for text, wanted in (
            ("hand-overs", "yielding"),
            ("findings and failures", "overheat"),
            ("commands", "resumed"),
            ("everything", "resumed,overheat,yielding,idle"),
        ):
            choose(page, "timeline-kind", text)
            page.wait_until(f"{words} === '{wanted}'")


@pytest.mark.parametrize("count", [8, 16])
@pytest.mark.parametrize(
    ("width", "height", "mobile"), [(1280, 800, False), (390, 844, True)], ids=["desk", "phone"]
)
def test_all_gpus_fit_the_width_of_the_page(
    api: ApiServer, chrome: Browser, count: int, width: int, height: int, *, mobile: bool
) -> None:
    with api.change_supervisor():
        api.supervisor = ExampleNode(count=count)
    with opened(chrome, address(api), width, height, mobile=mobile) as page:
        page.wait_until(f"document.querySelectorAll('.card').length === {count}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cards = "[...document.querySelectorAll('.card')]"
        wider = "(one) => one.scrollWidth > one.clientWidth"
        assert page.evaluate(f"{cards}.filter({wider}).map((one) => one.id)") == []
        outside = f"(one) => one.getBoundingClientRect().right > {width}"
        assert (
            page.evaluate(f"[...document.querySelectorAll('main *')].filter({outside}).length") == 0
        )
        states = page.evaluate(
            "[...document.querySelectorAll('.card')].map((one) => one.dataset.state)"
        )
        eight = ["occupied", "occupied", "busy", "occupied", "reserved", "paused", "occupied"]
        assert states == count // 8 * [*eight, "unknown"]


def test_eight_gpus_and_the_timeline_are_on_one_screen(tmp_path: Path, chrome: Browser) -> None:
    width, height = 1400, 900
    bounds = "one.getBoundingClientRect()"
    outside = f"(one) => {bounds}.right > {width} || {bounds}.bottom > {height}"
    with ApiServer(tmp_path, tcp=True) as api:
        with api.change_supervisor():
            api.supervisor = ExampleNode(count=8)
        with opened(chrome, address(api), width, height) as page:
            page.wait_until("document.querySelectorAll('.card').length === 8")
            for number in range(60):
                api.publish("gpu.unknown", index=0, at=1.0, reason=f"no answer {number}")
            timeline(page, 60)
            parts = "[...document.querySelectorAll('.card, .timeline, .key')]"
            assert page.evaluate(f"{parts}.filter({outside}).map((one) => one.id)") == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            # Each curve is drawn, has the width of its card and the scale beside it.
            page.wait_until("document.querySelectorAll('.card .plot canvas').length === 24")
            low = "(one) => one.clientWidth < 200 || one.clientHeight < 28"
            plots = "[...document.querySelectorAll('.card .plot')]"
            assert page.evaluate(f"{plots}.filter({low}).length") == 0


def test_a_lost_gpu_shows_no_figures_of_before(daemon: Daemon, chrome: Browser) -> None:
    with opened(chrome, daemon.run("status", "--page").strip()) as page:
        page.wait_until(f"/\\d\\sW/.test({words(1)})")
        daemon.host.registry.inject(daemon.host.uuid(1), "lost")
        page.wait_until(f"{state(1)} === 'lost'")
        assert not re.search(r"\d\s(W|°C|%)", page.evaluate(words(1)))
        daemon.host.registry.inject(daemon.host.uuid(1), None)
        page.wait_until(f"{state(1)} === 'occupied'")


def test_stale_views_show_no_gpu_as_idle(api: ApiServer, chrome: Browser) -> None:
    with opened(chrome, address(api)) as page:
        page.wait_until(f"{state(0)} === 'occupied'")
        api.set(sends_no_views=True)
        page.wait_until(f"{state(0)} === 'unknown'")
        banner = page.evaluate("document.getElementById('lost').innerText")
        assert re.search(r"state is not updated since \d\d:\d\d:\d\d\.", banner), banner
        api.set(sends_no_views=False)
        page.wait_until(f"{state(0)} === 'occupied'")
        page.wait_until(LIVE)


@pytest.mark.parametrize(
    ("cause", "multiplier", "tile", "detail"),
    [
        ("temperature", 0.0, "critical", "because of its temperature, 0\u00a0% of full speed"),
        ("memory", 1.0, "", "critical because of its memory"),
        ("hardware", 1.0, "", "critical because of its hardware"),
    ],
)
def test_only_heat_is_shown_as_heat(
    api: ApiServer, chrome: Browser, cause: str, multiplier: float, tile: str, detail: str
) -> None:
    bad: dict[str, Any] = {"health": GpuHealth.CRITICAL, "health_cause": HealthCause(cause)}
    api.change_gpu(stressor="STOPPED", occupancy="BUSY", **bad, multiplier=multiplier)
    with opened(chrome, address(api)) as page:
        page.wait_until(f"{state(0)} === 'busy'")
        heat = "document.querySelector('#gpu-0 .tile.heat')"
        assert page.evaluate(f"{heat}.dataset.health") == tile
        assert page.evaluate(f"{heat}.querySelector('.unit').textContent") == tile
        note = page.evaluate("document.querySelector('#gpu-0 .note').textContent")
        assert (detail in note) == (cause == "hardware")
        page.evaluate("document.querySelector('#gpu-0 [aria-label=\"Details GPU 0\"]').click()")
        shown = "document.getElementById('detail-dialog').textContent"
        page.wait_until(f"{shown}.includes({json.dumps(detail)})")


def test_a_wrong_token_is_requested_again_and_the_right_one_is_accepted(
    api: ApiServer, chrome: Browser
) -> None:
    with chrome.page() as page:
        page.navigate(f"http://127.0.0.1:{api.port}/#token=wrong")
        page.wait_until("document.querySelector('#token-dialog')?.open")
        assert "The token is wrong" in page.evaluate(
            "document.querySelector('#token-dialog').innerText"
        )
        page.type_text(token(api))
        page.press("Enter")
        page.wait_until(LIVE)
        assert page.evaluate("document.querySelectorAll('.card').length") == 2
        assert page.errors == []


def test_the_token_dialog_closes_when_the_page_is_live(api: ApiServer, chrome: Browser) -> None:
    is_open = "document.querySelector('#token-dialog')?.open"
    banner = "document.getElementById('lost').innerText"
    with chrome.page() as page:
        page.navigate(f"http://127.0.0.1:{api.port}/")
        page.wait_until(is_open)
        # Without the dialog, the page says what is missing, and asks for it again.
        page.press("Escape")
        page.wait_until(f"!{is_open} && {banner}.includes('requires its token')")
        page.evaluate("document.getElementById('lost-token').click()")
        page.wait_until(is_open)
        # The token may also come by the address, as from a second click on the printed one.
        page.evaluate(f"location.hash = 'token={token(api)}'")
        page.wait_until(LIVE)
        page.wait_until(f"!{is_open} && document.getElementById('lost').hidden")
        assert page.evaluate("document.querySelectorAll('.card').length") == 2
        assert page.errors == []


def test_a_frozen_daemon_is_shown_as_lost_with_grey_values_and_since_when(
    api: ApiServer, chrome: Browser
) -> None:
    with opened(chrome, address(api)) as page:
        page.wait_until(f"{state(0)} === 'occupied'")
        colour = "getComputedStyle(document.querySelector('#gpu-0 .value')).color"
        live_colour = page.evaluate(colour)
        os.kill(api.child.pid, signal.SIGSTOP)
        try:
            page.wait_until(f"{state(0)} === 'unknown'")
            banner = page.evaluate("document.getElementById('lost').innerText")
            found = re.search(r"no state since (\d\d:\d\d:\d\d)", banner)
            assert found, banner
            assert f"values of {found[1]}" in page.evaluate(words(0))
            assert page.evaluate("document.title").split(": ")[1].startswith("lost")
            assert page.evaluate(colour) != live_colour
            # Grey, and readable: no text is transparent.
            pale = "(one) => getComputedStyle(one).opacity !== '1' && one.innerText"
            every = "[...document.querySelectorAll('#gpu-0, #gpu-0 *')]"
            assert page.evaluate(f"{every}.filter({pale}).map((one) => one.tagName)") == 2 * [
                "BUTTON"  # disabled
            ]
        finally:
            os.kill(api.child.pid, signal.SIGCONT)
        page.evaluate("document.getElementById('lost-now').click()")
        page.wait_until(f"{state(0)} === 'occupied' && {colour} === '{live_colour}'")


def test_the_theme_is_the_systems_until_another_is_chosen(api: ApiServer, chrome: Browser) -> None:
    theme = "document.documentElement.dataset.theme"
    with opened(chrome, address(api)) as page:
        for wanted in ("dark", "light"):
            feature = {"name": "prefers-color-scheme", "value": wanted}
            page.call("Emulation.setEmulatedMedia", features=[feature])
            page.wait_until(f"{theme} === '{wanted}'")
        page.evaluate("document.getElementById('theme').click()")
        page.evaluate("document.getElementById('theme').click()")
        assert page.evaluate(theme) == "dark"
        page.navigate(address(api).partition("#")[0] + "?again")
        page.wait_until(f"{LIVE} && {theme} === 'dark'")


# --- the files ---------------------------------------------------------------------------------


def test_text_is_never_interpreted() -> None:
    wrong = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc"
        r"|setHTML|DOMParser|createContextualFragment|\son\w+=\"|\sstyle=\"|https?://(?!www\.w3\.org)"
    )
    for path in sorted(PAGE.glob("*.*")):
        if path.suffix in {".js", ".html", ".css", ".svg"}:
            assert wrong.search(path.read_text()) is None, path


def test_nothing_is_said_to_be_empty_before_the_first_state() -> None:
    texts = re.findall(r'class="empty"([^>]*)>No ', (PAGE / "index.html").read_text())
    assert set(texts) == {" hidden"}


def test_the_page_has_its_own_files_and_no_others() -> None:
    named = re.findall(r'(?:src|href)="(?!#)([^"]+)"', (PAGE / "index.html").read_text())
    assert named
    for path in named:
        assert (PAGE / path.removeprefix("/page/")).is_file(), path
