"""The text of a new configuration file, and the JSON Schema of any. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from sentinel.config.model import SETTINGS
from sentinel.config.setting import Scope, Setting

_HEAD = """\
# The settings of sentinel. Each line that is commented out has the default; remove the # to change
# one, and check the file with: sentinel config check. Options and SENTINEL_ variables override it.
"""
_SINGLE = """\
# Settings of a single GPU, by index, UUID or PCI address; those marked "each GPU" may stand here.
# [gpu.0]
# memory.target = "50%"
"""
_WIDTH = 100


# --- a new file ------------------------------------------------------------------------------


def new_file_text() -> str:
    """Return a file with every setting, its default and its meaning, all commented out.

    A setting without a default has its form in angle brackets.
    """
    tables: dict[str, list[Setting]] = {}
    for setting in SETTINGS:
        tables.setdefault(setting.key.rpartition(".")[0], []).append(setting)
    lines = [_HEAD]
    for table, settings in tables.items():
        if table:
            lines.append(f"[{table}]\n")
        lines += [f"{_described(setting)}\n" for setting in settings]
    return "\n".join([*lines, _SINGLE])


def _described(setting: Setting) -> str:
    """Return the lines of one setting."""
    notes = [setting.help.replace("`", "")]
    if setting.limits:
        notes.append(f"Allowed is {setting.limits}.")
    if setting.form.words:
        notes.append(f"Allowed: {', '.join(setting.form.words)}.")
    if setting.scope is Scope.GPU:
        notes.append("For each GPU.")
    if setting.scope is Scope.START:
        notes.append("It takes effect at the next start.")
    text = setting.default or f"<{setting.form.metavar}>"
    comment = textwrap.wrap(" ".join(notes), _WIDTH - 2, break_on_hyphens=False)
    name = setting.key.rpartition(".")[2]
    return "\n".join([*(f"# {line}" for line in comment), f"# {name} = {json.dumps(text)}"])


# --- the schema ------------------------------------------------------------------------------


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a configuration file.

    It knows keys, types and words; `sentinel config check` knows what a value may be.
    """
    schema = _table(SETTINGS)
    single = _table(setting for setting in SETTINGS if setting.scope is Scope.GPU)
    schema["properties"]["gpu"] = {
        "description": "Settings of single GPUs, by index, UUID, its unique beginning, or PCI"
        " address.",
        "type": "object",
        "additionalProperties": single,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The configuration file of sentinel",
        **schema,
    }


def _table(settings: Iterable[Setting]) -> dict[str, Any]:
    """Return the schema of a table with these settings, those in nested tables included."""
    properties: dict[str, Any] = {}
    for setting in settings:
        place = properties
        *tables, name = setting.key.split(".")
        for table in tables:
            nested = place.setdefault(
                table, {"type": "object", "properties": {}, "additionalProperties": False}
            )
            place = nested["properties"]
        place[name] = dict(_value(setting))
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _value(setting: Setting) -> Iterator[tuple[str, Any]]:
    """Yield the parts of the schema of one value."""
    limits = f" Allowed is {setting.limits}." if setting.limits else ""
    yield "description", f"{setting.help}{limits}"
    if setting.form.words:
        yield "enum", list(setting.form.words)
    elif setting.form.many:
        item = {"type": ["string", "number"]}
        yield "anyOf", [item, {"type": "array", "items": item}]
    else:
        yield "type", ["string", "number"]
    if setting.default:
        yield "default", setting.default
    yield "examples", [setting.default or setting.form.metavar]
