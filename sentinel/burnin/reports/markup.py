"""Build HTML from values; every text is escaped, whatever it contains. Pure."""

from __future__ import annotations

import html


class Markup(str):
    """HTML that is complete; any other text is escaped before it becomes a part of it."""

    __slots__ = ()


#: What an element may contain; None is nothing.
Child = str | int | None


def escape(text: Child) -> Markup:
    """Escape a text for an element or an attribute."""
    if text is None:
        return Markup()
    return text if isinstance(text, Markup) else Markup(html.escape(str(text)))


def join(*children: Child) -> Markup:
    """Join parts to one."""
    return Markup("".join(escape(child) for child in children))


def element(name: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Build an element.

    Args:
        name: The name of the element.
        *children: What it contains, in this order.
        **attributes: Its attributes: ``class_`` is ``class``, ``aria_label`` is ``aria-label``.
            True is an attribute without a value; False and None are none.
    """
    given = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        given.append(f" {attribute}" if value is True else f' {attribute}="{escape(str(value))}"')
    return Markup(f"<{name}{''.join(given)}>{join(*children)}</{name}>")
