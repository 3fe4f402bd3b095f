"""``sentinel check``: judge the health of the GPUs by their counters, in seconds."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from sentinel.burnin.checks import node_formats
from sentinel.burnin.checks.check import CheckResult, Status, Thresholds
from sentinel.burnin.checks.evidence import ExpectedEvidence, HostEvidence
from sentinel.burnin.checks.expected_checks import count_unchecked, learn, unproved
from sentinel.burnin.checks.node_report import GpuReport, NodeReport, judge_node
from sentinel.cli.daemon.known_faults import known_findings, places_of
from sentinel.cli.display.output import (
    color_option,
    print_json,
    printable,
    terminal_width,
    wants_colour,
)
from sentinel.cli.options.command_classes import PluginCommand
from sentinel.cli.options.command_options import gpus_flag, strict_option
from sentinel.cli.options.setting_options import (
    HOSTS_EXPECTATION,
    expect_options,
    load_expectation,
    load_thresholds,
    simulate_option,
    thresholds_option,
)
from sentinel.config.expectation import Expectation, expectation_toml
from sentinel.config.gpu_selection import select_gpus
from sentinel.diagnostics.counters import CountersResult, read_counters
from sentinel.diagnostics.host_counters import read_host
from sentinel.errors import ExitCode, NoSuchGpuError, SentinelError
from sentinel.host import simulation, verified_store
from sentinel.host.daemon_lookup import list_daemons
from sentinel.host.paths import places, shared_folder
from sentinel.host.regular_file import file_errors, replace_file
from sentinel.protocol.counters import Counters, HostCounters
from sentinel.protocol.gpu import Gpu
from sentinel.units import format_count

_COLOURS = {
    Status.FAIL: "red",
    Status.WARN: "yellow",
    Status.NOT_TESTED: "cyan",
    Status.PASS: "green",
    Status.NOT_APPLICABLE: "bright_black",
}
_ORDER = list(Status)

#: The widths of the first columns, and the maximum width.
_STATUS_WIDTH, _CHECK_WIDTH, _VALUE_WIDTH = 12, 27, 16
_WIDTH = 120
#: More checks that were not tested are only counted.
_MOST_NAMED = 3
#: What the evidence of a check has whose call failed.
_UNREAD = "could not be read"


@click.command("check", cls=PluginCommand)
@gpus_flag()
@click.option(
    "-v", "--verbose", is_flag=True, help="Show each check, with its rule and what to do."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@color_option
@click.option("--nagios", is_flag=True, help="Be a Nagios plugin: one line, exit code 0 to 3.")
@click.option("--npd", is_flag=True, help="Be a custom plugin of node-problem-detector.")
@thresholds_option()
@expect_options
@click.option(
    "--write-expectation",
    "target",
    metavar="[FILE]",
    is_flag=False,
    flag_value=str(HOSTS_EXPECTATION),
    help="Write this node's properties to a file for --expect, if it passes without a warning."
    "  [default of FILE: /etc/sentinel/node.toml]",
)
@strict_option
@simulate_option("Check N simulated GPUs.")
def command(
    gpus: tuple[str, ...],
    verbose: bool,
    as_json: bool,
    nagios: bool,
    npd: bool,
    limits: str | None,
    expect: str | None,
    expect_gpus: int | None,
    target: str | None,
    strict: bool,
    simulate: int | None,
) -> int:
    """Check the health of the GPUs by their counters, without a load and beside running jobs.

    Each GPU has a line with its status, its model and what did not pass, and so has the node.
    Wrong results of a daemon's stressors also count, until they are acknowledged.

    The exit code is 0 if all passed, maybe with warnings, 1 if one failed, 2 if sentinel failed or
    for wrong usage, 3 if a GPU could not be tested, and 4 if there is no such GPU.
    """
    _check_usage(gpus, target, (as_json, nagios, npd), simulate)
    thresholds = Thresholds() if limits is None else load_thresholds(limits).node
    expectation = load_expectation(expect, expect_gpus, is_here=simulate is None)
    is_stuck = False
    try:
        result, error = _read(simulate)
        is_stuck = result.stuck
        report, host = _judge(result, error, gpus, thresholds, expectation, simulate)
        if nagios or npd:
            code, line = (
                node_formats.nagios(report) if nagios else node_formats.npd(report, strict=strict)
            )
            click.echo(line)
        else:
            _print(report, verbose=verbose, as_json=as_json)
            code = node_formats.exit_code(report, strict=strict)
        if target is not None:
            code = _write(Path(target), report, host)
    except click.ClickException:
        raise
    except Exception as failure:
        if nagios or npd:
            # A bug has the exit code 2, which is a fault of a GPU for Nagios.
            failed = f"sentinel failed: {failure!r}"
            why = failure.what if isinstance(failure, SentinelError) else failed
            click.echo(node_formats.nagios_unknown(why) if nagios else node_formats.npd_line(why))
            code = node_formats.NAGIOS_UNKNOWN if nagios else node_formats.NPD_UNKNOWN
        elif is_stuck and isinstance(failure, NoSuchGpuError):
            click.echo(f"sentinel: {failure}", err=True)
            code = int(failure.exit_code)
        else:
            raise
    if is_stuck:  # the interpreter's exit would wait for the process
        sys.stdout.flush()
        os._exit(code)
    return code


def _check_usage(
    gpus: Sequence[str], target: str | None, forms: tuple[bool, bool, bool], simulate: int | None
) -> None:
    """Refuse options that exclude each other.

    Raises:
        UsageError: Two of them are given.
    """
    if sum(forms) > 1:
        raise click.UsageError("--json, --nagios and --npd exclude each other")
    if target is not None and (gpus or any(forms)):
        raise click.UsageError("--write-expectation excludes --gpus, --json, --nagios and --npd")
    if target == str(HOSTS_EXPECTATION) and simulate is not None:
        raise click.UsageError("--write-expectation of simulated GPUs needs a FILE of its own")


def _judge(
    result: CountersResult,
    error: str | None,
    gpus: Sequence[str],
    thresholds: Thresholds,
    expectation: Expectation,
    simulate: int | None,
) -> tuple[NodeReport, HostCounters]:
    """Judge the GPUs by their counters, or by the reason why those cannot be read.

    Returns:
        The report, and the host around the GPUs.
    """
    why = error or result.driver_error
    folder = simulation.default_folder() if simulate is not None else None
    host = read_host(folder)
    state, sockets = _places(folder)
    findings = known_findings(state, sockets)
    expected = ExpectedEvidence(
        expectation=expectation,
        listed=result.counters,
        hosts=(host,),
        known={} if expectation.gpus is None else verified_store.known_gpus(state),
        findings=findings,
        pci_devices=result.pci_devices,
        driver_error=why,
        selected=bool(gpus),
    )
    report = judge_node(
        result.counters,
        thresholds,
        pci_devices=result.pci_devices,
        selected=_selected(gpus, result),
        driver_error=why,
        findings=findings,
        more=(expected,) if gpus else (expected, HostEvidence(before=host)),
    )
    return report, host


def _write(path: Path, report: NodeReport, host: HostCounters) -> int:
    """Write what a node is as an expectation, and print what was taken for granted."""
    if report.status is not Status.PASS or report.failure is not None:
        why = "this node has not passed; an expectation is made from one that is known to be good"
        click.echo(f"sentinel: {path} was not written: {why}", err=True)
        return node_formats.exit_code(report) or int(ExitCode.FAIL)
    found, left_out = learn([gpu.counters for gpu in report.gpus], host, str(path))
    text = expectation_toml(found)
    with file_errors(f"{path} cannot be written"):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(path, f"# Written by sentinel check --write-expectation.\n{text}", 0o644)
    print(f"\n{path} takes for granted, since this node has it:\n\n{text.rstrip()}\n")
    for one in left_out:
        print(f"not expected: {printable(one)}")
    return int(ExitCode.OK)


def _read(simulate: int | None) -> tuple[CountersResult, str | None]:
    """Read the counters; return them and why that is not possible."""
    nothing = CountersResult(counters=(), driver_error=None, stuck=False)
    try:
        if simulate is None:
            return read_counters(None), None
        folder = simulation.default_folder()
        registry = simulation.Registry.create(folder, simulate)
        uuids = [gpu.uuid for gpu in registry.gpus()[:simulate]]
        return read_counters(folder, uuids), None
    except (SentinelError, OSError) as error:
        return nothing, str(error)


def _places(folder: Path | None) -> tuple[Path, list[str]]:
    """Find the state directory and the daemons of it; several that share none are asked, too.

    Only daemons of the same kind of GPUs, real or simulated, know these.
    """
    same, others = [], set()
    for one in list_daemons(folder):
        if (one.simulated is None) == (folder is None):
            same.append(one.socket or "")
        else:
            others.add(shared_folder(Path(one.state)))
    with contextlib.suppress(SentinelError):
        state, sockets = places_of(None, folder)
        if state not in others:
            return state, sockets
    return places(os.environ, os.getuid(), folder).shared, same


def _selected(selectors: Sequence[str], result: CountersResult) -> frozenset[int] | None:
    """Find the indices of the selected GPUs; None for all."""
    if not selectors or result.driver_error is not None:
        return None
    gpus = tuple(
        Gpu(
            uuid=counter.uuid or f"unknown {counter.index}",
            index=counter.index,
            name=counter.name,
            pci_bus_id=counter.pci_bus_id or "",
            memory_total=0,
        )
        for counter in result.counters
    )
    return frozenset(gpu.index for gpu in select_gpus(selectors, gpus))


def _print(report: NodeReport, *, verbose: bool, as_json: bool) -> None:
    """Print the report in one format."""
    if as_json:
        print_json(node_formats.as_object(report))
    elif report.failure is not None:
        click.echo(f"sentinel: the GPUs cannot be checked: {report.failure}", err=True)
    elif not verbose:
        lines = summary_lines(report, colour=wants_colour(sys.stdout), width=terminal_width())
        print("\n".join(lines))
    else:
        width = min(_WIDTH, max(80, shutil.get_terminal_size((_WIDTH, 24)).columns))
        print("\n".join(page(report, colour=wants_colour(sys.stdout), width=width)))


# --- text ------------------------------------------------------------------------------------


def summary_lines(report: NodeReport, *, colour: bool, width: int) -> Iterator[str]:
    """Yield a line for each GPU and one for the node, with what did not pass."""
    error = report.driver_error
    notes = [f"other GPUs cannot be checked: {error}"] if error is not None else []
    notes += filter(None, [report.thresholds.why_unproved])
    rows = [
        (f"GPU {gpu.counters.index}", gpu.status, list(_name_of(gpu)), gpu.checks)
        for gpu in report.gpus
    ]
    about = [_counts(report), *filter(None, [count_unchecked(report.node)])]
    rows.append(("node", report.status, [*about, *unproved(report.node), *notes], report.node))
    place_width = max(len(row[0]) for row in rows)
    status_width = max(len(row[1].value) for row in rows)
    for place, status, texts, checks in rows:
        text = "; ".join([*texts, *_not_passed(checks)])
        indent = " " * (place_width + status_width + 4)
        first, *rest = textwrap.wrap(text, max(width, 40) - len(indent), break_on_hyphens=False)
        word = _styled(status, f"{status.value:<{status_width}}", colour=colour)
        yield f"{place:<{place_width}}  {word}  {first}"
        yield from (f"{indent}{line}" for line in rest)
    if report.status is not Status.PASS:
        yield "-v shows each check, its rule and what to do."


def _name_of(gpu: GpuReport) -> Iterator[str]:
    """Yield the model of a GPU, and what could not be read of it."""
    yield printable(gpu.counters.name or "?")
    # If nothing was read, the checks that were not tested say it.
    if gpu.why_unread != gpu.counters.why_unread:
        yield printable(gpu.why_unread or "")


def _not_passed(checks: Sequence[CheckResult]) -> Iterator[str]:
    """Yield the checks that did not pass, worst first; those of a fault with what was found."""
    for status in (Status.FAIL, Status.WARN):
        found = [check for check in checks if check.status is status]
        if found:
            names = (f"{check.id} ({check.evidence or _value(check)})" for check in found)
            yield printable(f"{status.value}: {', '.join(names)}")
    untested = [check for check in checks if check.status is Status.NOT_TESTED]
    if len(untested) > _MOST_NAMED:
        reasons = [check.evidence for check in untested if check.evidence]
        # An idle link is no error: a call that failed explains more.
        why = next((one for one in reasons if _UNREAD in one), next(iter(reasons), ""))
        why = f" ({why})" if why else ""
        yield printable(f"not tested: {format_count(len(untested), 'check')}{why}")
    elif untested:
        yield f"not tested: {', '.join(check.id for check in untested)}"


def page(report: NodeReport, *, colour: bool, width: int = _WIDTH) -> Iterator[str]:
    """Yield the lines of the report: for each GPU, what is not passed first."""
    if report.node:
        yield "Node"
        yield from _rows(report.node, colour=colour, width=width)
        yield ""
    for gpu in report.gpus:
        yield f"{_title(gpu.counters)}: {_styled(gpu.status, gpu.status.value, colour=colour)}"
        yield from textwrap.wrap(printable(gpu.why_unread or ""), width)
        yield from _rows(gpu.checks, colour=colour, width=width)
        yield ""
    if report.driver_error is not None:
        yield f"other GPUs cannot be checked: {printable(report.driver_error)}"
    about = [_counts(report), *filter(None, [count_unchecked(report.node)])]
    text = "; ".join(
        [*about, *filter(None, [report.thresholds.why_unproved]), *unproved(report.node)]
    )
    yield _styled(report.status, f"{report.status.value}: {text}", colour=colour)


def _counts(report: NodeReport) -> str:
    """Count the GPUs by their status."""
    found = Counter(gpu.status for gpu in report.gpus)
    counts = [f"{found[status]} {status.value}" for status in _ORDER if found[status]]
    return ", ".join(counts) or "no GPU was found"


def _title(gpu: Counters) -> str:
    parts = (f"GPU {gpu.index}", gpu.name, gpu.uuid, f"serial {gpu.serial}" if gpu.serial else "")
    return "  ".join(printable(part) for part in parts if part)


def _rows(results: Sequence[CheckResult], *, colour: bool, width: int) -> Iterator[str]:
    """Yield the lines of results; one that is a fault has its source and what to do."""
    for result in sorted(results, key=lambda one: _ORDER.index(one.status)):
        status = _styled(result.status, f"{result.status.value:<{_STATUS_WIDTH}}", colour=colour)
        value = _value(result)
        rule = f"{result.threshold} ({result.source})" if result.threshold else result.source
        indent = _STATUS_WIDTH + _CHECK_WIDTH + _VALUE_WIDTH
        first, *rest = textwrap.wrap(rule, width - indent, break_on_hyphens=False) or [""]
        yield f"{status}{result.id:<{_CHECK_WIDTH}}{printable(value):<{_VALUE_WIDTH - 1}} {first}"
        notes = [result.evidence, f"do: {result.action}" if result.action else ""]
        lines = [
            line
            for note in notes
            if note
            for line in textwrap.wrap(printable(note), width - indent, break_on_hyphens=False)
        ]
        yield from (f"{'':<{indent}}{line}" for line in [*rest, *lines])


def _value(result: CheckResult) -> str:
    value = f"{result.value:.4g}" if isinstance(result.value, float) else result.value
    return "" if value is None else f"{value} {result.unit}".strip()


def _styled(status: Status, text: str, *, colour: bool) -> str:
    return click.style(text, fg=_COLOURS[status]) if colour else text
