"""``sentinel workloads``: list the workloads, and list and merge golden checksums."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sentinel.cli.display.output import print_json
from sentinel.cli.options.command_options import Printed, prints, together
from sentinel.cli.tools import trial
from sentinel.config.sources import checked, find_file, from_flags, gather
from sentinel.diagnostics.workload_catalog import ListedWorkload, list_workloads
from sentinel.errors import ConfigError, ExitCode
from sentinel.host.daemon_lookup import simulated_folder
from sentinel.host.golden_store import Conflict, Golden, Goldens, locate
from sentinel.host.packages import how_to_install, installer, torch_build
from sentinel.host.regular_file import file_errors
from sentinel.protocol.counters import WorkloadOption
from sentinel.units import format_count

#: The maximum width, and the indent of the lines below a name.
_MAX_WIDTH = 100
_INDENT = " " * 4

_options = together(
    click.option(
        "--goldens", metavar="PATH", help="This file instead of the one in the state directory."
    ),
    click.option(
        "--simulated", is_flag=True, help="The file of the simulated GPUs ($SENTINEL_SIM_DIR)."
    ),
    click.option("--config", metavar="FILE", help="Read settings from this TOML file."),
)


@click.group("goldens", short_help="List, merge or compare golden checksums.")
def goldens_group() -> None:
    """List the golden checksums of this host, or merge those of another."""


def _ours(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the file; pass its path as ``ours``."""

    @functools.wraps(function)
    def located(*, goldens: str | None, config: str | None, simulated: bool, **values: Any) -> Any:
        flags = from_flags({"goldens": goldens} if goldens is not None else {})
        sources = gather(flags, os.environ, find_file(config, os.environ))
        folder = simulated_folder(chosen=simulated)
        path = locate(checked(sources).goldens, os.environ, folder)
        if path is None:
            source = sources.source_of("goldens")
            raise ConfigError(f"{source}: golden checksums are off", "Give a file: --goldens PATH")
        return function(ours=path, **values)

    return _options(located)


@goldens_group.command("list")
@_ours
@prints
def list_(ours: Path) -> Printed:
    """List the records; exit code 1 if two records of one key differ."""
    goldens = _open(ours)
    records = goldens.records()
    count = f"{ours}: {format_count(len(records), 'golden checksum')}"
    fields = {"file": str(ours), "goldens": list(map(_row, records))}
    return _printed(goldens, fields, [*map(_line, records), count])


@goldens_group.command("merge")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@_ours
@prints
def merge(files: tuple[str, ...], ours: Path) -> Printed:
    """Add the new records of each FILE to those of this host.

    A conflicting record is reported and not added; then the exit code is 1.
    """
    goldens = _open(ours, files)
    with file_errors(f"{ours}: cannot be written"):
        added = goldens.add({golden.key: golden.checksum for golden in goldens.records()})
    return _printed(goldens, {"file": str(ours), "added": added}, [f"{ours}: {added} added"])


@goldens_group.command("check", short_help="Compare FILE with the records of this host.")
@click.argument("file", metavar="FILE")
@_ours
@prints
def check(file: str, ours: Path) -> Printed:
    """Compare FILE with the records of this host; exit code 1 if two records differ."""
    goldens = _open(ours, (file,))
    theirs = goldens.keys_in(Path(file))
    new = len(theirs - goldens.keys_in(ours))
    line = f"{file}: {len(theirs)} golden checksums, {new} of them not in {ours}"
    fields = {"file": file, "ours": str(ours), "records": len(theirs), "new": new}
    return _printed(goldens, fields, [line])


def _open(ours: Path, files: Iterable[str] = ()) -> Goldens:
    """Read the records of this host and of other files.

    Raises:
        ConfigError: Another file is missing, or a file cannot be read.
    """
    others = tuple(Path(file) for file in files)
    for other in others:
        if not other.exists():
            raise ConfigError(f"{other}: there is no such file")
    goldens = Goldens(ours, others, warn=lambda _: None)  # printed at the end
    try:
        goldens.ensure_readable()
    except OSError as error:
        raise ConfigError(f"{error.filename or ours}: cannot be read: {error.strerror}") from error
    return goldens


def _printed(goldens: Goldens, fields: Mapping[str, object], lines: Sequence[str]) -> Printed:
    """Describe a result, and the skipped lines and conflicts, of which one has exit code 1."""
    skipped, conflicts = goldens.skipped(), goldens.conflicts()
    return Printed(
        json={
            **fields,
            "conflicts": list(map(_conflict, conflicts)),
            "skipped": [{"at": f"{one.file}:{one.line}", "why": one.why} for one in skipped],
        },
        lines=lines,
        notes=[
            *(f"{one.file}:{one.line}: skipped: {one.why}" for one in skipped),
            *(
                f"CONFLICT: {_line(later)} at {later.file}:{later.line}, "
                f"but {first.checksum:#x} at {first.file}:{first.line}"
                for first, later in ((conflict.first, conflict.later) for conflict in conflicts)
            ),
        ],
        code=ExitCode.FAIL if conflicts else ExitCode.OK,
    )


def _line(golden: Golden) -> str:
    return f"{golden.key}: {golden.checksum:#x}"


def _row(golden: Golden) -> dict[str, object]:
    return {**vars(golden.key), "checksum": f"{golden.checksum:#x}"}


def _conflict(conflict: Conflict) -> dict[str, object]:
    first, later = conflict.first, conflict.later
    return {
        **_row(later),
        "at": f"{later.file}:{later.line}",
        "holds": f"{first.checksum:#x}",
        "holds_at": f"{first.file}:{first.line}",
    }


@click.group("workloads", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> int:
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
    code = int(ExitCode.FAIL if any(workload.error for workload in listed) else ExitCode.OK)
    if stuck:  # the interpreter's exit would wait for the process
        sys.stdout.flush()
        os._exit(code)
    return code


for _command in (trial.try_command, trial.selftest_command, goldens_group):
    command.add_command(_command)


def _page(listed: tuple[ListedWorkload, ...], width: int) -> Iterator[str]:
    """Yield the lines of the list."""
    for workload in listed:
        source = " ".join(filter(None, [workload.package, workload.version])) or "no package"
        yield f"{workload.name}  ({source}, {workload.place})"
        if workload.error is not None:
            yield from _wrapped(f"CANNOT BE USED: {workload.error}", width)
            continue
        if workload.summary:
            yield from _wrapped(workload.summary, width)
        for option in workload.options:
            yield from _wrapped(_option(option), width, hanging=_INDENT)


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
