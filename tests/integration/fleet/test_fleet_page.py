"""The page of a fleet in a real browser: its map, its search, its keys and its points."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.checks.check import Thresholds
from sentinel.fleet.formats import html_page
from sentinel.fleet.node_files import read_fleet
from sentinel.fleet.verdict import judge_fleet
from tests.harness.browser import NEEDS_BROWSER, Browser, Page
from tests.harness.example_fleet import ExampleFleet, node_report

pytestmark = NEEDS_BROWSER

WIDE, NARROW = 1600, 400
READY = "document.readyState === 'complete' && !!document.querySelector('#map li[tabindex]')"
VISIBLE = "[...document.querySelectorAll('#map li')].filter((one) => !one.hidden)"
NAMES = f"{VISIBLE}.map((one) => one.querySelector('b').textContent).join()"
DETAILS = "document.getElementById('details')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a fleet with every verdict, and its page."""
    base = tmp_path_factory.mktemp("fleet")
    example = ExampleFleet(
        template=node_report(base),
        nodes=40,
        rates={(2, 3): 0.8, (31, 5): 0.85},
        heat={(3, 1): 25.0},
        wrong=frozenset({(1, 1)}),
        absent=frozenset({4}),
        verdicts={6: "INCOMPLETE", 8: "N/A"},
        pages=True,
    )
    path = example.write(base / "run").path
    (path / "report.html").write_text(html_page(judge_fleet(read_fleet(path), Thresholds())))
    return path


def open_page(page: Page, folder: Path) -> None:
    """Open the page."""
    page.navigate((folder / "report.html").as_uri())
    page.wait_until(READY)


@pytest.fixture
def page(folder: Path, chrome: Browser) -> Iterator[Page]:
    """Return the open page, which runs without an error."""
    with chrome.page(WIDE) as page:
        open_page(page, folder)
        yield page
        assert page.errors == []


def at(page: Page, script: str) -> dict[str, Any]:
    """Return the middle of an element, for the pointer."""
    page.evaluate(f"({script}).scrollIntoView({{block: 'center'}})")
    x, y = page.evaluate(
        f"(() => {{ const box = ({script}).getBoundingClientRect();"
        " return [box.left + box.width / 2, box.top + box.height / 2]; })()"
    )
    return {"x": x, "y": y}


def click(page: Page, script: str) -> None:
    """Click the middle of an element."""
    place = at(page, script)
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)


@pytest.mark.parametrize("width", [WIDE, 800, NARROW])
def test_the_page_fits_its_width_with_everything_open(
    width: int, folder: Path, chrome: Browser
) -> None:
    with chrome.page(width, mobile=width == NARROW) as page:
        open_page(page, folder)
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        click(page, "document.getElementById('n2')")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("document.title") == "FAIL fleet-1, 40 nodes"
        assert page.errors == []


def test_a_click_shows_a_node_and_escape_returns_to_it(folder: Path, page: Page) -> None:
    click(page, "document.querySelectorAll('#n2 i')[3]")
    text = page.evaluate(f"{DETAILS}.innerText")
    assert text.startswith("node-0002")
    assert "fleet.rate" in text
    assert page.evaluate(f"{DETAILS}.querySelector('tr.this td').textContent") == "3"
    link = page.evaluate(f"{DETAILS}.querySelector('a').href")
    assert link == (folder / "nodes" / "node-0002" / "report.html").as_uri()
    # Its eight GPUs are marked in each of the three distributions.
    assert page.evaluate("document.querySelectorAll('.ring-mark.node').length") == 24
    page.press("Escape")
    page.wait_until(f"{DETAILS}.hidden && document.activeElement.id === 'n2'")
    assert page.evaluate("document.querySelectorAll('.ring-mark.node').length") == 0


def test_the_search_finds_nodes_serials_and_uuids(folder: Path, page: Page) -> None:
    values = json.loads((folder / "node-0031.json").read_text())["gpus"][5]
    for typed, names in (("node-003", "0030,0031,0032"), (values["serial"], "0031")):
        page.evaluate("search.value = ''; search.focus()")
        page.type_text(typed)
        page.wait_until(f"{NAMES}.startsWith('{names}')")
    assert page.evaluate(NAMES) == "0031"
    hit = "[...document.querySelectorAll('#n31 i')].findIndex((one) => one.matches('.hit'))"
    assert page.evaluate(hit) == 5
    page.evaluate("search.value = ''; search.focus()")
    page.type_text(values["uuid"].upper())
    page.wait_until(f"{NAMES} === '0031'")
    assert page.evaluate("shown.textContent") == "1 of 40 nodes"


def test_the_filters_show_the_nodes_of_some_verdicts(page: Page) -> None:
    click(page, "document.querySelector('[data-word=FAIL]')")
    assert page.evaluate(NAMES) == "0001,0002,0031"
    click(page, "document.querySelector('[data-word=MISSING]')")
    assert page.evaluate(NAMES) == "0001,0002,0004,0031"
    pressed = "document.querySelectorAll('.filters [aria-pressed=true]').length"
    assert page.evaluate(pressed) == 2
    for word in ("FAIL", "MISSING"):
        click(page, f"document.querySelector('[data-word={word}]')")
    assert page.evaluate(f"{VISIBLE}.length") == 40


def test_the_map_is_one_stop_of_the_tab_key_and_arrows_move_in_it(page: Page) -> None:
    assert page.evaluate("document.querySelectorAll('#map [tabindex=\"0\"]').length") == 1
    page.press("/")
    page.wait_until("document.activeElement === search")
    page.press(
        "Tab", times=1 + page.evaluate("document.querySelectorAll('.filters button').length")
    )
    page.wait_until("document.activeElement.id === 'n0'")
    page.press("ArrowRight")
    page.wait_until("document.activeElement.id === 'n1'")
    page.press("ArrowDown")
    row = page.evaluate("[...map.children].filter((one) => one.offsetTop === n0.offsetTop).length")
    page.wait_until(f"document.activeElement.id === 'n{1 + row}'")
    page.press("Enter")
    page.wait_until(f"{DETAILS}.innerText.startsWith('node-00{1 + row:02}')")


def test_pointing_at_a_gpu_or_at_a_point_names_it(page: Page) -> None:
    move = {"type": "mouseMoved"}
    page.call(
        "Input.dispatchMouseEvent", **move, **at(page, "document.querySelector('#n1 i.fail')")
    )
    page.wait_until("!tip.hidden && tip.textContent.startsWith('node-0001 GPU 1: FAIL')")
    # The slowest GPU is the leftmost point of the rates.
    svg = "document.querySelector('.distribution.rate svg')"
    place = at(page, svg)
    left, width = page.evaluate(f"[{svg}.getBoundingClientRect().left, {svg}.clientWidth]")
    place["x"] = left + width * 0.04 / 1.08
    page.call("Input.dispatchMouseEvent", **move, **place)
    page.wait_until("tip.textContent.startsWith('node-0002 GPU 3: FAIL')")
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
    page.wait_until(f"{DETAILS}.innerText.startsWith('node-0002')")
    page.call("Input.dispatchMouseEvent", **move, x=1, y=1)
    page.wait_until("tip.hidden")


def test_the_page_is_complete_without_scripts(folder: Path, chrome: Browser) -> None:
    with chrome.page(WIDE) as page:
        page.call("Emulation.setScriptExecutionDisabled", value=True)
        page.navigate((folder / "report.html").as_uri())
        page.wait_until("document.readyState === 'complete' && !!document.querySelector('#map li')")
        assert page.evaluate("document.querySelectorAll('#map li').length") == 40
        assert page.evaluate("document.querySelectorAll('.distribution .quiet').length") == 3
        assert page.evaluate("getComputedStyle(document.querySelector('.tools')).display") == "none"
        assert page.evaluate("document.querySelectorAll('.outliers tbody tr').length") == 6
