"""``sentinel fleet report``: judge a fleet by the reports of its nodes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sentinel.burnin.verdict import EXIT_CODES
from sentinel.cli.terminal import color_option, printable
from sentinel.cli.thresholds_file import load_thresholds
from sentinel.cli.verdict_colours import paint_verdicts
from sentinel.cli.verdict_command import VerdictCommand
from sentinel.errors import ConfigError
from sentinel.fleet.fleet_checks import IDS, LIMITS
from sentinel.fleet.formats import FORMATS
from sentinel.fleet.node_files import read_fleet
from sentinel.fleet.verdict import judge_fleet


@click.command("report", cls=VerdictCommand)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--text", is_flag=True, help="For a terminal: what stands out first (the default).")
@click.option("--html", is_flag=True, help="One page that needs no network.")
@click.option("--junit", is_flag=True, help="JUnit XML, a suite for each node.")
@click.option("--json", is_flag=True, help="One JSON object.")
@click.option("--jsonl", is_flag=True, help="JSON lines, one object for each GPU.")
@color_option
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write a file.")
@click.option(
    "--thresholds", "limits", metavar="FILE", help="Replace limits by those of this TOML file."
)
def report(folder: Path, output: Path | None, limits: str | None, **formats: bool) -> int:
    """Print the verdict of a fleet: of every node, and of all together.

    DIR is the folder of a run of `fleet burnin`, or any folder with the report.json of each node as
    NODE.json. A missing or incomplete file is MISSING, never PASS. GPUs of equal hardware are
    compared: a slow one, and one with other checksums than most, fails.

    The page has links to the nodes' own reports: write it into DIR, as report.html.

    The exit code is that of the verdict: 0 passed, maybe with warnings; 1 failed; 3 incomplete, or
    a node is missing.
    """
    form, *others = [name for name, given in formats.items() if given] or ["text"]
    if others:
        raise click.UsageError(f"--{form} and --{others[0]} exclude each other")
    thresholds = load_thresholds(limits, LIMITS, IDS)
    fleet = judge_fleet(read_fleet(folder), thresholds)
    text = FORMATS[form](fleet)
    if output is None:
        print(_for_a_terminal(text) if form == "text" else text)
    else:
        try:
            output.write_text(f"{text}\n")
        except OSError as error:
            raise ConfigError(f"--output {output}: {error.strerror}") from None
    sys.stdout.flush()
    return int(EXIT_CODES[fleet.verdict])


def _for_a_terminal(text: str) -> str:
    """Colour the verdicts; a node's report must not control the terminal."""
    return paint_verdicts("\n".join(printable(line) for line in text.split("\n")))
