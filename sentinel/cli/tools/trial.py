"""``sentinel workloads try`` and ``selftest``: run a workload on one GPU, and assess it."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median
from typing import Any

import click

from sentinel.burnin.checks.workload_checks import (
    TrialEvidence,
    TrialResult,
    problems_of,
    remarks_of,
    result_of,
)
from sentinel.burnin.trial import TrialRequest, run_trial, usable_gpu
from sentinel.cli.daemon.reserve import place_reporter
from sentinel.cli.display.log_lines import log_line, render
from sentinel.cli.display.output import print_json, wants_colour
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_classes import WholeNumber
from sentinel.cli.options.command_options import one_gpu, wait_option
from sentinel.cli.options.setting_options import for_daemon, simulate_option
from sentinel.client.event_stream import EventInfo
from sentinel.config.build import build_config, parse_given
from sentinel.config.plan import MAX_PLAN_S
from sentinel.config.sources import from_flags
from sentinel.config.specs import check_workload, parse_workload
from sentinel.errors import ConfigError, ExitCode, IncompleteError, SelftestError, SentinelError
from sentinel.host.process_setup import leave
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import MAX_QUANTUM_S, FailureKind, SelftestResult
from sentinel.units import format_duration, format_scaled, parse_duration

#: Limits of the duration; a trial keeps every state until its assessment.
MIN_S = 1.0
MAX_S = 3600.0

#: Delays are what a trial has to find.
_SETTINGS = {"hang_after": "5s", "grace": "2s"}

_EXIT_CODES = {
    TrialResult.WELL: ExitCode.OK,
    TrialResult.REMARKS: ExitCode.OK,
    TrialResult.MISBEHAVED: ExitCode.FAIL,
    TrialResult.UNUSABLE: ExitCode.USAGE,
    TrialResult.INCOMPLETE: ExitCode.NOT_RUNNING,
}
#: The lines of a report, as the sentences of events (protocol/events.py); an empty one is none.
_ROWS = {
    "ready": "[after {start_s:duration}, with {held:size} in {chunks} chunks|never]",
    "work": "[{rates} for {ran_s:duration}]"
    "[{rates?}{simulated?}; rates of a simulated GPU mean nothing]",
    "checks": "[{checks?}{checks} results, {errors} wrong]",
    "note": "[{note}]",
    "heat": "[{heat}]",
    "memory": "[{steady?}constant to the byte after it was ready"
    "|grew by {grown:size} after it was ready]",
    "host": "[{host_memory?}{host_cores:percent} of a core, {host_memory:size} of its memory]",
    "quantum": "[at most {longest_quantum_s:duration} per quantum; at most {most} is allowed]",
    "stop": "[{killed?}killed {stop_s:duration} after it was asked to"
    "|ended by itself {stop_s:duration} after it was asked to]",
}
_COUNTED = "iterations/s"
_RATES = {"flops_per_s": "FLOP/s", "bytes_per_s": "B/s", "iterations_per_s": _COUNTED}
#: The readings of the GPU.
_HEAT = {
    "temperature_c": "at most {} °C",
    "power_w": "{:.0f} W on average",
    "power_most_w": "at most {:.0f} W",
    "sm_clock_mhz": "{:.0f} MHz",
}
_MAX_FLIPS = 100_000
_MAX_ROUNDS = 100_000_000
#: The place of a result without a fault.
CLEAN = "clean"
_SELFTEST = "sentinel.stressor.selftest:selftest"
#: Results next to faults must not become golden checksums.
_SELFTEST_SETTINGS = {"memory.target": "2GiB", "goldens": "off"}


# --- try -------------------------------------------------------------------------------------


@click.command("try", short_help="Run a workload on one GPU, and report on it.")
@click.argument(
    "workload", metavar="NAME[:key=value,...]", shell_complete=value_completion.workloads
)
@click.option(
    "--for",
    "seconds",
    metavar="TIME",
    default="20s",
    show_default=True,
    help="Duration of the run.",
)
@one_gpu(None, "an idle GPU")
@simulate_option("Use N simulated GPUs, and try it on one.")
@click.option(
    "--memory",
    metavar="SHARE|SIZE",
    default="88%",
    show_default=True,
    help="Share of free memory, or a size.",
)
@wait_option("Maximum wait for a daemon to free a GPU")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def try_command(
    workload: str,
    seconds: str,
    gpu: str | None,
    simulate: int | None,
    memory: str,
    wait: float,
    as_json: bool,
) -> int:
    """Run a workload on one GPU, and report its figures and its problems.

    A daemon that holds the GPU lends it: it is reserved there until the trial ends.

    Exit code 1 if it misbehaves, 2 if it cannot be imported or rejects its options, 3 if a newcomer
    needs the GPU.
    """
    workload = for_daemon("workload", workload)
    try:
        name, _ = parse_workload(workload)
        check_workload(workload)
    except ConfigError as error:
        raise ConfigError(error.what, error.remedy or "See `sentinel workloads`.") from error
    runs = parse_given(parse_duration, seconds, "--for")
    if not MIN_S <= runs <= MAX_S:
        raise ConfigError(f"--for: {seconds!r} is out of range", "allowed is from 1s to 1h")
    settings = {**_SETTINGS, "memory.target": memory}
    build_config(from_flags(settings))  # a wrong size is to be known before a GPU is reserved
    reporter, reason = partial(place_reporter, quiet=False), f"trial of {name}"
    with usable_gpu(gpu, simulate, reason, wait, reporter, any_idle=True) as (chosen, lent):
        request = TrialRequest(
            workload=workload,
            seconds=runs,
            gpu=chosen,
            simulate=simulate,
            settings=settings,
            lent=lent,
        )
        evidence, clean = run_trial(request, _show)
    result = result_of(evidence)
    figures = _figures(request, evidence, result)
    if as_json:
        print_json(figures)
    else:
        click.echo("\n".join(_report(chosen.name, figures)))
    code = ExitCode.UNKILLABLE if evidence.record.is_unkillable else _EXIT_CODES[result]
    return int(leave(code, clean=clean))


def _show(event: EventInfo) -> bool:
    """Print an event, but for those of the plan and the regular state; in a pipe, a long wait."""
    is_detail = event.name == "gpu.status" or event.name.startswith("burnin.")
    if event.name == "stressor.slow_start" or (sys.stderr.isatty() and not is_detail):
        text = log_line(json.dumps(event.fields), colour=wants_colour(sys.stderr))
        if text is not None:
            click.echo(text, err=True)
    return False


def _figures(
    request: TrialRequest,
    evidence: TrialEvidence,
    result: TrialResult,
) -> dict[str, Any]:
    """Compute all figures of a trial for JSON; None is a missing measurement."""
    ready, work, host = evidence.ready or {}, evidence.work, evidence.host
    stop, power = evidence.stop or {}, evidence.values("power_w")
    clocks = evidence.values("sm_clock_mhz")
    started = evidence.last("stressor.starting") is not None
    seconds = work.seconds
    return {
        "workload": request.workload,
        "gpu": request.gpu.uuid if started else None,
        "index": request.gpu.index if started else None,
        "simulated": request.simulate is not None,
        "result": result,
        "problems": problems_of(evidence),
        "remarks": remarks_of(evidence),
        "incomplete": evidence.incomplete,
        "start_s": ready.get("start_s"),
        "held": ready.get("held"),
        "chunks": ready.get("chunks"),
        "ran_s": seconds,
        **{
            f"{name}_per_s": getattr(work, name) / seconds if seconds else None
            for name in ("iterations", "flops", "bytes")
        },
        "checks": work.checks,
        "errors": work.errors,
        "longest_quantum_s": max(evidence.quanta, default=None),
        "findings": len(evidence.record.named("stressor.finding")),
        "note": next((one["note"] for one in reversed(evidence.running) if one["note"]), None),
        "temperature_c": max(evidence.values("temperature_c"), default=None),
        "power_w": fmean(power) if power else None,
        "power_most_w": max(power, default=None),
        "sm_clock_mhz": median(clocks) if clocks else None,
        "grown": evidence.grown if evidence.running or evidence.newcomer is not None else None,
        "host_cores": host.cores if host else None,
        "host_memory": host.memory if host else None,
        "stop_s": stop.get("stop_s"),
        "killed": stop.get("killed"),
    }


def _report(name: str, f: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the report: the figures, then the problems and remarks.

    Args:
        name: The name of the GPU.
        f: The figures.
    """
    place = "no GPU" if f["gpu"] is None else f"GPU {f['index']} ({name})"
    yield f"{f['workload']} on {place}: {f['result']}"
    shown = {
        **f,
        "rates": ", ".join(
            f"{f[rate]:.3g} {unit}" if unit == _COUNTED else format_scaled(f[rate], unit)
            for rate, unit in _RATES.items()
            if f[rate]
        ),
        "heat": ", ".join(
            text.format(f[figure]) for figure, text in _HEAT.items() if f[figure] is not None
        ),
        "steady": f["grown"] == 0,
        "most": format_duration(MAX_QUANTUM_S),
    }
    for row, sentence in _ROWS.items():
        text = render(sentence, shown)
        if text:
            yield f"    {row:<10}{text}"
    for word, found in (("PROBLEM", f["problems"]), ("REMARK", f["remarks"])):
        for check in found:
            yield f"{word} {check['kind']}: {check['what']}"
            if check["do"]:
                yield from textwrap.wrap(
                    f"do: {check['do']}", 96, initial_indent="    ", subsequent_indent="        "
                )
    if f["incomplete"] is not None:
        yield f"INCOMPLETE: {f['incomplete']}"


# --- selftest --------------------------------------------------------------------------------


@click.command("selftest", short_help="Inject faults on one GPU, and count those found.")
@one_gpu(None, "the first GPU")
@simulate_option("Use N simulated GPUs, and test one.")
@click.option(
    "--flips",
    metavar="N",
    type=WholeNumber(1, _MAX_FLIPS),
    default=100,
    show_default=True,
    help="Faults to inject in each place.",
)
@click.option(
    "--rounds",
    metavar="N",
    type=WholeNumber(1, _MAX_ROUNDS),
    default=10_000,
    show_default=True,
    help="Results without a fault.",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    help="Number format, or unit of the workload units; may be repeated.  [default: all]",
)
@wait_option("Maximum wait for a daemon to free the GPU")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def selftest_command(
    gpu: str | None,
    simulate: int | None,
    flips: int,
    rounds: int,
    dtypes: tuple[str, ...],
    wait: float,
    as_json: bool,
) -> int:
    """Inject faults in results, memory, inputs and references of one idle GPU; count those found.

    The result is the sensitivity of the comparison, not the share of faulty GPUs that is found.

    A daemon that holds the GPU lends it: it is reserved there until the self-test ends.

    Exit code 1 if a fault is not found, or an error is reported without one; 3 if a
    newcomer needs the GPU.
    """
    for name in dtypes:
        if not name.isalnum():  # it becomes part of an option, where commas are separators
            raise ConfigError(f"--dtype: {name!r} is not a number format", "Use one such as bf16.")
    options = f"flips={flips},rounds={rounds}" + (f",dtypes={'+'.join(dtypes)}" if dtypes else "")
    results = _Results(as_json=as_json)
    reporter = partial(place_reporter, quiet=False)
    with usable_gpu(gpu, simulate, "selftest", wait, reporter) as (chosen, lent):
        request = TrialRequest(
            workload=f"{_SELFTEST}:{options}",
            seconds=MAX_PLAN_S,
            gpu=chosen,
            simulate=simulate,
            settings=_SELFTEST_SETTINGS,
            lent=lent,
        )
        evidence, clean = run_trial(request, results.take)
    error = _why_early(request.gpu, results, evidence)
    if as_json and (error is None or isinstance(error, IncompleteError)):
        print_json(
            {
                "gpu": chosen.uuid,
                "index": chosen.index,
                "name": chosen.name,
                "simulated": simulate is not None,
                "well": error is None and all(map(is_well, results.proofs)),
                "incomplete": error.what if error is not None else None,
                "trials": [{**vars(proof), "well": is_well(proof)} for proof in results.proofs],
            }
        )
    elif error is None:
        click.echo(f"GPU {chosen.index} ({chosen.name}): {summary(results.proofs)}")
    if error is not None:
        click.echo(f"sentinel: {error}", err=True)
    code = selftest_code(results.proofs, error)
    if evidence.record.is_unkillable:
        click.echo("sentinel: the stressor has survived SIGKILL", err=True)
        code = ExitCode.UNKILLABLE
    return int(leave(code, clean=clean))


@dataclass(kw_only=True)
class _Results:
    """Collects the results of a self-test, and prints each as it comes."""

    as_json: bool
    proofs: list[SelftestResult] = field(default_factory=list)
    is_done: bool = False
    #: A fault that was not injected.
    finding: Mapping[str, Any] | None = None

    def take(self, event: EventInfo) -> bool:
        """Take an event; return whether the self-test is over."""
        match event.name, event.fields.get("kind"):
            case "burnin.measured", "SelftestResult":
                self.proofs.append(SelftestResult(**event.fields["values"]))
                if not self.as_json:
                    click.echo(_line(self.proofs[-1]))
            case "burnin.measured", "SelftestDone":
                self.is_done = True
            case "stressor.finding", _:
                self.finding = self.finding or event.fields
        return self.is_done or self.finding is not None


def is_well(proof: SelftestResult) -> bool:
    """Check that all faults that reached a result were found, or that there was no false alarm."""
    return proof.found == (0 if proof.place == CLEAN else proof.tried - proof.rounded)


def summary(proofs: Sequence[SelftestResult]) -> str:
    """Summarise the results of all trials."""
    injected = [proof for proof in proofs if proof.place != CLEAN]
    clean = [proof for proof in proofs if proof.place == CLEAN]
    found, tried = sum(p.found for p in injected), sum(p.tried - p.rounded for p in injected)
    alarms, results = sum(p.found for p in clean), sum(p.tried for p in clean)
    return f"{found} of {tried} faults found, {alarms} false alarms in {results} results"


def selftest_code(proofs: Sequence[SelftestResult], error: SentinelError | None) -> ExitCode:
    """Compute the exit code; a failed trial counts, however the others went."""
    if error is not None and not isinstance(error, IncompleteError):
        return error.exit_code
    if not all(map(is_well, proofs)):
        return ExitCode.FAIL
    return error.exit_code if error is not None else ExitCode.OK


def _why_early(gpu: Gpu, results: _Results, evidence: TrialEvidence) -> SentinelError | None:
    """Explain why the self-test ended before all trials were done, or return None."""
    failure, interrupted = evidence.failure, evidence.interrupted is not None
    if results.is_done:
        return None
    if results.finding is not None:
        return SelftestError(_describe(results.finding))
    if evidence.last("stressor.starting") is None and not interrupted:
        return IncompleteError(
            f"GPU {gpu.index} is not idle: {evidence.waiting or 'it was not read in time'}",
            "Choose another GPU with --gpus, or wait. Nothing was started.",
        )
    if failure is not None and not interrupted:
        if failure["kind"] == FailureKind.UNUSABLE:
            return ConfigError(failure["reason"])
        return SelftestError(f"the stressor failed: {failure['reason']}")
    why = evidence.incomplete or "an unlisted process took memory of the GPU"
    proofs = results.proofs
    before = f"before that, {summary(proofs)}" if proofs else "no trial was completed"
    remedy = "" if interrupted else "Run it again when the GPU is idle."
    return IncompleteError(f"the self-test is incomplete: {why}; {before}", remedy)


def _describe(finding: Mapping[str, Any]) -> str:
    """Describe a finding that was not injected."""
    where = f" at {tuple(finding['first'])}" if finding["first"] else ""
    dtype = f" of {finding['dtype']}" if finding["dtype"] else ""
    return f"a {finding['place']}{dtype} was wrong{where} although no fault was injected in it"


def _line(proof: SelftestResult) -> str:
    if proof.place == CLEAN:
        what = f"{proof.found} of {proof.tried} correct results reported as wrong"
    else:
        rounded = f"; {proof.rounded} more changed no result" if proof.rounded else ""
        what = f"{proof.found} of {proof.tried - proof.rounded} faults found{rounded}"
    level = "ok" if is_well(proof) else "FAILED"
    return f"{level:<7} {proof.dtype:<9} {proof.place:<10} {what}"
