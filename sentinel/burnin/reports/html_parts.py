"""The parts that all sections of report.html are made of: badges, tables, lists of facts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sentinel.burnin.reports.markup import Child, Markup, element, join

#: The class and the symbol of each verdict and of each status of a check.
_KINDS = {
    "FAIL": "fail",
    "WARN": "warn",
    "PASS": "pass",
    "INCOMPLETE": "incomplete",
    "MISSING": "missing",
    "NOT TESTED": "incomplete",
}


def kind(word: str) -> str:
    """Return the class of a verdict or status."""
    return _KINDS.get(word.upper(), "none")


def badge(word: str) -> Markup:
    """Build a verdict or a status with its colour, its symbol and its word."""
    return element("span", symbol(word), word.upper(), class_=f"badge {kind(word)}")


def symbol(word: str) -> Markup:
    """Build the symbol of a verdict or status."""
    use = element("use", href=f"#i-{kind(word)}")
    return element("svg", use, class_="shape", aria_hidden="true")


def facts(rows: Iterable[tuple[str, Child]], class_: str = "facts") -> Markup:
    """Build a list of names and values, without those that have no value."""
    parts = (
        element("div", element("dt", name), element("dd", value))
        for name, value in rows
        if value not in {None, ""}
    )
    return element("dl", *parts, class_=class_)


def table(
    head: Sequence[str], rows: Iterable[Sequence[Child]], *, class_: str = "", label: str = ""
) -> Markup:
    """Build a table; on a narrow page each row becomes a block, and each cell names its column."""
    columns = (element("th", name, scope="col") for name in head)
    lines = (
        element(
            "tr",
            *(element("td", cell, data_label=name) for name, cell in zip(head, row, strict=True)),
        )
        for row in rows
    )
    return element(
        "table",
        element("thead", element("tr", *columns)),
        element("tbody", *lines),
        class_=class_ or None,
        aria_label=label or None,
    )


def section(title: str, *content: Child, quiet: str = "") -> Markup:
    """Build a part of a GPU's section with its title."""
    note = element("span", quiet, class_="quiet") if quiet else None
    return join(element("h3", title, " " if note else None, note), *content)


def folded(summary: str, *content: Child) -> Markup:
    """Build a part that opens on a click, and that is open on paper."""
    return element("details", element("summary", summary), *content)


def sentence(text: str) -> str:
    """Write a text as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def notices(texts: Sequence[str]) -> Markup:
    """Build what a reader must not miss; nothing if there is nothing."""
    items = (element("li", text) for text in texts)
    return element("ul", *items, class_="notice") if texts else Markup()
