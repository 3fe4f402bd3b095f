"""The panels of the web page: past readings and events, processes, findings, settings."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.host.lookups import USER_NAMES
from sentinel.host.procfs import own_stat, read_command
from sentinel.protocol.gpu import GpuProcess, ProcessKind
from sentinel.protocol.views import VerifiedCounts, VerifiedWork
from tests.harness.api_harness import UUIDS, ApiServer, ask
from tests.harness.browser import NEEDS_BROWSER, Browser, Page, address, cells, choose, opened
from tests.harness.burnin_report import write_report
from tests.harness.example_node import ExampleNode
from tests.harness.sentinel_process import eventually

pytestmark = NEEDS_BROWSER

HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
#: Readings of the history with a gap, instead of those of the API: none between 24 and 36 minutes.
READINGS_WITH_GAP = """
const real = fetch;
globalThis.fetch = (path, ...rest) => {
  if (!String(path).startsWith("/v1/history/readings")) return real(path, ...rest);
  const begun = Date.now() - 3600e3;
  const readings = Array.from({ length: 600 }, (_, at) => at).filter((at) => at < 240 || at > 360)
    .map((at) => ({ at: new Date(begun + at * 6000).toISOString(), utilization: 0.9 }));
  return Promise.resolve(new Response(JSON.stringify({ readings, step_s: 6 })));
};
"""
#: Readings of a daemon whose clock is an hour ahead.
READINGS_FROM_AHEAD = """
const real = fetch;
globalThis.fetch = (path, ...rest) => {
  if (!String(path).startsWith("/v1/history/readings")) return real(path, ...rest);
  const now = Date.now() + 3600e3;
  const readings = Array.from({ length: 600 }, (_, at) =>
    ({ at: new Date(now - (600 - at) * 6000).toISOString(), utilization: 0.9 }));
  const headers = { date: new Date(now).toUTCString() };
  return Promise.resolve(new Response(JSON.stringify({ readings, step_s: 6 }), { headers }));
};
"""
#: How many drawn pixels the curve of the load has between two shares of its width.
DRAWN = """
((from, to) => {{
  const canvas = document.querySelector('#gpu-0 .load canvas');
  const context = canvas.getContext('2d');
  const [left, right] = [from, to].map((share) => Math.round(share * canvas.width));
  const data = context.getImageData(left, 0, right - left, canvas.height).data;
  return data.filter((value, at) => at % 4 === 3 && value > 0).length;
}})({}, {})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("service")
    write_report(found, {UUIDS[0]: "PASS", UUIDS[1]: "FAIL"})
    return found


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ApiServer]:
    with ApiServer(folder, tcp=True, history=64 * 2**20) as api:
        yield api


def events_in(page: Page, count: int) -> list[str]:
    """Wait for this number of events; return the text of each, the latest first."""
    items = "[...document.querySelectorAll('#timeline li')]"
    page.wait_until(f"{items}.length === {count}")
    found: list[str] = page.evaluate(f"{items}.map((one) => one.querySelector('.text').innerText)")
    return found


# --- the past ----------------------------------------------------------------------------------


def test_a_chosen_range_is_read_in_at_most_600_readings(api: ApiServer, chrome: Browser) -> None:
    asked = (
        "performance.getEntriesByType('resource').map((one) => one.name)"
        ".filter((name) => name.includes('/v1/history/readings'))"
    )
    with opened(chrome, address(api)) as page:
        page.wait_until(f"{asked}.some((name) => name.includes('since=600s'))")
        # The keys choose, as everywhere in a group of choices.
        page.evaluate("document.querySelector('#ranges :checked').focus()")
        for span in (3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400):
            page.press("ArrowDown")
            page.wait_until(f"{asked}.some((name) => name.includes('since={span}s&points=600'))")
        assert page.evaluate("document.querySelector('#ranges :checked').value") == "2592000"
        assert page.evaluate("document.getElementById('history-problem').textContent") == ""
    reply = ask(api, "GET", f"/v1/history/readings?gpu={UUIDS[0]}&since=30d&points=600")
    assert reply.body["step_s"] >= 30 * 86400 / 600
    assert len(reply.body["readings"]) <= 600


def test_a_curve_is_not_drawn_over_a_gap(api: ApiServer, chrome: Browser) -> None:
    with chrome.page() as page:
        page.call("Page.addScriptToEvaluateOnNewDocument", source=READINGS_WITH_GAP)
        page.navigate(address(api))
        page.wait_until("document.querySelector('#gpu-0 .load canvas') !== null")
        page.evaluate("document.querySelector('#ranges [value=\"3600\"]').click()")
        page.wait_until(f"{DRAWN.format(0.1, 0.35)} > 0")
        assert page.evaluate(DRAWN.format(0.65, 0.9)) > 0
        assert page.evaluate(DRAWN.format(0.43, 0.57)) == 0


def test_a_curve_is_in_its_place_if_the_clocks_differ(api: ApiServer, chrome: Browser) -> None:
    with chrome.page() as page:
        page.call("Page.addScriptToEvaluateOnNewDocument", source=READINGS_FROM_AHEAD)
        page.navigate(address(api))
        page.wait_until("document.querySelector('#gpu-0 .load canvas') !== null")
        page.evaluate("document.querySelector('#ranges [value=\"3600\"]').click()")
        for share in (0.1, 0.5, 0.8):
            page.wait_until(f"{DRAWN.format(share, share + 0.1)} > 0")


def test_a_pause_between_live_readings_is_a_gap(api: ApiServer, chrome: Browser) -> None:
    script = """
    (async () => {
      const { Readings } = await import('/page/readings.js');
      const readings = new Readings();
      const at = Date.now() / 1000;
      for (const ago of [9, 8, 2, 1]) readings.add(at - ago, { utilization: 0.5 });
      const live = readings.columns.load;
      const reading = (ago) =>
        ({ at: new Date((at - ago) * 1000).toISOString(), utilization: ago / 100 });
      readings.load([20, 19, 10, 9, 8].map(reading), { step: 1, span: 600 });
      const ages = readings.columns.times.map((one) => Math.round(at - one));
      return [live, readings.columns.load, ages];
    })()
    """
    with opened(chrome, address(api)) as page:
        live, merged, ages = page.evaluate(script)
    assert live == [50, 50, None, 50, 50]
    # The recorded readings, and the live ones that are newer.
    assert merged == [20, 19, None, 10, 9, 8, None, 50, 50]
    assert ages[0] == 20
    assert ages == sorted(ages, reverse=True)


def test_the_timeline_has_recorded_events_of_the_chosen_gpu_and_kind(
    tmp_path: Path, chrome: Browser
) -> None:
    with ApiServer(tmp_path, tcp=True, history=64 * 2**20) as api:
        for index in (0, 1):
            fields: dict[str, Any] = {"gpu": UUIDS[index], "index": index}
            api.publish("gpu.unknown", reason=f"why {index}", **fields)
            api.publish("gpu.resumed", by=None, **fields)
        eventually(lambda: len(ask(api, "GET", "/v1/history/events").body["events"]) == 4)
        # Another API process has the events in its history only.
        api.kill()
        with opened_after_start(api, chrome) as page:
            time.sleep(0.01)  # the next event has a later time
            api.publish("gpu.unknown", reason="live", gpu=UUIDS[1], index=1)
            texts = events_in(page, 5)
            assert texts[0] == "live"
            choose(page, "timeline-gpu", "GPU 1")
            assert len(events_in(page, 3)) == 3
            choose(page, "timeline-kind", "findings and failures")
            assert events_in(page, 2) == ["live", "why 1"]
            choose(page, "timeline-gpu", "GPU 0")
            assert events_in(page, 1) == ["why 0"]
            choose(page, "timeline-kind", "hand-overs")
            events_in(page, 0)
            assert "No such events" in page.evaluate(
                "document.getElementById('timeline-empty').innerText"
            )
            choose(page, "timeline-gpu", "all GPUs")
            choose(page, "timeline-kind", "everything")
            assert events_in(page, 5) == texts


def opened_after_start(api: ApiServer, chrome: Browser) -> Any:
    """Start the API process again, and open its page."""
    api.start()
    api.wait_for(lambda: api.heartbeats > 0)
    return opened(chrome, address(api))


# --- the tables --------------------------------------------------------------------------------


def test_the_processes_on_all_gpus_are_listed(api: ApiServer, chrome: Browser) -> None:
    newcomer = GpuProcess(pid=4711, name="python", user="anna", memory=3 * 2**30)
    display = GpuProcess(pid=99, name=HOSTILE, kind=ProcessKind.GRAPHICS)
    holder = GpuProcess(pid=4712, name="vllm", user="ben", memory=2**20)
    mine = own_stat()
    command = read_command(mine.pid, mine.started)
    visible = GpuProcess(pid=mine.pid, started=mine.started, name=mine.name, user="me", memory=0)
    work = {"pid": mine.pid, "workload": "gemm", "held": 2**30}
    api.change_gpu(0, **work, processes=(), allocated_processes=(holder,))
    api.change_gpu(1, processes=(newcomer, display, visible))
    user = USER_NAMES.get(os.getuid())
    expected = [
        ["GPU 0", str(mine.pid), user, "sentinel gemm", "compute", "1 GiB", "sentinel"],
        ["GPU 0", "4712", "ben", "vllm", "compute", "1 MiB", "allocated"],
        ["GPU 1", "4711", "anna", "python", "compute", "3 GiB", "foreign"],
        ["GPU 1", "99", "?", HOSTILE, "graphics", "?", "foreign"],
        ["GPU 1", str(mine.pid), "me", command, "compute", "0 MiB", "foreign"],
    ]
    with opened(chrome, address(api)) as page:
        page.wait_until("document.getElementById('process-table').tBodies[0].rows.length === 5")
        found = [
            [text.replace("\N{NO-BREAK SPACE}", " ") for text in row]
            for row in cells(page, "process-table")
        ]
        assert found == expected
        page.evaluate("document.querySelector('[aria-label=\"Details GPU 1\"]').click()")
        assert [row[1] for row in cells(page, "detail-processes")] == ["4711", "99", str(mine.pid)]
        for index in range(2):
            api.change_gpu(index, pid=None, processes=(), allocated_processes=())
        page.wait_until("document.getElementById('process-table').hidden")
        assert "No process is on a GPU" in page.evaluate("document.querySelector('main').innerText")


def test_findings_verified_work_and_verdicts_are_listed(api: ApiServer, chrome: Browser) -> None:
    counts = VerifiedCounts(seconds=7200.0, checks=12_000, errors=3, findings=1)
    work = VerifiedWork(counts=counts, at=time.monotonic(), workload="gemm")
    api.change_gpu(1, verified=work, findings=1, last_finding="result of gemm")
    with opened(chrome, address(api)) as page:
        rows = "document.getElementById('finding-table').tBodies[0].rows"
        page.wait_until(f"{rows}[1]?.cells[1].textContent === '1: result of gemm'")
        good, bad = cells(page, "finding-table")
        page.wait_until(f"{rows}[0].cells[6].textContent.startsWith('PASS standard, ')")
        assert good[1:4] == ["none", "0", "0"]
        assert [text.replace("\N{NO-BREAK SPACE}", " ") for text in bad[2:5]] == [
            "3",
            "12,000",
            "2 h",
        ]
        assert bad[5].endswith(", gemm")
        assert bad[6].startswith("FAIL standard, ")
        colour = "(place) => getComputedStyle(place).color"
        red = page.evaluate(f"({colour})({rows}[1].cells[6])")
        assert red == page.evaluate(f"({colour})({rows}[1].cells[1])")
        assert red != page.evaluate(f"({colour})({rows}[0].cells[6])")


def test_the_settings_of_the_running_daemon_are_shown_with_their_source(
    api: ApiServer, chrome: Browser
) -> None:
    changed = {"memory.target": "50%"}
    assert ask(api, "PATCH", "/v1/settings", {"settings": changed}).status == 200
    shown = "document.getElementById('settings-table').tBodies[0].rows"
    with opened(chrome, address(api)) as page:
        page.evaluate("document.querySelector('#settings summary').focus()")
        page.press("Enter")
        page.wait_until(f"{shown}.length > 0")
        found = {row[0]: row[2:] for row in cells(page, "settings-table")}
        assert found["memory.target"] == ["50%", "--memory"]
        assert all(source != "default" for _, source in found.values())
        page.evaluate("document.getElementById('settings-all').click()")
        everything = ask(api, "GET", "/v1/settings").body["settings"]
        page.wait_until(f"{shown}.length === {len(everything)}")
        page.evaluate("document.getElementById('settings-search').focus()")
        page.type_text("memory.target")
        page.wait_until(f"{shown}.length === 1")
        # A change from elsewhere is shown without another look.
        body = {"settings": {"memory.target": "40%"}}
        assert ask(api, "PATCH", "/v1/settings", body).status == 200
        api.publish("sentinel.configured", changed=["memory.target"], by=None)
        page.wait_until(f"{shown}[0].cells[2].textContent === '40%'")
        of_one = {"settings": {"memory.target": "30%"}, "gpus": ["1"]}
        assert ask(api, "PATCH", "/v1/settings", of_one).status == 200
        api.publish("sentinel.configured", changed=["memory.target"], by=None)
        page.wait_until(f"[...{shown}].some((one) => one.cells[1].textContent === 'GPU 1')")
    for rest in (b"", b', "gpus": ["1"]'):
        reset = b'{"settings": {"memory.target": null}' + rest + b"}"
        assert ask(api, "PATCH", "/v1/settings", reset).status == 200


def test_the_title_and_the_header_begin_with_the_host(api: ApiServer, chrome: Browser) -> None:
    host = ask(api, "GET", "/v1/status").body["daemon"]["host"]
    with opened(chrome, address(api)) as page:
        page.wait_until(f"document.title.startsWith({json.dumps(host)} + ': 2 occupied')")
        assert page.evaluate("document.querySelector('h1').innerText").startswith(host)
        assert "simulated" not in page.evaluate("document.title")
        api.set(simulated=True)
        page.wait_until("document.title.endsWith('simulated GPUs')")
        assert "simulated GPUs" in page.evaluate("document.querySelector('h1').innerText")


def test_the_foot_names_the_documents(api: ApiServer, chrome: Browser) -> None:
    with opened(chrome, address(api)) as page:
        links = page.evaluate("import('/page/links.js').then((one) => one.LINKS)")
        found = page.evaluate("[...document.querySelectorAll('#about a')].map((one) => one.href)")
        assert len(found) == len(links)
        text = page.evaluate("document.getElementById('about').innerText")
        assert "Documents" in text
        assert links or "man sentinel" in text


# --- the width ---------------------------------------------------------------------------------

#: The curves that do not have the width of their place, or whose place is cut by the window.
MISFITS = """
[...document.querySelectorAll('.u-wrap')].filter((plot) => {
  const place = plot.closest('.plot, .curve').getBoundingClientRect();
  const drawn = plot.querySelector('canvas').getBoundingClientRect();
  const isShown = place.width > 0 && plot.closest('dialog')?.open !== false;
  return isShown && (Math.abs(drawn.width - place.width) > 1 || drawn.right > innerWidth);
}).length
"""


def test_curves_follow_the_width_of_the_window(api: ApiServer, chrome: Browser) -> None:
    with opened(chrome, address(api), 1920, 1080) as page:
        page.wait_until("document.querySelectorAll('.card canvas').length === 6")
        for has_dialog in (False, True):
            if has_dialog:
                page.evaluate("document.querySelector('[aria-label=\"Details GPU 0\"]').click()")
                page.wait_until("document.querySelectorAll('dialog canvas').length === 3")
            for width in (1920, 1100, 700, 390, 1280):
                page.resize(width, 900)
                page.wait_until(f"innerWidth === {width} && {MISFITS} === 0")
                assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_two_gpus_fill_a_wide_screen(api: ApiServer, chrome: Browser) -> None:
    with opened(chrome, address(api), 1920, 1080) as page:
        page.wait_until("document.querySelectorAll('.card canvas').length === 6")
        used = page.evaluate(
            "[...document.querySelectorAll('.card')].reduce((sum, one) => sum + one.offsetWidth, 0)"
            " / document.getElementById('gpus').offsetWidth"
        )
        assert used > 0.95
        board = "document.querySelector('.board').offsetWidth"
        assert page.evaluate(board) > 0.95 * 1920
        # The curves have axes.
        page.wait_until("document.querySelector('.card .plot').offsetHeight >= 150")


def test_tables_have_no_width_beyond_a_phone(api: ApiServer, chrome: Browser) -> None:
    with api.change_supervisor():
        api.supervisor = ExampleNode(count=8)
    with opened(chrome, address(api), 390, 844, mobile=True) as page:
        page.evaluate("document.getElementById('settings').open = true")
        page.wait_until("document.getElementById('finding-table').tBodies[0].rows.length === 8")
        outside = "(one) => one.getBoundingClientRect().right > 391"
        assert (
            page.evaluate(f"[...document.querySelectorAll('main *')].filter({outside}).length") == 0
        )
        label = (
            "getComputedStyle(document.querySelector('#process-table td + td'), '::before').content"
        )
        assert page.evaluate(label) == '"PID"'
