"""``sentinel config``: show the settings with their sources, or check a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from sentinel.cli.json_output import print_json
from sentinel.cli.setting_options import settings
from sentinel.config.build import Given
from sentinel.config.model import SETTINGS
from sentinel.config.setting import Setting
from sentinel.config.sources import Sources, checked, read_file
from sentinel.errors import ExitCode
from sentinel.host.unprivileged import look_up


@click.group("config")
def command() -> None:
    """Show the settings with their sources, or check a file."""


@command.command("show")
@settings
@click.option("--origin", is_flag=True, help="Add the source of each value.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(sources: Sources, origin: bool, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Show every setting of a new run, as an equivalent file."""
    checked(sources)
    if as_json:
        print_json(_as_json(sources))
    else:
        click.echo("\n".join(_as_file(sources, origin=origin)))
    return int(ExitCode.OK)


@command.command("check")
@click.argument("file", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(file: str, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Check FILE; exit code 2 if `run` would reject it."""
    sources = read_file(Path(file))
    user = checked(sources).stressor_user
    if user is not None:
        look_up(user, sources.given["stressor.user"].source)
    count = len(sources.given) + sum(len(override.given) for override in sources.overrides)
    if as_json:
        print_json({"file": file, "settings": count})
        return int(ExitCode.OK)
    click.echo(f"{file}: {count} setting{'' if count == 1 else 's'}, all valid")
    return int(ExitCode.OK)


def _as_json(sources: Sources) -> dict[str, Any]:
    """Return every setting with its text and its source."""
    rows = [
        {"key": setting.key, "value": value.text or None, "origin": value.source}
        for setting, value in _effective(sources.given)
    ]
    single = {
        override.selector: [
            {"key": key, "value": given.text, "origin": given.source}
            for key, given in override.given.items()
        ]
        for override in sources.overrides
    }
    file = str(sources.file) if sources.file else None
    return {"file": file, "settings": rows, "gpu": single}


def _effective(given: Mapping[str, Given]) -> Iterator[tuple[Setting, Given]]:
    """Yield each setting with its given or default value."""
    for setting in SETTINGS:
        yield setting, given.get(setting.key, Given(text=setting.default, source="default"))


def _as_file(sources: Sources, *, origin: bool) -> Iterator[str]:
    """Yield the lines of an equivalent file."""
    tables: dict[str, list[tuple[str, Given]]] = {}
    for setting, value in _effective(sources.given):
        table, _, name = setting.key.rpartition(".")
        tables.setdefault(table, []).append((name, value))
    for override in sources.overrides:
        for key, given in override.given.items():
            table, _, name = key.rpartition(".")
            path = ".".join(filter(None, ["gpu", json.dumps(override.selector), table]))
            tables.setdefault(path, []).append((name, given))
    for table, values in tables.items():
        if table:
            yield ""
            yield f"[{table}]"
        for name, value in values:
            line = f"{name} = {json.dumps(value.text)}" if value.text else f"# {name} is not set"
            yield f"{line:<32}  # {value.source}" if origin else line
