"""The map of nodes and GPUs in the page of a fleet, and the values for its script. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sentinel.burnin.reports.html_parts import kind
from sentinel.burnin.reports.markup import Markup, element, escape, join
from sentinel.burnin.reports.verdict import Verdict
from sentinel.fleet.checks.verdict import MISSING, WORDS, FleetGpu, FleetNode, FleetVerdict
from sentinel.fleet.reports.report import page_of, rate_unit
from sentinel.units import format_count

#: The letter of each verdict; colour is never the only difference.
LETTERS = {
    Verdict.FAIL.value: "F",
    MISSING: "M",
    Verdict.INCOMPLETE.value: "I",
    Verdict.WARN.value: "W",
    Verdict.PASS.value: "P",
    Verdict.NOT_APPLICABLE.value: "N",
}
#: A common beginning of all names is left out of the map if it has at least so many characters.
_MIN_PREFIX = 3
#: So many reasons of one node or GPU are shown.
_MAX_REASONS = 6


def map_section(fleet: FleetVerdict) -> Markup:
    """Build the map with its search and its filters; it is complete without a script."""
    prefix = common_prefix([node.name for node in fleet.nodes])
    most = max((len(node.gpus) for node in fleet.nodes), default=0)
    longest = max((len(node.name) - len(prefix) for node in fleet.nodes), default=0)
    tiles = (_tile(number, node, prefix, most) for number, node in enumerate(fleet.nodes))
    note = f"all names begin with {prefix}, which is left out below" if prefix else ""
    return element(
        "section",
        element(
            "header",
            element("h2", "Map"),
            element(
                "span",
                f"{format_count(len(fleet.nodes), 'node')}, each with its GPUs",
                class_="quiet",
            ),
            element("span", note, class_="quiet") if note else None,
        ),
        _tools(fleet),
        element("p", class_="quiet shown", id="shown", aria_live="polite", hidden=True),
        element(
            "ul",
            *tiles,
            class_="map",
            id="map",
            # The name, the letter of the node and those of its GPUs.
            style=f"--name:{max(longest, 2)}ch;--gpus:{max(most, 1)}",
            aria_label="Nodes and their GPUs by verdict",
        ),
        _key(),
        element("div", id="details", class_="details", role="dialog", hidden=True, tabindex="-1"),
        class_="whole",
    )


def common_prefix(names: Sequence[str]) -> str:
    """Find what all names begin with, up to the digits; empty if it is short."""
    if len(names) < 2:  # noqa: PLR2004 - one name has nothing in common
        return ""
    pairs = zip(min(names), max(names), strict=False)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    found = "".join(one for one, _ in same).rstrip("0123456789")
    return found if len(found) >= _MIN_PREFIX else ""


def _tools(fleet: FleetVerdict) -> Markup:
    """Build the search and a filter for each word that occurs; they need the script."""
    counts = fleet.node_counts
    gpus = fleet.gpu_counts
    filters = (
        element(
            "button",
            element("span", LETTERS[word], class_=f"letter {kind(word)}", aria_hidden="true"),
            join(word, " ", element("span", f"{counts[word]:,}", class_="quiet")),
            type="button",
            aria_pressed="false",
            data_word=word,
            title=f"nodes that are {word}, or have a GPU that is",
        )
        for word in WORDS
        if counts[word] or gpus.get(word)
    )
    search = element("input", type="search", id="search", placeholder="Node, serial or UUID")
    return element(
        "div",
        element("label", element("span", "Search", class_="hidden-label"), search),
        element("div", *filters, class_="filters", role="group", aria_label="Show only"),
        class_="tools",
        hidden=True,
    )


def _tile(number: int, node: FleetNode, prefix: str, most: int) -> Markup:
    """Build a node: its name, its letter, and a cell for each GPU."""
    name = node.name.removeprefix(prefix)
    head = f"<b>{escape(name)}</b><u>{LETTERS[node.word]}</u>"
    if node.missing:
        cells = f'<em style="grid-column:span {max(most, 1)}">missing</em>'
    else:
        cells = "".join(_cell(gpu) for gpu in node.gpus) or "<em>no GPU</em>"
    return Markup(f'<li id="n{number}" class="{kind(node.word)}">{head}{cells}</li>')


def _cell(gpu: FleetGpu) -> str:
    """Build the cell of a GPU; most pass, so these have no class."""
    if gpu.verdict is Verdict.PASS:
        return "<i>P</i>"
    return f'<i class="{kind(gpu.verdict.value)}">{LETTERS[gpu.verdict.value]}</i>'


def _key() -> Markup:
    """Explain the letters."""
    items = (
        join(element("span", letter, class_=f"letter {kind(word)}"), word)
        for word, letter in LETTERS.items()
    )
    return element("ul", *(element("li", item) for item in items), class_="key letters")


# --- for the script --------------------------------------------------------------------------


def data(fleet: FleetVerdict) -> Markup:
    """Build the values for the script as JSON in an element that is never run.

    A node is ``[name, word, path of its page, reasons, GPUs]``; a GPU is ``[index, letter, group,
    uuid, serial, rate, C, W, reasons]``, without what is missing at its end.
    """
    scale, unit = rate_unit(fleet)
    values = [
        [
            node.name,
            node.word,
            page_of(node) or "",
            list(_first(node.reasons)),
            [_gpu_values(gpu, scale) for gpu in node.gpus],
        ]
        for node in fleet.nodes
    ]
    text = json.dumps(values, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="fleet" data-rate="{unit}">{text}</script>')


def _gpu_values(one: FleetGpu, scale: float) -> list[Any]:
    steady = one.gpu.steady
    return [
        one.gpu.index,
        LETTERS[one.verdict.value],
        one.group,
        one.gpu.uuid,
        one.gpu.serial or "",
        None if steady.rate is None else float(f"{steady.rate / scale:.4g}"),
        None if steady.temperature_c is None else float(f"{steady.temperature_c:.4g}"),
        None if steady.power_w is None else float(f"{steady.power_w:.4g}"),
        *([list(_first(one.reasons))] if one.reasons else ()),
    ]


def _first(reasons: Iterable[str]) -> Iterator[str]:
    """Yield the first reasons, and how many are left out."""
    found = list(reasons)
    yield from found[:_MAX_REASONS]
    if len(found) > _MAX_REASONS:
        yield f"and {len(found) - _MAX_REASONS} more"
