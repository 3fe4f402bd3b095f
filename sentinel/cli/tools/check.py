"""``sentinel check``: judge the health of the GPUs by their counters, in seconds."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from sentinel.burnin.checks import node_checks
from sentinel.burnin.checks.check import CheckResult, Status, Thresholds
from sentinel.burnin.checks.evidence import ExpectedEvidence, HostEvidence
from sentinel.burnin.checks.node_checks import NodeReport, judge_node
from sentinel.cli.display.output import color_option, print_json, printable, wants_colour
from sentinel.cli.options.command_classes import VerdictCommand
from sentinel.cli.options.command_options import gpus_flag
from sentinel.cli.options.setting_options import (
    expect_gpus_option,
    load_thresholds,
    simulate_option,
)
from sentinel.client import connect
from sentinel.config.gpu_selection import select_gpus
from sentinel.diagnostics.counters import CountersResult, read_counters
from sentinel.diagnostics.host_counters import read_host
from sentinel.errors import ExitCode, NoSuchGpuError, SentinelError
from sentinel.host import simulation
from sentinel.host.daemon_lookup import list_daemons, locate
from sentinel.host.paths import places
from sentinel.host.verified_store import known_gpus
from sentinel.protocol.api_types import GpuProof
from sentinel.protocol.counters import Counters
from sentinel.protocol.gpu import Gpu

#: A plugin may take five seconds in all.
_DAEMON_TIMEOUT_S = 1.0

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


@click.command("check", cls=VerdictCommand)
@gpus_flag()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@color_option
@click.option("--nagios", is_flag=True, help="Be a Nagios plugin: one line, exit code 0 to 3.")
@click.option("--npd", is_flag=True, help="Be a custom plugin of node-problem-detector.")
@click.option(
    "--thresholds", "file", metavar="FILE", help="Replace limits by those of this TOML file."
)
@expect_gpus_option
@simulate_option("Check N simulated GPUs.")
def command(
    gpus: tuple[str, ...],
    as_json: bool,
    nagios: bool,
    npd: bool,
    file: str | None,
    expect_gpus: int | None,
    simulate: int | None,
) -> int:
    """Check the health of the GPUs by their counters, without a load and beside running jobs.

    Where a daemon runs, what its stressors have found counts, too.

    The exit code is 0 if all passed, maybe with warnings, 1 if one failed, 2 if sentinel failed, 3
    if a GPU could not be tested, and 64 for wrong usage.
    """
    if as_json + nagios + npd > 1:
        raise click.UsageError("--json, --nagios and --npd exclude each other")
    thresholds = load_thresholds(file).node
    try:
        return _check(
            gpus, thresholds, expect_gpus, simulate, as_json=as_json, nagios=nagios, npd=npd
        )
    except click.ClickException:
        raise
    except Exception as error:
        # A bug has the exit code 2, which is a fault of a GPU for Nagios.
        if not nagios and not npd:
            raise
        why = f"sentinel failed: {error!r}"
        line = node_checks.nagios_unknown(why) if nagios else node_checks.npd_line(why)
        click.echo(line)
        return node_checks.NAGIOS_UNKNOWN if nagios else node_checks.NPD_UNKNOWN


def _check(
    gpus: Sequence[str],
    thresholds: Thresholds,
    expected: int | None,
    simulate: int | None,
    *,
    as_json: bool,
    nagios: bool,
    npd: bool,
) -> int:
    """Read and judge the GPUs and print the report; return the exit code."""
    result, error = _read(simulate)
    why = error or result.driver_error
    more: list[ExpectedEvidence | HostEvidence] = []
    if expected is not None:
        count = ExpectedEvidence(
            expected=expected,
            listed=result.counters,
            known=_known(simulate),
            pci_devices=result.pci_devices,
            driver_error=why,
        )
        more.append(count)
    if not gpus:
        folder = simulation.default_folder() if simulate is not None else None
        more.append(HostEvidence(before=read_host(folder)))
    report = judge_node(
        result.counters,
        thresholds,
        pci_devices=result.pci_devices,
        selected=_selected(gpus, result),
        driver_error=why,
        findings=_findings(simulate),
        more=more,
    )
    code = _print(report, as_json=as_json, nagios=nagios, npd=npd)
    if result.stuck:  # the interpreter's exit would wait for the process
        sys.stdout.flush()
        os._exit(code)
    return code


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


def _findings(simulate: int | None) -> dict[str, int]:
    """Ask running daemons how much they have found wrong, by UUID; empty without an answer."""
    folder = simulation.default_folder() if simulate is not None else None
    proofs: dict[str, GpuProof | None] = {}
    for socket in _sockets(folder):
        with contextlib.suppress(SentinelError):
            gpus = connect(socket, timeout=_DAEMON_TIMEOUT_S).status().gpus
            proofs.update({gpu.uuid: gpu.verified for gpu in gpus})
    return {uuid: 0 if proof is None else proof.wrong for uuid, proof in proofs.items()}


def _known(simulate: int | None) -> dict[str, str]:
    """Describe the GPUs of earlier runs and of verified work, by UUID."""
    folder = simulation.default_folder() if simulate is not None else None
    return known_gpus(places(os.environ, os.getuid(), folder).shared)


def _sockets(folder: Path | None) -> list[str]:
    """List the sockets of the daemon that is meant, and of all that run if none is named."""
    with contextlib.suppress(SentinelError):
        return [locate(None, folder).socket]
    with contextlib.suppress(SentinelError):
        return [daemon.socket or "" for daemon in list_daemons(folder)]
    return []


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
    try:
        return frozenset(gpu.index for gpu in select_gpus(selectors, gpus))
    except NoSuchGpuError as error:
        if result.stuck:  # see command; a wrong selector must not hang either
            click.echo(f"sentinel: {error}", err=True)
            os._exit(int(ExitCode.VERDICT_USAGE))
        raise click.UsageError(str(error)) from error


def _print(report: NodeReport, *, as_json: bool, nagios: bool, npd: bool) -> int:
    """Print the report in one format; return the exit code of that format."""
    if nagios or npd:
        code, line = (node_checks.nagios if nagios else node_checks.npd)(report)
        click.echo(line)
        return code
    code = node_checks.exit_code(report)
    if as_json:
        print_json(node_checks.as_object(report))
    elif report.failure is not None:
        click.echo(f"sentinel: the GPUs cannot be checked: {report.failure}", err=True)
    else:
        width = min(_WIDTH, max(80, shutil.get_terminal_size((_WIDTH, 24)).columns))
        print("\n".join(page(report, colour=wants_colour(sys.stdout), width=width)))
    return code


# --- text ------------------------------------------------------------------------------------


def page(report: NodeReport, *, colour: bool, width: int = _WIDTH) -> Iterator[str]:
    """Yield the lines of the report: for each GPU, what is not passed first."""
    if report.node:
        yield "Node"
        yield from _rows(report.node, colour=colour, width=width)
        yield ""
    for gpu in report.gpus:
        yield f"{_title(gpu.counters)}: {_styled(gpu.status, gpu.status.value, colour=colour)}"
        yield from _rows(gpu.checks, colour=colour, width=width)
        yield ""
    if report.driver_error is not None:
        yield f"other GPUs cannot be checked: {printable(report.driver_error)}"
    counts = [
        f"{sum(gpu.status is status for gpu in report.gpus)} {status.value}"
        for status in _ORDER
        if any(gpu.status is status for gpu in report.gpus)
    ]
    summary = f"{report.status.value}: {', '.join(counts) or 'no GPU was found'}"
    yield _styled(report.status, summary, colour=colour)


def _title(gpu: Counters) -> str:
    parts = (f"GPU {gpu.index}", gpu.name, gpu.uuid, f"serial {gpu.serial}" if gpu.serial else "")
    return "  ".join(printable(part) for part in parts if part)


def _rows(results: Sequence[CheckResult], *, colour: bool, width: int) -> Iterator[str]:
    """Yield the lines of results; one that is a fault has its source and what to do."""
    for result in sorted(results, key=lambda one: _ORDER.index(one.status)):
        status = _styled(result.status, f"{result.status.value:<{_STATUS_WIDTH}}", colour=colour)
        value = "" if result.value is None else f"{_number(result.value)} {result.unit}".strip()
        rule = f"{result.threshold} ({result.source})" if result.threshold else result.source
        indent = _STATUS_WIDTH + _CHECK_WIDTH + _VALUE_WIDTH
        first, *rest = textwrap.wrap(rule, width - indent, break_on_hyphens=False) or [""]
        yield f"{status}{result.id:<{_CHECK_WIDTH}}{printable(value):<{_VALUE_WIDTH - 1}} {first}"
        bad = result.status not in {Status.PASS, Status.NOT_APPLICABLE}
        notes = [result.evidence] if bad or result.status is Status.PASS else []
        notes += [f"do: {result.action}"] if result.action else []
        lines = [
            line
            for note in notes
            if note
            for line in textwrap.wrap(printable(note), width - indent, break_on_hyphens=False)
        ]
        yield from (f"{'':<{indent}}{line}" for line in [*rest, *lines])


def _number(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _styled(status: Status, text: str, *, colour: bool) -> str:
    return click.style(text, fg=_COLOURS[status]) if colour else text
