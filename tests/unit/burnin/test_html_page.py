"""The page of a burn-in: what it says, that it needs nothing else, and that it trusts no text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from sentinel.burnin.reports.formats import FORMATS
from sentinel.burnin.reports.plot import COLUMNS, path
from sentinel.burnin.reports.report import report_object
from sentinel.burnin.reports.timeline import Span
from tests.harness.example_run import ExampleRun
from tests.harness.judged_run import RUNS, judged
from tests.harness.parsed_page import Parsed

#: The least contrast of text, and of what is not text (WCAG 2.2, 1.4.3 and 1.4.11).
TEXT, GRAPHICS = 4.5, 3.0
HOSTILE = "</style></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def page(run: ExampleRun, folder: Path) -> str:
    """Build the page of a run."""
    found = judged(run, folder / "run")
    return FORMATS["html"](found, report_object(found))


@pytest.mark.parametrize("verdict", RUNS)
def test_the_verdict_is_first_with_its_word_symbol_and_colour(verdict: str, tmp_path: Path) -> None:
    kind = "none" if verdict == "N/A" else verdict.lower()
    parsed = Parsed(page(RUNS[verdict], tmp_path))
    assert parsed.text.split("Burn-in of")[0].split()[-1] == verdict
    assert parsed.named("use")[0] == {"href": f"#i-{kind}"}
    assert parsed.named("header")[0] == {"class": f"top {kind}"}


def test_a_reason_has_its_value_threshold_source_and_action(tmp_path: Path) -> None:
    text = Parsed(page(RUNS["FAIL"], tmp_path)).text
    reason = re.sub(r"\s+", " ", text.partition("Wrong Interrupted")[2])
    assert re.search(
        r"FAIL results\.wrong 3 2,000 results checked Action TRIAGE:.*?"
        r"Threshold fail > 0 Source Sentinel.*? Severity isolate",
        reason,
    )


def test_text_from_outside_is_escaped_wherever_it_comes_from(tmp_path: Path) -> None:
    run = ExampleRun(
        name=HOSTILE,
        model=HOSTILE,
        interrupted={0: HOSTILE},
        given_up={1: HOSTILE},
        moved={0: {"inforom": HOSTILE, "lost": HOSTILE}},
    )
    parsed, plain = Parsed(page(run, tmp_path)), Parsed(page(RUNS["FAIL"], tmp_path / "plain"))
    assert parsed.text.count(HOSTILE) > 5
    known = {name for name, _ in plain.elements}
    assert {name for name, _ in parsed.elements} <= known
    assert len(parsed.named("script")) == 1
    assert not [a for _, attributes in parsed.elements for a in attributes if a.startswith("on")]


def test_the_page_loads_nothing_and_allows_no_script_but_its_own(tmp_path: Path) -> None:
    text = page(RUNS["FAIL"], tmp_path)
    parsed = Parsed(text)
    for name, attributes in parsed.elements:
        assert name not in {"img", "link", "iframe", "object", "base"}
        assert "src" not in attributes
        assert str(attributes.get("href", "#")).startswith("#")
    assert "url(" not in text
    assert "@import" not in text
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(one["content"] for one in parsed.named("meta") if "http-equiv" in one)
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def test_every_link_leads_to_a_place_on_the_page(tmp_path: Path) -> None:
    parsed = Parsed(page(RUNS["FAIL"], tmp_path))
    places = {attributes.get("id") for _, attributes in parsed.elements}
    links = [one["href"] for name, one in parsed.elements if name in {"a", "use"}]
    assert links
    assert {str(link)[1:] for link in links} <= places


@pytest.mark.long
def test_a_day_of_eight_gpus_is_a_page_below_five_megabytes(tmp_path: Path) -> None:
    run = ExampleRun(gpus=2, seconds=86400.0, every=12.0, interrupted={1: "python"})
    text = page(run, tmp_path)
    assert 4 * len(text.encode()) < 5e6
    assert text.count('<path class="line"') == 2 * 4


# --- curves ----------------------------------------------------------------------------------


def points(data: str) -> list[tuple[str, int, float]]:
    """Parse the data of a path: how each point is reached, its column and its height."""
    return [
        (letter, int(x), float(y)) for letter, x, y in re.findall(r"([ML])(\d+) ([\d.]+)", data)
    ]


def test_a_curve_of_a_day_keeps_the_lowest_and_the_highest_value_of_each_column() -> None:
    values = [(float(at), 50.0 + at % 2) for at in range(86400)]
    values[43210] = (43210.0, 100.0)
    values[70001] = (70001.0, 0.0)
    found = points(path([values], Span(first=0.0, last=86400.0, started=None), 0.0, 100.0))
    assert len(found) <= 2 * COLUMNS + 4
    assert [letter for letter, _, _ in found].count("M") == 1
    assert [x for _, x, y in found if y == 0.0] == [int(43210 / 86400 * COLUMNS)]
    assert [x for _, x, y in found if y == 100.0] == [int(70001 / 86400 * COLUMNS)]


def test_a_curve_has_a_gap_where_values_are_missing() -> None:
    values = [(float(at), 50.0) for at in range(100) if not 40 <= at < 60]
    found = points(path([values], Span(first=0.0, last=100.0, started=None), 0.0, 100.0))
    starts = [x for letter, x, _ in found if letter == "M"]
    assert starts == [0, 60 * COLUMNS // 100]


def test_a_value_off_the_scale_is_drawn_at_its_edge() -> None:
    span = Span(first=0.0, last=10.0, started=None)
    found = points(path([[(1.0, -5.0), (2.0, 500.0)]], span, 0.0, 100.0))
    assert [y for _, _, y in found] == [100.0, 0.0]


# --- colours ---------------------------------------------------------------------------------


def themes() -> Iterator[dict[str, str]]:
    """Read the colours of the light and of the dark theme from the style sheet."""
    style = resources.files("sentinel.burnin.reports").joinpath("report.css").read_text()
    light, _, rest = style.partition("@media screen and (prefers-color-scheme: dark)")
    dark = rest.partition("* { box-sizing")[0]
    own = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", light))
    yield own
    yield own | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", dark))


def channels(colour: str) -> list[float]:
    """Parse a colour."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * one for one in colour[1:])
    return [int(digits[at : at + 2], 16) for at in (0, 2, 4)]


def luminance(colour: list[float]) -> float:
    """Compute the relative luminance of a colour (WCAG 2.2)."""
    linear = [
        c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4
        for c in colour
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: list[float], second: list[float]) -> float:
    """Compute the contrast of two colours."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", list(themes()), ids=["light", "dark"])
def test_text_and_curves_have_the_contrast_of_level_aa(theme: dict[str, str]) -> None:
    colours = {name: channels(colour) for name, colour in theme.items()}
    card = colours["card"]
    for ground in ("page", "card", "raised"):
        for name in ("text", "quiet", "accent"):
            assert contrast(colours[name], colours[ground]) >= TEXT, (name, ground)
    for name in ("pass", "fail", "warn", "incomplete", "none"):
        badge = [0.1 * one + 0.9 * other for one, other in zip(colours[name], card, strict=True)]
        assert contrast(colours[name], badge) >= TEXT, name
        assert contrast(colours["text"], badge) >= TEXT, name
    band = [114, 178] if theme["card"] == "#fff" else [184, 238]
    ground_ = [0.87 * one + 0.13 * other for one, other in zip(card, [60, *band], strict=True)]
    for name in ("curve-heat", "curve-power", "curve-clock", "curve-rate"):
        assert contrast(colours[name], ground_) >= GRAPHICS, name
