"""``sentinel report``: build the report of a burn-in again from its folder, or compare two."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from sentinel.burnin import manifest
from sentinel.burnin.compare import compare, compare_lines
from sentinel.burnin.formats import FORMATS, stored_report
from sentinel.burnin.report import Judged, judge_run, report_object
from sentinel.burnin.run_folder import RunFolder, find_run
from sentinel.burnin.verdict import Verdict, exit_code
from sentinel.cli.display.output import color_option, printable
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_options import (
    address_options,
    chosen_form,
    print_report,
    strict_option,
)
from sentinel.cli.options.setting_options import load_thresholds
from sentinel.errors import ExitCode
from sentinel.host.daemon_lookup import find_shared, simulated_folder
from sentinel.supervisor.bootstrap import leave


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
@click.option("--compare", "both", is_flag=True, help="Compare two runs.")
@click.option("--verify", "check", is_flag=True, help="Check that the files are as at its end.")
@click.option(
    "--signers",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --verify: that one of them has signed it (ALLOWED SIGNERS of ssh-keygen).",
)
@click.option(
    "--sign", "key", type=click.Path(path_type=Path), metavar="KEY", help="Sign it by ssh-keygen."
)
@address_options
@color_option
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write a file.")
@click.option(
    "--thresholds", "limits", metavar="FILE", help="Replace limits by those of this TOML file."
)
@strict_option
def command(
    runs: tuple[str, ...],
    both: bool,
    check: bool,
    signers: Path | None,
    key: Path | None,
    stored: bool,
    strict: bool,
    output: Path | None,
    limits: str | None,
    socket: str | None,
    simulated: bool,
    **formats: bool,
) -> int:
    """Print the report of a burn-in, judged from what it recorded by the thresholds of the run.

    Other thresholds make it a report that was judged again, which says so in each format.

    RUN is a folder or the name of a run in the state directory; without it, the newest run there.
    Daemons of several sockets share that directory, unless it was moved for one of them.
    With `--compare`, give two. The exit code is that of the verdict, as of `burnin`, and as strict;
    0 of a comparison.

    `--verify` judges nothing: it checks the files against manifest.json, the hashes of all files at
    the end of the run, and with `--signers` its signature. Exit code 1 if they differ or no signer
    has signed them. `--sign` signs a run whose files do not differ.
    """
    form = chosen_form(formats)
    wanted = 2 if both else 1
    if both and form not in {"text", "json"}:
        raise click.UsageError(f"--compare cannot be combined with --{form}")
    if len(runs) > wanted or (both and len(runs) < wanted):
        raise click.UsageError("--compare needs two runs" if both else "give one run")
    if signers is not None and not check:
        raise click.UsageError("--signers is for --verify")
    folders = [_find(run, socket, simulated=simulated) for run in runs or (None,)]
    if key is not None:
        manifest.sign(RunFolder(path=folders[0]), key)
        print(f"signed: {folders[0] / manifest.SIGNATURE}")
        return int(ExitCode.OK)
    if check:
        return _verify(folders[0], signers)
    if stored and (both or limits or form == "html"):
        raise click.UsageError("--stored excludes --compare, --thresholds and --html")
    thresholds = None if limits is None else load_thresholds(limits).node
    if stored:
        report = stored_report(RunFolder(path=folders[0]))
        print_report(FORMATS[form](None, report), output, painted=form == "text")
        sys.stdout.flush()
        return int(exit_code(Verdict(report["verdict"]), strict=strict or bool(report["strict"])))
    found = [judge_run(RunFolder(path=folder), thresholds) for folder in folders]
    text = _comparison(found, form) if both else FORMATS[form](found[0], report_object(found[0]))
    print_report(text, output, painted=form == "text" and not both)
    code = ExitCode.OK if both else exit_code(found[0].verdict, strict=strict or found[0].strict)
    sys.stdout.flush()
    return int(leave(code, clean=not any(gpu.stuck for gpu in found)))


def _verify(folder: Path, signers: Path | None) -> int:
    """Check the files of a run, and who has signed them; print one line for each difference."""
    found = manifest.differences(folder)
    by = None
    if signers is not None and not found:
        by, said = manifest.signed_by(folder, signers)
        found = [] if by is not None else [f"{manifest.MANIFEST}: {said}"]
    if found:
        print("\n".join(map(printable, (f"{folder} is not as at the end of the run:", *found))))
        return int(ExitCode.FAIL)
    what = "consistent, not authentic (no signers given)"
    print(printable(f"{folder}: {what if by is None else f'authentic, signed by {by}: {said}'}"))
    return int(ExitCode.OK)


def _find(run: str | None, socket: str | None, *, simulated: bool) -> Path:
    """Find the folder of a run; one that is named needs no state directory."""
    if run is not None and RunFolder(path=Path(run)).header.exists():
        return Path(run)
    return find_run(find_shared(simulated_folder(chosen=simulated), socket), run)


def _comparison(runs: list[Judged], form: str) -> str:
    """Compare two runs as text or JSON."""
    found = compare(*(report_object(run) for run in runs))
    return json.dumps(found, indent=1) if form == "json" else "\n".join(compare_lines(found))
