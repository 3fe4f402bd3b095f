"""The colours of the live page and of the reports have the contrast that WCAG 2.2 AA asks for."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from sentinel.protocol.rules import FAULT_STATES, GPU_STATES

SHEET = files("sentinel.web").joinpath("style.css").read_text()
#: The least contrast of text, and of what is not text (WCAG 2.2, 1.4.3 and 1.4.11).
TEXT, GRAPHICS = 4.5, 3.0
Colour = tuple[float, float, float]


def colours(theme: str) -> dict[str, Colour]:
    """Parse the colours of a theme."""
    pairs = re.findall(r"--([\w-]+): light-dark\(#([0-9a-f]{3,6}), #([0-9a-f]{3,6})\);", SHEET)
    return {name: parse(light if theme == "light" else dark) for name, light, dark in pairs}


def parse(text: str) -> Colour:
    digits = "".join(2 * digit for digit in text) if len(text) == 3 else text
    red, green, blue = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    return red, green, blue


def luminance(colour: Colour) -> float:
    """Compute the relative luminance, as WCAG defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
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
def test_every_text_is_readable_on_every_ground(theme: str) -> None:
    found = colours(theme)
    (share,) = re.findall(r"\.badge \{[^}]*var\(--state\) (\d+)%, var\(--card\)", SHEET)
    grounds = [found[name] for name in ("page", "card", "raised")]
    for name in ("text", "quiet", "accent", "pass", "fail", "warn", "incomplete", "none"):
        badge = mixed(found[name], found["card"], int(share) / 100)
        assert contrast(found["text"], badge) >= TEXT, name
        for ground in (*grounds[:2], badge) if name != "accent" else grounds:
            assert contrast(found[name], ground) >= TEXT, name
        assert contrast(found["card"], found[name]) >= TEXT, name  # a letter of the map
    tinted = re.findall(r"color-mix\(in srgb, var\(--(pass|none)\) (\d+)%, var\(--card\)\)", SHEET)
    assert len(tinted) == 3
    for name, percent in tinted:
        assert contrast(found[name], mixed(found[name], found["card"], int(percent) / 100)) >= TEXT
    assert contrast(found["on-accent"], found["accent"]) >= TEXT
    assert contrast(found["page"], found["fail"]) >= TEXT  # the banner


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_curves_are_visible_on_the_bands_of_phases(theme: str) -> None:
    found = colours(theme)
    (bands,) = re.findall(r"--band-odd: light-dark\(rgb\((.*?)%\), rgb\((.*?)%\)\)", SHEET)
    *rgb, _, percent = bands[theme == "dark"].split()
    red, green, blue = (int(channel) / 255 for channel in rgb)
    ground = mixed((red, green, blue), found["card"], int(percent) / 100)
    for name in ("curve-load", "curve-heat", "curve-power", "curve-rate"):
        assert contrast(found[name], ground) >= GRAPHICS, name


def test_each_state_of_a_gpu_has_a_colour() -> None:
    words = re.findall(r"^  (\[data-state.*) \{ --state: var\(--\w+\); \}$", SHEET, re.MULTILINE)
    assert {state for selector in words for state in re.findall(r'"(\w+)"', selector)} == set(
        GPU_STATES | FAULT_STATES
    )


def test_no_text_is_paled_by_its_opacity() -> None:
    # What is disabled has no minimum; hidden controls and drawings have no text.
    without_text = re.compile(r":disabled|aria-disabled|input|\.bar, \.stale \.plot$")
    rules = re.findall(r"([^{};]+)\{([^{}]*)\}", SHEET)
    pale = [name.strip() for name, body in rules if re.search(r"(?<!-)\bopacity: 0", body)]
    assert len(pale) == 4
    assert [name for name in pale if not without_text.search(name)] == []
