"""The file with the settings that clients have saved: its content, and changes of it. Pure.

It belongs to the daemon, in its state folder, and overrides the configuration file, which belongs
to the administrator and is never written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sentinel.config.build import Given, Override
from sentinel.config.plan import toml_value
from sentinel.config.sources import Sources

#: The name of the file in a state folder.
NAME = "settings.toml"

_HEAD = """\
# Written by `sentinel set --save`. These settings override the configuration file; variables and
# options of the daemon override them. To remove one: sentinel set --save --unset KEY
"""


def with_changes(
    saved: Sources, changes: Mapping[str, str | None], gpus: Iterable[str], path: str
) -> Sources:
    """Return saved settings with changes of some keys; None removes one.

    Args:
        saved: The settings so far.
        changes: The new texts by key.
        gpus: UUIDs; with none, the changes are for all GPUs.
        path: The file, for the sources.
    """
    uuids = tuple(gpus)
    if not uuids:
        return replace(saved, given=_merged(saved.given, changes, f"{path}: "))
    tables = {one.selector: one for one in saved.overrides}
    for uuid in uuids:
        # At the end: a later table of a GPU wins, whatever selects it.
        before = tables.pop(uuid, Override(selector=uuid, source=f"{path}: gpu.{uuid}", given={}))
        given = _merged(before.given, changes, f"{path}: gpu.{uuid}.")
        tables |= {uuid: replace(before, given=given)} if given else {}
    return replace(saved, overrides=tuple(tables.values()))


def text_of(saved: Sources) -> str:
    """Return the text of a file with these settings."""
    tables: dict[str, list[str]] = {"": []}
    _add(tables, "", saved.given)
    for override in saved.overrides:
        _add(tables, f"gpu.{toml_value(override.selector)}", override.given)
    parts = [
        "\n".join([*([f"[{table}]"] if table else []), *lines, ""])
        for table, lines in tables.items()
        if lines
    ]
    return "\n".join([_HEAD, *parts])


def _merged(
    given: Mapping[str, Given], changes: Mapping[str, str | None], prefix: str
) -> dict[str, Given]:
    new = {
        key: Given(text=text, source=f"{prefix}{key}")
        for key, text in changes.items()
        if text is not None
    }
    return {key: value for key, value in given.items() if key not in changes} | new


def _add(tables: dict[str, list[str]], parent: str, given: Mapping[str, Given]) -> None:
    """Add the lines of settings to their tables."""
    for key, value in given.items():
        table, _, name = key.rpartition(".")
        path = ".".join(filter(None, [parent, table]))
        tables.setdefault(path, []).append(f"{name} = {toml_value(value.text)}")
