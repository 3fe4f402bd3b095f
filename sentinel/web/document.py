"""Render a report as one HTML document, which needs no network and runs its own script alone."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

#: The class of each verdict and of each status of a check, and the name of its symbol.
_KINDS = {
    "FAIL": "fail",
    "WARN": "warn",
    "PASS": "pass",
    "INCOMPLETE": "incomplete",
    "MISSING": "missing",
    "NOT TESTED": "incomplete",
}


def html_document(
    template: str,
    *,
    scripts: Sequence[str],
    filters: Mapping[str, Callable[..., Any]],
    **values: Any,
) -> str:
    """Render a template as a document.

    Args:
        template: The name of the file in ``templates``; every value is escaped in it.
        scripts: The scripts of this folder that the document has, each after what it imports.
        filters: The functions by which the template formats values.
        **values: The values that the template shows.
    """
    script = _joined(scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rendered: str = _template(template, tuple(filters.items())).render(
        values, style=_style(scripts), script=script, script_hash=f"sha256-{digest}"
    )
    return rendered


@cache  # a report that is watched is rendered again and again
def _template(name: str, filters: tuple[tuple[str, Callable[..., Any]], ...]) -> Any:
    """Compile a template."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # only if there is a report

    environment = Environment(
        autoescape=True,
        extensions=["jinja2.ext.do"],
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        loader=FunctionLoader(lambda name: _read(f"templates/{name}")),
    )
    environment.filters.update(filters, kind=_kind, sentence=_sentence)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    return environment.get_template(name)


def _read(name: str) -> str:
    """Read a file of this folder."""
    return files(__package__).joinpath(name).read_text()


def _style(scripts: Sequence[str]) -> str:
    """Return the style sheet, without comments, indentation and the rules of the live page."""
    whole = _read("style.css")
    if any("uPlot" in name for name in scripts):
        whole += _read("vendor/uPlot.min.css")
    whole = re.sub(r"^\.live \{.*?^\}\n|/\*.*?\*/", "", whole, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\s*\n\s*", "\n", whole).strip()


def _joined(scripts: Sequence[str]) -> str:
    """Join modules to one script: a file that is opened from a disk can import nothing."""
    left_out = r"^import .*\n|^export |^\s*(//|/\*\* ).*\n"
    return "".join(re.sub(left_out, "", _read(name), flags=re.MULTILINE) for name in scripts)


def _kind(word: str) -> str:
    """Return the class of a verdict or status."""
    return _KINDS.get(word.upper(), "none")


def _sentence(text: str) -> str:
    """Write a text as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."
