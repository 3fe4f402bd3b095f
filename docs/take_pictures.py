"""Take the pictures of the web pages for the documents: ``python -m docs.take_pictures``.

The GPUs are invented; the pages, the API process and the browser are real.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.formats import FORMATS
from sentinel.burnin.report import report_object
from sentinel.fleet.formats import html_page
from sentinel.fleet.node_files import read_fleet
from sentinel.fleet.verdict import judge_fleet
from sentinel.protocol import __version__
from tests.harness.api_harness import ApiServer, ask
from tests.harness.browser import Browser, Page, browser
from tests.harness.burnin_report import write_report
from tests.harness.example_fleet import ExampleFleet, node_report
from tests.harness.example_node import SINCE_S, ExampleNode, uuid
from tests.harness.example_run import ExampleRun, judged

#: The folder of the pictures; another one is the argument.
FOLDER = Path(__file__).resolve().parent / "pictures"
if len(sys.argv) > 1:
    FOLDER = Path(sys.argv[1]).resolve()


class Picture(NamedTuple):
    """One picture."""

    name: str
    gpus: int
    width: int
    height: int
    theme: str
    #: The picture ends with this element; an empty selector is the whole page.
    last: str
    #: The range of the curves in seconds.
    span: int = 600
    #: Whether the supervisor has stopped.
    stale: bool = False
    #: These elements are left out.
    without: str = ""


PICTURES = (
    Picture("page-light", 8, 1400, 900, "light", ".key"),
    Picture("page-panels", 8, 960, 800, "light", "", without="header, .summary, .gpus, .timeline"),
    Picture("page-dark", 8, 1400, 900, "dark", ".key"),
    Picture("page-phone", 8, 390, 844, "light", "#gpu-1"),
    Picture("page-two", 2, 1920, 1080, "dark", "", span=86_400),
    Picture("page-sixteen", 16, 1280, 800, "light", "#gpu-15"),
    Picture("page-stale", 4, 1280, 800, "light", "#gpu-3", stale=True),
)
#: A page that is narrower is that of a phone, in pixels.
PHONE_WIDTH = 500
#: The GPU that has failed its burn-in.
FAULTY = 6
#: The settings that are not defaults.
SETTINGS = {"memory.target": "90%", "rearm": "10s", "throttle.pace": "full"}
#: The burn-in whose report is taken: a job interrupted it, and three results were wrong.
REPORT = ExampleRun(
    gpus=4, seconds=600.0, name="standard", wrong={0: 3}, interrupted={0: "torchrun"}
)
BY_USER = {"via": "unix", "uid": 1000, "pid": 47110}
HELD = {"held": 126 * 2**30, "asked": 126 * 2**30, "chunks": 252, "refused": False}
#: The events in the timeline: their GPU, name and fields.
EVENTS: tuple[tuple[int, str, dict[str, Any]], ...] = (
    (0, "stressor.ready", {**HELD, "start_s": 9.1}),
    (1, "stressor.ready", {**HELD, "start_s": 9.2}),
    (5, "gpu.paused", {"for_s": 11700.0, "by": {"via": "tcp", "uid": None, "pid": None}}),
    (
        6,
        "stressor.finding",
        {
            "place": "result",
            "workload": "gemm",
            "dtype": "bf16",
            "kind": "repeatable",
            "count": 3,
            "first": [1207, 88],
            "bits": [0] * 6 + [1] + [0] * 9,
            "repeats": 3,
            "repeated": 3,
        },
    ),
    (
        4,
        "gpu.reserved",
        {
            "id": "7c2e406a",
            "reason": "training run of anna",
            "for_s": 7200.0,
            "bound": False,
            "by": BY_USER,
        },
    ),
    (2, "gpu.yielding", {"processes": [], "grown": 540 * 2**20}),
    (2, "gpu.handed_over", {"kill_s": 0.001, "exit_s": 0.012, "memory_back_s": 0.049}),
    (7, "gpu.unknown", {"reason": "the driver did not answer for 6 s", "lost": False}),
)

#: Invented readings for the curves, instead of those of the API.
CURVES = """
const real = fetch;
globalThis.fetch = (path, ...rest) => {
  if (!String(path).startsWith("/v1/history/readings")) return real(path, ...rest);
  const query = new URLSearchParams(path.split("?")[1]);
  const step_s = parseInt(query.get("since")) / 600;
  const reading = (second, begun, figures) =>
    ({ at: new Date(begun + second * step_s * 1000).toISOString(), ...figures });
  const number = parseInt(query.get("gpu").slice(4, 12), 16);
  const begun = Date.now() - 600e3 * step_s;
  const load = [0.98, 0.97, 0.99, 0.96, 0, 0, 0.98, null][number % 8];
  const readings = Array.from({ length: 600 }, (_, second) => {
    const away = number % 8 === 2 && second > 455 && second < 463;
    const wave = Math.sin(second / (23 + number)) + Math.sin(second / 7 + number) / 3;
    if (load === null && second > 560) return reading(second, begun, {});
    const busy = away ? 0.02 : load ?? 0.97;
    const works = busy > 0.1;
    const rise = number % 8 === 3 ? second / 30 : 0;
    const heat = (works ? 62 + number % 5 : 33) + wave * 1.6 + rise;
    const power = works ? 640 + wave * 22 : 84 + wave * 2;
    return reading(second, begun, {
      utilization: Math.min(1, Math.max(0, busy + wave * 0.012)),
      temperature_c: heat,
      power_w: power,
      ...(step_s > 1 ? {
        temperature_min_c: heat - 4,
        temperature_max_c: heat + 3,
        power_min_w: power - 60,
        power_max_w: Math.min(700, power + 40),
      } : {}),
    });
  }).filter((_, second) => step_s === 1 || second < 240 || second > 300);
  return Promise.resolve(new Response(JSON.stringify({ readings, step_s })));
};
"""


def main() -> None:
    """Take all pictures."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        _api(Path(name)) as api,
        browser(Path(name) / "profile") as chrome,
    ):
        for gpu, event, fields in sorted(EVENTS, key=lambda one: -SINCE_S[one[0]]):
            ago = SINCE_S[gpu]
            moment = datetime.now(UTC) - timedelta(seconds=ago)
            api.publish(event, time=moment.isoformat(), at=-float(ago), index=gpu, **fields)
        ask(api, "PATCH", "/v1/settings", {"settings": SETTINGS})
        for picture in PICTURES:
            with api.change_supervisor():
                api.supervisor = ExampleNode(count=picture.gpus)
            _take(picture, api, chrome)
        _take_report(Path(name), chrome)
        _take_fleet(Path(name), chrome)


def _take_report(folder: Path, chrome: Browser) -> None:
    """Save a picture of the page of an invented burn-in, down to the end of its first plot."""
    run = judged(REPORT, folder / "20261123-080000-standard")
    file = folder / "report.html"
    file.write_text(FORMATS["html"](run, report_object(run)))
    with chrome.page(1280, 800) as page:
        page.navigate(file.as_uri())
        page.wait_until("document.readyState === 'complete'")
        end = "document.querySelector('.key').getBoundingClientRect().bottom + 14"
        page.resize(1280, int(page.evaluate(end)))
        path = FOLDER / "burnin-report.png"
        page.screenshot(path)
    _shrink(path)


def _take_fleet(folder: Path, chrome: Browser) -> None:
    """Save a picture of the page of an invented fleet, down to the end of the distributions."""
    fleet = ExampleFleet(
        template=node_report(folder),
        nodes=200,
        rates={(17, 6): 0.86, (88, 2): 0.93},
        heat={(30, 1): 18.0, (141, 4): 22.0},
        node_rates={121: 0.94},
        wrong=frozenset({(56, 3)}),
        absent=frozenset({40, 41, 42}),
        half=frozenset({150}),
        verdicts={9: "INCOMPLETE"},
        short=frozenset({99}),
        pages=True,
    ).write(folder / "fleet")
    file = fleet.path / "report.html"
    file.write_text(html_page(judge_fleet(read_fleet(fleet.path), Thresholds())))
    with chrome.page(1400, 800) as page:
        page.navigate(file.as_uri())
        page.wait_until("document.readyState === 'complete'")
        page.resize(1400, _height(page, ".distributions"))
        path = FOLDER / "fleet-report.png"
        page.screenshot(path)
    _shrink(path)


def _api(folder: Path) -> ApiServer:
    """Create an API process of the present version."""
    write_report(folder, {uuid(gpu): "FAIL" if gpu == FAULTY else "PASS" for gpu in range(8)})
    api = ApiServer(folder, tcp=True)
    api.spec = replace(api.spec, version=__version__)
    return api


def _take(picture: Picture, api: ApiServer, chrome: Browser) -> None:
    """Open the page, and save a picture of it."""
    width, height = picture.width, picture.height
    mobile = width < PHONE_WIDTH
    token = Path(api.spec.token or "").read_text().strip()
    with chrome.page(width, height, mobile=mobile) as page:
        feature = {"name": "prefers-color-scheme", "value": picture.theme}
        page.call("Emulation.setEmulatedMedia", features=[feature])
        page.call("Page.addScriptToEvaluateOnNewDocument", source=CURVES)
        page.navigate(f"http://127.0.0.1:{api.port}/#token={token}")
        page.wait_until("document.body?.dataset.connection === 'live'")
        page.wait_until(f"document.querySelectorAll('.card').length === {picture.gpus}")
        if picture.span != PICTURES[0].span:
            page.evaluate(f"document.querySelector('#ranges [value=\"{picture.span}\"]').click()")
        if picture.stale:
            with api.change_supervisor() as supervisor:
                supervisor.sends_no_views = True
            page.wait_until("document.body.dataset.connection === 'lost'")
        if picture.without:
            page.evaluate(
                f"for (const one of document.querySelectorAll('{picture.without}'))"
                " one.hidden = true; document.getElementById('settings').open = true"
            )
            rows = "document.getElementById('settings-table').tBodies[0].rows.length"
            page.wait_until(f"{rows} === {len(SETTINGS)}")
        page.resize(width, _height(page, picture.last), mobile=mobile)
        page.evaluate("new Promise((done) => setTimeout(done, 2500))")  # until all curves are drawn
        path = FOLDER / f"{picture.name}.png"
        page.screenshot(path)
    _shrink(path)


def _height(page: Page, last: str) -> int:
    """Measure the page to the end of an element, or the whole page."""
    end = f"document.querySelector('{last}').getBoundingClientRect().bottom + 14"
    return int(page.evaluate(end if last else "document.documentElement.scrollHeight"))


def _shrink(path: Path) -> None:
    """Reduce the size of a picture file."""
    from PIL import Image

    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(colors=128, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)


if __name__ == "__main__":
    main()
