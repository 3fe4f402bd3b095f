"""The page of a burn-in in a real browser: on a desk, on a telephone and on paper."""

from __future__ import annotations

import base64

import pytest

from sentinel.burnin.formats import FORMATS
from sentinel.burnin.report import report_object
from tests.harness.browser import NEEDS_BROWSER, Browser, Page
from tests.harness.example_run import ExampleRun, judged

pytestmark = NEEDS_BROWSER

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
WIDE, NARROW = 1280, 400
COMPLETE = "document.readyState === 'complete' && !!document.querySelector('.plot.drawn canvas')"
#: The middle of the first plot.
MIDDLE = """(() => {
  document.querySelector(".plot .u-over").scrollIntoView({ block: "center" });
  const box = document.querySelector(".plot .u-over").getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
})()"""

#: The most frequent strong colour of the first curve: that of its line.
DRAWN = """(() => {
  const { width, height } = document.querySelector(".plot canvas");
  const copy = Object.assign(document.createElement("canvas"), { width, height });
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(document.querySelector(".plot canvas"), 0, 0);
  const { data } = context.getImageData(60, 0, width - 60, height);
  const counts = {};
  for (let at = 0; at < data.length; at += 4) {
    const [red, green, blue, opacity] = data.slice(at, at + 4);
    if (opacity === 255 && red > blue + 60) {
      const colour = [red, green, blue].join();
      counts[colour] = (counts[colour] ?? 0) + 1;
    }
  }
  return Object.entries(counts).sort((one, other) => other[1] - one[1])[0]?.[0];
})()"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    run = judged(ExampleRun(interrupted={0: HOSTILE}, wrong={1: 3}, name="p" * 60), folder / "run")
    file = folder / "report.html"
    file.write_text(FORMATS["html"](run, report_object(run)))
    return file.as_uri()


def open_page(page: Page, address: str) -> None:
    """Open the report."""
    page.navigate(address)
    page.wait_until(COMPLETE)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_page_fits_its_width_and_runs_nothing_from_outside(
    width: int, address: str, chrome: Browser
) -> None:
    with chrome.page(width, mobile=width == NARROW) as page:
        open_page(page, address)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("document.title").startswith("FAIL node-7")
        # Every folded part, too.
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.errors == []


def test_hovering_shows_the_values_at_that_time(address: str, chrome: Browser) -> None:
    with chrome.page(WIDE) as page:
        open_page(page, address)
        x, y = page.evaluate(MIDDLE)
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        page.wait_until("document.querySelector('.plot output').textContent !== ''")
        outputs = "[...document.querySelector('.plot').querySelectorAll('output')]"
        values = page.evaluate(f"{outputs}.map((one) => one.textContent)")
        assert [text.split()[0] for text in values] == ["00:01:30"] * 4
        assert [text.split()[-1] for text in values] == ["°C", "W", "MHz", "%"]
        heat = [float(word) for word in values[0].split()[1:-1] if word != "to"]
        assert all(61.5 <= value <= 64.5 for value in heat), values
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        page.wait_until("document.querySelector('.plot output').textContent === ''")
        assert page.errors == []


def test_the_page_is_complete_without_scripts(address: str, chrome: Browser) -> None:
    with chrome.page(WIDE) as page:
        page.call("Emulation.setScriptExecutionDisabled", value=True)
        page.navigate(address)
        page.wait_until("document.readyState === 'complete' && !!document.querySelector('.plot')")
        assert page.evaluate("document.querySelectorAll('canvas').length") == 0
        heads = "[...document.querySelectorAll('.plot .head')].map((one) => one.innerText)"
        assert "slows down at 89" in page.evaluate(heads)[0]
        assert len(page.evaluate(heads)) == 8
        notice = "[...document.querySelectorAll('.notice')].map((one) => one.innerText).join()"
        assert "The curves need JavaScript" in page.evaluate(notice)
        assert page.errors == []


def test_on_paper_every_part_is_open_and_tables_are_tables(address: str, chrome: Browser) -> None:
    table = "document.querySelector('details table')"
    with chrome.page(WIDE) as page:
        open_page(page, address)
        assert page.evaluate(f"{table}.checkVisibility()") is False
        page.call("Emulation.setEmulatedMedia", media="print")
        page.wait_until(f"{table}.checkVisibility() && {table}.offsetHeight > 20")
        page.resize(718, 1000)  # of A4 between its margins
        assert page.evaluate(f"getComputedStyle({table}).display") == "table"
        assert page.evaluate("document.documentElement.scrollWidth") == 718
        printed = base64.b64decode(page.call("Page.printToPDF")["data"])
        assert printed.startswith(b"%PDF")
        assert page.errors == []


def test_curves_are_drawn_in_the_colours_and_the_width_of_the_paper(
    address: str, chrome: Browser
) -> None:
    """The page is dark; while it is printed, its lines are those of the light theme."""
    width = "document.querySelector('.plot canvas').offsetWidth"
    with chrome.page(WIDE) as page:
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        page.call("Emulation.setEmulatedMedia", features=features)
        open_page(page, address)
        dark, wide = page.evaluate(DRAWN), page.evaluate(width)
        assert dark == "255,154,92"
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.wait_until(f"{DRAWN} === '198,83,0' && {width} === 690")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.wait_until(f"{DRAWN} === '{dark}' && {width} === {wide}")
        assert page.errors == []
