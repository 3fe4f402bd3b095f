"""Print objects as JSON: the one encoder of every ``--json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from sentinel.protocol.version import SCHEMA_VERSION


def print_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object with its schema version."""
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **to_json(values)}))


def to_json(value: Any) -> Any:
    """Convert a value to JSON types: dataclasses to objects, times to ISO 8601, paths to text."""
    if is_dataclass(value) and not isinstance(value, type):
        # By the names of the API: `alias` is that of a field whose own is a keyword of Python.
        return {
            field.metadata.get("alias", field.name): to_json(getattr(value, field.name))
            for field in fields(value)
        }
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z")  # as the API writes it
        case Path():
            return str(value)
        case Mapping():
            return {key: to_json(one) for key, one in value.items()}
        case list() | tuple():
            return [to_json(one) for one in value]
        case _:
            return value
