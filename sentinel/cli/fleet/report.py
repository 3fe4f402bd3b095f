"""``sentinel fleet report``: judge a fleet by the reports of its nodes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sentinel.burnin.reports.verdict import EXIT_CODES
from sentinel.cli.display.terminal import color_option
from sentinel.cli.display.verdict_colours import paint_verdicts
from sentinel.cli.fleet.run_argument import run_argument
from sentinel.cli.options.thresholds_file import load_thresholds
from sentinel.cli.verdict_command import VerdictCommand
from sentinel.errors import ConfigError
from sentinel.fleet.checks.shared_thresholds import SharedThresholds, read_run_thresholds
from sentinel.fleet.checks.verdict import judge_fleet
from sentinel.fleet.records.node_files import read_fleet
from sentinel.fleet.records.run_file import FleetFolder
from sentinel.fleet.reports.formats import FORMATS


@click.command("report", cls=VerdictCommand)
@run_argument
@click.option("--text", is_flag=True, help="For a terminal: what stands out first (the default).")
@click.option("--html", is_flag=True, help="One page that needs no network.")
@click.option("--junit", is_flag=True, help="JUnit XML, a suite for each node.")
@click.option("--json", is_flag=True, help="One JSON object.")
@click.option("--jsonl", is_flag=True, help="JSON lines, one object for each GPU.")
@color_option
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write a file.")
@click.option(
    "--thresholds",
    "limits",
    metavar="FILE",
    help="Replace limits by those of this TOML file.  [default: those of the run]",
)
def report(fleet: FleetFolder, output: Path | None, limits: str | None, **formats: bool) -> int:
    """Print the verdict of a fleet: of every node, and of all together.

    DIR is the folder of a run of `fleet burnin`, by default the last one, or any folder with the
    report.json of each node as NODE.json. A missing or incomplete file is MISSING, never PASS. GPUs
    of equal hardware are compared: a slow one, and one with other checksums than most, fails.

    The page has links to the nodes' own reports: write it into DIR, as report.html.

    The exit code is that of the verdict: 0 passed, maybe with warnings; 1 failed; 3 incomplete, or
    a node is missing.
    """
    form, *others = [name for name, given in formats.items() if given] or ["text"]
    if others:
        raise click.UsageError(f"--{form} and --{others[0]} exclude each other")
    given = None if limits is None else load_thresholds(limits)
    files = read_fleet(fleet.path)
    if given is None and files.run is not None:
        given = read_run_thresholds(fleet, files.run)
    found = judge_fleet(files, (given or SharedThresholds()).fleet)
    text = FORMATS[form](found)
    if output is None:
        print(paint_verdicts(text) if form == "text" else text)
    else:
        try:
            output.write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--output {output}: {error.strerror}") from None
    sys.stdout.flush()
    return int(EXIT_CODES[found.verdict])
