"""``sentinel report``: build the report of a burn-in again from its folder, or compare two."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from sentinel.burnin.compare import compare, compare_lines
from sentinel.burnin.formats import FORMATS, stored_report
from sentinel.burnin.manifest import check_manifest, sign, signer
from sentinel.burnin.report import Judged, judge_run, report_object
from sentinel.burnin.run_folder import RunFolder, find_run, read_object
from sentinel.burnin.verdict import MEANING, STRICT_WARN, Verdict, exit_code
from sentinel.cli.display.output import color_option, printable
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_options import (
    address_options,
    chosen_form,
    print_report,
    strict_option,
)
from sentinel.cli.options.setting_options import load_thresholds, thresholds_option
from sentinel.errors import ConfigError, ExitCode, IncompleteError
from sentinel.host.daemon_lookup import find_shared, simulated_folder
from sentinel.host.process_setup import leave
from sentinel.protocol import __version__


@click.command("report")
@click.argument("runs", metavar="[RUN]", nargs=-1, shell_complete=value_completion.runs)
@click.option("--text", is_flag=True, help="For a terminal (the default).")
@click.option("--html", is_flag=True, help="One page that needs no network.")
@click.option("--junit", is_flag=True, help="JUnit XML, a suite for each GPU.")
@click.option("--ocp", is_flag=True, help="OCP Test & Validation 2.0, a message a line.")
@click.option("--json", is_flag=True, help="One JSON object.")
@click.option("--summary", is_flag=True, help="The verdicts in a JSON object of at most 4 KiB.")
@click.option(
    "--stored",
    is_flag=True,
    help="What the run's own report.json says, as text, junit, ocp, json or summary.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Fail for a file that is not as manifest.json says; implies --stored.",
)
@click.option(
    "--signers",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --verify: fail if none of these signed it (ssh-keygen's allowed signers).",
)
@click.option(
    "--sign",
    "key",
    type=click.Path(path_type=Path),
    metavar="KEY",
    help="Sign manifest.json with this key of ssh-keygen first.",
)
@click.option("--compare", "both", is_flag=True, help="Compare two runs.")
@address_options
@color_option
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write a file.")
@thresholds_option()
@strict_option
def command(
    runs: tuple[str, ...],
    both: bool,
    stored: bool,
    verify: bool,
    signers: Path | None,
    key: Path | None,
    strict: bool,
    output: Path | None,
    limits: str | None,
    socket: str | None,
    simulated: bool,
    **formats: bool,
) -> int:
    """Print the report of a burn-in, judged by the thresholds of the run.

    With other thresholds it is judged again; the report says so in each format.

    RUN is a folder or the name of a run in the state directory; without it, the newest run there.
    Daemons of several sockets share that directory, unless it was moved for one of them.
    With `--compare`, give two. The exit code is that of the verdict, as for `burnin`; 0 for a
    comparison.
    """
    form = chosen_form(formats)
    wanted = 2 if both else 1
    if both and form not in {"text", "json"}:
        raise click.UsageError(f"--compare cannot be combined with --{form}")
    if len(runs) > wanted or (both and len(runs) < wanted):
        raise click.UsageError("--compare needs two runs" if both else "give one run")
    if signers is not None and not verify:
        raise click.UsageError("--signers needs --verify")
    stored = stored or verify or key is not None
    if stored and (both or limits or form == "html"):
        raise click.UsageError(
            "--stored, --verify and --sign exclude --compare, --thresholds, --html"
        )
    thresholds = None if limits is None else load_thresholds(limits).node
    folders = [_find(run, socket, simulated=simulated) for run in runs or (None,)]
    if stored:
        folder = RunFolder(path=folders[0])
        if key is not None:
            sign(folder, key)
        if verify:
            click.echo(_verified(folder, signers), err=form != "text" or output is not None)
        report = _strictly(stored_report(folder), strict=strict)
        text, verdict = _read_stored(form, None, report, folder)
        print_report(text, output, painted=form == "text")
        sys.stdout.flush()
        return int(exit_code(verdict, strict=bool(report.get("strict"))))
    found = [
        replace(judge_run(RunFolder(path=folder), thresholds), read_strictly=strict)
        for folder in folders
    ]
    if both:
        print_report(_comparison(found, form), output, painted=False)
        sys.stdout.flush()
        return int(leave(ExitCode.OK, clean=not any(gpu.stuck for gpu in found)))
    verdict, text = found[0].verdict, FORMATS[form](found[0], report_object(found[0]))
    said = None if limits is not None else _said(RunFolder(path=folders[0]))
    if said is not None and verdict is not _worst(said, verdict):
        # A copy of the folder has no earlier runs beside it, for example.
        folder = RunFolder(path=folders[0])
        report = _strictly(read_object(folder.report), strict=strict)
        text, verdict = _read_stored(form, found[0], report, folder)
        click.echo(f"sentinel: warning: {said} stands: so says the run's own report", err=True)
    print_report(text, output, painted=form == "text")
    code = exit_code(verdict, strict=found[0].strict)
    sys.stdout.flush()
    return int(leave(code, clean=not any(gpu.stuck for gpu in found)))


def _strictly(report: Mapping[str, Any], *, strict: bool) -> Mapping[str, Any]:
    """Let a WARN of a stored report not pass in any format; a run that was begun so stays so."""
    if not strict or report.get("strict"):
        return report
    meaning = str(report.get("meaning", "")).replace(MEANING[Verdict.WARN], STRICT_WARN)
    return {**report, "strict": True, "meaning": meaning}


def _read_stored(
    form: str, run: Judged | None, report: Mapping[str, Any], folder: RunFolder
) -> tuple[str, Verdict]:
    """Format a report, which may be one that was edited; return its verdict, too.

    Raises:
        ConfigError: It is not a report.
    """
    try:
        return FORMATS[form](run, report), Verdict(report["verdict"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        how = f"To judge its run again: sentinel report {shlex.quote(str(folder.path))}"
        raise ConfigError(f"{folder.report}: not a report: {why}", how) from None


def _verified(folder: RunFolder, signers: Path | None) -> str:
    """Check that a folder is as its manifest says: of which run, and how far that is a proof.

    Raises:
        IncompleteError: It is not, none of the signers has signed it, or its report says less than
            what was recorded.
    """
    manifest = check_manifest(folder)
    name = None if signers is None else signer(folder, signers, manifest)
    said, judged = _said(folder), judge_run(folder)
    if said is not None and said is not _worst(said, judged.verdict):
        found = f"says {said}, and what was recorded is {judged.verdict}"
        raise IncompleteError(f"{folder.report} {found}")
    authentic = f"and signed by {name}" if name else "not authentic: --signers says who may sign"
    run = report_object(judged)
    begun, host = run["run"]["started"], run["node"]["hostname"]
    return printable(f"run {run['run']['id']} of {host}, begun {begun}: consistent, {authentic}")


def _said(folder: RunFolder) -> Verdict | None:
    """Read the verdict of a run's own report; None without one by the rules of this version."""
    with contextlib.suppress(ConfigError, LookupError, ValueError):
        report = read_object(folder.report)
        return Verdict(report["verdict"]) if report["judged_by"] == __version__ else None
    return None


def _worst(*verdicts: Verdict) -> Verdict:
    return next(verdict for verdict in Verdict if verdict in verdicts)


def _find(run: str | None, socket: str | None, *, simulated: bool) -> Path:
    """Find the folder of a run; one that is named needs no state directory."""
    if run is not None and RunFolder(path=Path(run)).header.exists():
        return Path(run)
    return find_run(find_shared(simulated_folder(chosen=simulated), socket), run)


def _comparison(runs: list[Judged], form: str) -> str:
    """Compare two runs as text or JSON."""
    found = compare(*(report_object(run) for run in runs))
    return json.dumps(found, indent=1) if form == "json" else "\n".join(compare_lines(found))
