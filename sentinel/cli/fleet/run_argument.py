"""The argument that names a fleet run: its folder or its id."""

from __future__ import annotations

import os

import click

from sentinel.fleet.records.known_runs import find_fleet, known_folder
from sentinel.fleet.records.run_file import FleetFolder


def _find(_context: click.Context, _parameter: click.Parameter, name: str | None) -> FleetFolder:
    return find_fleet(known_folder(os.environ, os.getuid()), name)


#: Adds the argument ``fleet``, a FleetFolder; without it, that of the last run.
run_argument = click.argument("fleet", metavar="[DIR|RUN]", required=False, callback=_find)
