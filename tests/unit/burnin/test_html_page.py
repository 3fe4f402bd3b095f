"""The page of a burn-in: what it says, that it needs nothing else, and that it trusts no text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.formats import FORMATS
from sentinel.burnin.report import report_object
from sentinel.burnin.timeline import COLUMNS, Span, thinned
from tests.harness.example_run import ExampleRun
from tests.harness.judged_run import RUNS, judged
from tests.harness.parsed_page import Parsed

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
    assert len(parsed.named("script")) == 2  # the values and the script
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
    script = text.partition('<script type="module">')[2].partition("</script>")[0]
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
    assert text.count('<div class="drawing"') == 2 * 4


# --- curves ----------------------------------------------------------------------------------


def points(segments: list[list[tuple[float, float]]], seconds: float) -> list[Any]:
    """Thin a curve; return its points."""
    return list(zip(*thinned(segments, Span(first=0.0, last=seconds, started=None)), strict=True))


def test_a_curve_of_a_day_keeps_the_lowest_and_the_highest_value_of_each_column() -> None:
    values = [(float(at), 50.0 + at % 2) for at in range(86400)]
    values[43210] = (43210.0, 100.0)
    values[70001] = (70001.0, 0.0)
    found = points([values], 86400.0)
    assert len(found) <= 2 * COLUMNS
    assert (43210, 100) in found
    assert (70001, 0) in found
    assert [at for at, _ in found] == sorted(at for at, _ in found)


def test_a_curve_has_a_gap_where_values_are_missing_and_between_phases() -> None:
    values = [(float(at), 50.0) for at in range(100) if not 40 <= at < 60]
    found = points([values[:70], values[70:]], 100.0)
    assert [at for at, value in found if value is None] == [39, 89]
    assert len(found) == len(values) + 2


def test_the_page_has_the_phases_the_absences_and_the_curves_for_its_script(
    tmp_path: Path,
) -> None:
    values = re.search(r'id="plots">(.*?)</script>', page(RUNS["FAIL"], tmp_path))
    assert values is not None
    first, second = json.loads(values[1]).values()
    assert [one["key"] for one in first["curves"]] == ["heat", "power", "clock", "rate"]
    assert [name for *_, name, _ in first["phases"]] == ["1 memory", "2 steady", "3 copy"]
    assert [why for *_, why in first["away"]] == [
        "interrupted by a foreign process (python) for 3 s"
    ]
    assert second["away"] == []
    assert first["seconds"] >= sum(first["curves"][0]["steps"]) > 0.9 * first["seconds"]
