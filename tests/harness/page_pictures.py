"""Take the pictures of the web page for the documents: ``python -m tests.harness.page_pictures``.

The GPUs on them are made up; the page, the service and the browser are real.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.harness.api_harness import ApiServer
from tests.harness.browser import Page, browser
from tests.harness.example_node import ExampleNode

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
#: Name, GPUs, width, height, theme.
SHOTS = (
    ("page-light", 8, 1280, 860, "light"),
    ("page-dark", 8, 1280, 860, "dark"),
    ("page-phone", 8, 390, 844, "light"),
    ("page-sixteen", 16, 1280, 800, "light"),
)
#: What happened before, with how long ago it was, in seconds.
STORY: tuple[tuple[int, str, dict[str, Any]], ...] = (
    (5200, "stressor.ready", {"index": 0, "held": 126 * 2**30, "start_s": 9.1}),
    (5200, "stressor.ready", {"index": 1, "held": 126 * 2**30, "start_s": 9.2}),
    (5200, "stressor.ready", {"index": 2, "held": 126 * 2**30, "start_s": 9.2}),
    (5100, "gpu.paused", {"index": 5, "for_s": None, "by": {"via": "tcp", "uid": None}}),
    (
        3900,
        "stressor.finding",
        {
            "index": 6,
            "place": "result",
            "workload": "gemm",
            "kind": "repeatable",
            "count": 3,
            "detail": "",
        },
    ),
    (
        600,
        "gpu.reserved",
        {
            "index": 4,
            "reason": "training run of anna",
            "for_s": 7200.0,
            "by": {"via": "unix", "uid": 1000},
        },
    ),
    (
        140,
        "gpu.handed_over",
        {
            "index": 2,
            "evidence": "memory",
            "exit_s": 0.012,
            "memory_back_s": 0.049,
            "processes": [{"pid": 48213, "name": "torchrun", "user": "anna"}],
        },
    ),
    (30, "gpu.unknown", {"index": 7, "reason": "the driver did not answer for 6 s"}),
)

#: A history for the curves, as if one had been kept: the page is asked for it before it is drawn.
CURVES = """
const real = fetch;
globalThis.fetch = (path, ...rest) => {
  if (!String(path).startsWith("/v1/history/")) return real(path, ...rest);
  const reading = (second, begun, figures) =>
    ({ at: new Date(begun + second * 1000).toISOString(), ...figures });
  const gpu = new URLSearchParams(path.split("?")[1]).get("gpu");
  const number = parseInt(gpu.slice(4, 12), 16);
  const begun = Date.now() - 600e3;
  const load = [0.98, 0.97, 0.99, 0.96, 0, 0, 0.98, null][number % 8];
  const readings = Array.from({ length: 600 }, (_, second) => {
    const away = number % 8 === 2 && second > 455 && second < 463;
    const wave = Math.sin(second / (23 + number)) + Math.sin(second / 7 + number) / 3;
    if (load === null && second > 560) return reading(second, begun, {});
    const busy = away ? 0.02 : load ?? 0.97;
    const works = busy > 0.1;
    const rise = number % 8 === 3 ? second / 30 : 0;
    return reading(second, begun, {
      utilization: Math.min(1, Math.max(0, busy + wave * 0.012)),
      temperature_c: (works ? 62 + number % 5 : 33) + wave * 1.6 + rise,
      power_w: works ? 640 + wave * 22 : 84 + wave * 2,
    });
  });
  return Promise.resolve(new Response(JSON.stringify({ readings })));
};
"""


def main() -> None:
    """Take all of them."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        with ApiServer(place, tcp=True) as front, browser(place / "profile") as chrome:
            _tell(front)
            for name, count, width, height, theme in SHOTS:
                with chrome.page(width, height, mobile=width < 500) as page:
                    with front.change_supervisor():
                        front.supervisor = ExampleNode(count=count)
                    _take(front, page, theme, PICTURES / f"{name}.png")


def _take(front: ApiServer, page: Page, theme: str, path: Path) -> None:
    feature = {"name": "prefers-color-scheme", "value": theme}
    page.tell("Emulation.setEmulatedMedia", features=[feature])
    page.tell("Page.addScriptToEvaluateOnNewDocument", source=CURVES)
    token = Path(front.spec.token or "").read_text().strip()
    page.go(f"http://127.0.0.1:{front.port}/#token={token}")
    page.until("document.body?.dataset.connection === 'live'")
    shown = len(front.supervisor.gpus)
    page.until(f"document.querySelectorAll('.card').length === {shown}")
    page.get("new Promise((go) => setTimeout(go, 2500))")
    page.shoot(path)
    _shrink(path)


def _tell(front: ApiServer) -> None:
    """Have the story said."""
    for ago, name, fields in STORY:
        moment = datetime.now(UTC) - timedelta(seconds=ago)
        front.publish(name, time=moment.isoformat(), at=-float(ago), **fields)


def _shrink(path: Path) -> None:
    """Make a picture small, where Pillow is there for it."""
    from PIL import Image

    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(colors=128, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    main()
