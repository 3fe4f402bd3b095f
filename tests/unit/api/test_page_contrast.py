"""The colours of the web page: each text has the contrast that WCAG 2.2 AA asks for, 4.5."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

import sentinel.api.web as page

FOLDER = Path(page.__file__).parent
BASE, GPUS, TABLES = (
    (FOLDER / name).read_text() for name in ("base.css", "gpus.css", "tables.css")
)
MIN_CONTRAST = 4.5
Colour = tuple[float, float, float]


def variables(theme: str) -> dict[str, Colour]:
    """Parse the colours of a theme; the dark one overrides the light one."""
    blocks = re.findall(r"^:root(.*?) \{(.*?)\}", BASE, re.MULTILINE | re.DOTALL)
    found: dict[str, Colour] = {}
    for selector, body in blocks:
        if selector and theme not in selector:
            continue
        found |= {
            name: parse(text) for name, text in re.findall(r"--([\w-]+): #([0-9a-f]{3,6});", body)
        }
    return found


def parse(text: str) -> Colour:
    digits = "".join(2 * one for one in text) if len(text) == 3 else text
    red, green, blue = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    return red, green, blue


def luminance(colour: Colour) -> float:
    """Compute the relative luminance, as WCAG defines it."""
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def mixed(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (share * a + (1 - share) * b for a, b in zip(one, other, strict=True))
    return red, green, blue


def test_the_contrast_is_computed_as_wcag_does() -> None:
    assert contrast(parse("000"), parse("fff")) == 21
    assert round(contrast(parse("767676"), parse("ffffff")), 2) == 4.54


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_word_of_each_state_is_readable(theme: str) -> None:
    colours = variables(theme)
    words = re.findall(r"^(\[data-state.*) \{ --state: var\(--(\w+)\); \}$", GPUS, re.MULTILINE)
    states = {state for selector, _ in words for state in re.findall(r'"(\w+)"', selector)}
    script = (FOLDER / "words.js").read_text()
    assert states == set(re.findall(r"^  (\w+): \"", script.split("STATES")[1], re.MULTILINE))
    (share,) = re.findall(r"\.badge \{[^}]*var\(--state\) (\d+)%, var\(--card\)", GPUS)
    for _, name in words:
        badge = mixed(colours[name], colours["card"], int(share) / 100)
        for place in (badge, colours["card"], colours["page"]):
            assert contrast(colours[name], place) >= MIN_CONTRAST, name


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("text", ("page", "card", "raised")),
        ("quiet", ("page", "card", "raised")),
        ("failed", ("card", "page")),
        ("busy", ("card",)),
        ("occupied", ("card",)),
        ("idle", ("card",)),
        ("accent", ("page",)),
        ("on-accent", ("accent",)),
        ("page", ("failed",)),
    ],
)
def test_other_texts_are_readable(theme: str, text: str, places: tuple[str, ...]) -> None:
    colours = variables(theme)
    for place in places:
        assert contrast(colours[text], colours[place]) >= MIN_CONTRAST, place


def test_no_text_is_paled_by_its_opacity() -> None:
    # What is disabled has no minimum; hidden controls and drawings have no text.
    without_text = re.compile(r":disabled|aria-disabled|input|\.bar, \.stale \.plot$")
    for sheet in (BASE, GPUS, TABLES):
        rules = re.findall(r"([^{}]+)\{([^{}]*)\}", sheet)
        pale = [name.strip() for name, body in rules if re.search(r"\bopacity: 0", body)]
        assert [name for name in pale if not without_text.search(name)] == []


def test_the_themes_have_the_same_colours() -> None:
    light, dark = (
        re.findall(r"--([\w-]+):", body)
        for body in re.findall(r":root.*?\{(.*?)\}", BASE, re.DOTALL)
    )
    assert set(light) == set(dark)
    assert all(one != other for one, other in pairwise(sorted(light)))
