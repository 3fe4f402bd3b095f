"""``sentinel workloads``: list the workloads with their origins and options."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator

import click

from sentinel.cli.display.json_output import print_json
from sentinel.cli.tools import goldens, selftest, trial
from sentinel.diagnostics.workload_catalog import Listed, list_workloads
from sentinel.errors import ExitCode
from sentinel.host.installed.packages import how_to_install, installer, torch_build
from sentinel.protocol.counters import WorkloadOption

#: The maximum width, and the indent of the lines below a name.
_MAX_WIDTH = 100
_INDENT = " " * 4


@click.group("workloads", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> int:  # noqa: FBT001 - click's
    """List the installed workloads with their options, try one, or prove what their checks find."""
    if ctx.invoked_subcommand is not None:
        return int(ExitCode.OK)
    listed, stuck = list_workloads()
    if as_json:
        print_json({"workloads": listed})
    else:
        width = min(_MAX_WIDTH, shutil.get_terminal_size((_MAX_WIDTH, 24)).columns)
        click.echo("\n".join(_page(listed, width)))
        if torch_build() is None:
            click.echo(f"torch is not installed. {how_to_install(None, installer())}", err=True)
    code = int(ExitCode.FAIL if any(one.error for one in listed) else ExitCode.OK)
    if stuck:  # the interpreter's exit would wait for the process
        sys.stdout.flush()
        os._exit(code)
    return code


for _command in (trial.command, selftest.command, goldens.command):
    command.add_command(_command)


def _page(listed: tuple[Listed, ...], width: int) -> Iterator[str]:
    """Yield the lines of the list."""
    for one in listed:
        source = " ".join(filter(None, [one.package, one.version])) or "no package"
        yield f"{one.name}  ({source}, {one.place})"
        if one.error is not None:
            yield from _wrapped(f"CANNOT BE USED: {one.error}", width)
            continue
        if one.summary:
            yield from _wrapped(one.summary, width)
        for option in one.options:
            yield from _wrapped(_option(option), width, hanging=_INDENT)
    if not listed:
        yield "No workload is registered. Is the package installed with pip?"


def _option(option: WorkloadOption) -> str:
    default = "required" if option.default is None else f"default {option.default or 'empty'}"
    text = f": {option.text}" if option.text else ""
    return f"{option.name} ({option.kind}, {default}){text}"


def _wrapped(text: str, width: int, hanging: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        max(40, width),
        initial_indent=_INDENT,
        subsequent_indent=_INDENT + hanging,
        break_on_hyphens=False,
    )
