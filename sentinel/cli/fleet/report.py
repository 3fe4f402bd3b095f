"""``sentinel fleet report``: judge a fleet by the reports of its nodes, now or at its end."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sentinel.burnin.reports.verdict import EXIT_CODES
from sentinel.cli.display.terminal import color_option
from sentinel.cli.display.verdict_colours import paint_verdicts
from sentinel.cli.fleet.watch import print_drained, run_argument, watch_run
from sentinel.cli.options.client_options import duration
from sentinel.cli.options.thresholds_file import load_thresholds
from sentinel.cli.verdict_command import VerdictCommand
from sentinel.errors import ConfigError, ExitCode
from sentinel.fleet.checks.shared_thresholds import SharedThresholds, read_run_thresholds
from sentinel.fleet.checks.verdict import FleetVerdict, judge_fleet
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
@click.option("--watch", is_flag=True, help="Show the nodes until all are done, and judge then.")
@duration(
    "--give-up",
    "give_up_s",
    "With --watch: how long to wait for nodes that are down or held, when all others are done.  "
    "[default: 10m]",
)
@click.option("--drain", is_flag=True, help="Drain the nodes that failed, also again (Slurm).")
def report(
    fleet: FleetFolder,
    output: Path | None,
    limits: str | None,
    give_up_s: float | None,
    watch: bool,  # noqa: FBT001 - click's
    drain: bool,  # noqa: FBT001 - click's
    **formats: bool,
) -> int:
    """Print the verdict of a fleet: of every node, and of all together.

    DIR is the folder of a run of `fleet burnin`, by default the last one, or any folder with the
    report.json of each node as NODE.json. A missing or incomplete file is MISSING, never PASS. GPUs
    of equal hardware are compared: a slow one, and one with other checksums than most, fails.

    With --watch, a run that goes on is shown, by what its nodes write, and judged once it is over.
    Ctrl+C ends this command alone.

    The page has links to the nodes' own reports: write it into DIR, as report.html.

    The exit code is that of the verdict: 0 passed, maybe with warnings; 1 failed; 3 incomplete, or
    a node is missing.
    """
    form, *others = [name for name, given in formats.items() if given] or ["text"]
    if others:
        raise click.UsageError(f"--{form} and --{others[0]} exclude each other")
    if give_up_s is not None and not watch:
        raise click.UsageError("--give-up is for --watch")
    stream = sys.stdout if form == "text" and output is None else sys.stderr
    run = fleet.read() if watch or drain else None
    if run is not None and drain and run.engine != "slurm":
        raise click.UsageError("--drain is for runs by Slurm")
    given = None if limits is None else load_thresholds(limits)
    found: FleetVerdict | None = None
    if watch and run is not None:
        found = watch_run(fleet, run, give_up_s=give_up_s, stream=stream)
        if found is None:
            return int(ExitCode.INTERRUPTED)
        print(file=stream)
    if found is None or given is not None:
        found = _judge(fleet, given)
    _write(FORMATS[form](found), output, painted=form == "text")
    if drain or (watch and run is not None and run.drain):
        print_drained(fleet, found, stream, again=drain)
    sys.stdout.flush()
    return int(EXIT_CODES[found.verdict])


def _judge(fleet: FleetFolder, given: SharedThresholds | None) -> FleetVerdict:
    """Judge what is in the folder now, by the given thresholds or those of the run."""
    files = read_fleet(fleet.path)
    if given is None and files.run is not None:
        given = read_run_thresholds(fleet, files.run)
    return judge_fleet(files, (given or SharedThresholds()).fleet)


def _write(text: str, output: Path | None, *, painted: bool) -> None:
    """Print a report, or write it to a file.

    Raises:
        ConfigError: The file cannot be written.
    """
    if output is None:
        print(paint_verdicts(text) if painted else text)
        return
    try:
        output.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}") from None
