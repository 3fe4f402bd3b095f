"""``sentinel workloads try``: run a workload on one GPU, and assess it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import click

from sentinel.cli.display.log_lines import text_lines
from sentinel.cli.display.output import print_json, wants_colour
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_options import one_gpu, wait_option
from sentinel.cli.options.setting_options import simulate_option
from sentinel.cli.tools.reserved_gpu import reserved_gpu
from sentinel.config.build import build_config, parse_given
from sentinel.config.model import Config
from sentinel.config.sources import from_flags
from sentinel.config.specs import check_workload, parse_workload
from sentinel.core.step import Event
from sentinel.diagnostics.trial.assessment import Judgement, TrialResult, grown, judge
from sentinel.diagnostics.trial.measurement import Trial
from sentinel.diagnostics.trial.runner import try_workload
from sentinel.errors import ConfigError, ExitCode
from sentinel.protocol.commands import Given
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import MAX_QUANTUM_S
from sentinel.supervisor.bootstrap import leave
from sentinel.supervisor.discovery import Options
from sentinel.supervisor.event_log import Sink
from sentinel.units import format_duration, format_size, parse_duration

#: Limits of the duration; a trial keeps every reading until its assessment.
MIN_S = 1.0
MAX_S = 3600.0

#: Settings of a trial: shorter than for a daemon, because a user waits, and delays are what a trial
#: has to find.
TIMEOUTS: Mapping[str, Any] = {"poll": 0.2, "rearm": 0.1, "hang_after": 5.0, "grace": 2.0}

_EXIT_CODES = {
    TrialResult.WELL: ExitCode.OK,
    TrialResult.MISBEHAVED: ExitCode.FAIL,
    TrialResult.UNUSABLE: ExitCode.USAGE,
    TrialResult.INCOMPLETE: ExitCode.NOT_RUNNING,
}


@click.command("try")
@click.argument(
    "workload", metavar="NAME[:key=value,...]", shell_complete=value_completion.workloads
)
@click.option("--for", "seconds", default="20s", show_default=True, help="Duration of the run.")
@one_gpu(None, "an idle GPU")
@simulate_option("Use N simulated GPUs, and try it on one.")
@click.option("--memory", default="88%", show_default=True, help="Share of free memory, or a size.")
@wait_option("Maximum wait for a daemon to free a GPU")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
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

    Exit code 1 if it misbehaves, 2 if it rejects its options, 3 if a newcomer needs the GPU.
    """
    try:
        name, _ = parse_workload(workload)
        check_workload(workload)
    except ConfigError as error:
        raise ConfigError(error.what, error.remedy or "See `sentinel workloads`.") from error
    runs = parse_given(parse_duration, seconds, "--for")
    if not MIN_S <= runs <= MAX_S:
        raise ConfigError(f"--for: {seconds!r} is out of range", "allowed is from 1s to 1h")
    options = Options(config=_config(workload, memory, gpu), simulate=simulate)
    with reserved_gpu(options, f"sentinel workloads try {name}", wait, any_idle=True) as usable:
        trial, ended, clean = try_workload(usable, runs, _progress_sink)
    judgement = judge(trial)
    figures = _figures(trial, judgement, simulated=simulate is not None)
    if as_json:
        print_json(figures)
    else:
        click.echo("\n".join(_report(trial, judgement, figures)))
    code = ended if ended is ExitCode.UNKILLABLE else _EXIT_CODES[judgement.verdict]
    return int(leave(code, clean=clean))


def _config(workload: str, memory: str, gpu: str | None) -> Config:
    """Return the default settings, changed for a trial on one GPU.

    The settings of the host do not apply: they decide when idle GPUs are occupied, and a trial is
    an explicit request.
    """
    texts = {"memory.target": memory} | ({"gpus": gpu} if gpu is not None else {})
    given = (Given(key="workload", text=workload, source="NAME"), *from_flags(texts))
    # A warm GPU must not slow down the workload under test.
    return replace(build_config(given), max_gpus=1, throttle="off", **TIMEOUTS)


def _progress_sink(gpus: Mapping[str, Gpu]) -> Sink:
    """Return a sink that shows the events on a terminal."""
    if sys.stderr.isatty():
        return text_lines(sys.stderr, gpus, colour=wants_colour(sys.stderr))

    def hide(_: Event) -> None:
        """Show nothing: the report has the results."""

    return hide


def _figures(trial: Trial, judgement: Judgement, *, simulated: bool) -> dict[str, Any]:
    """Return all figures for JSON; None is a missing measurement."""
    return {
        "workload": trial.workload,
        "gpu": trial.gpu.uuid if trial.gpu else None,
        "index": trial.gpu.index if trial.gpu else None,
        "simulated": simulated,
        "verdict": judgement.verdict.value,
        "problems": judgement.problems,
        "incomplete": judgement.incomplete,
        "start_s": trial.start,
        "held": trial.ready.held if trial.ready else None,
        "chunks": trial.ready.chunks if trial.ready else None,
        "ran_s": trial.ran,
        **_progress(trial),
        "findings": trial.findings,
        "note": trial.note,
        **_readings(trial),
        "grown": grown(trial) if trial.readings or trial.newcomer is not None else None,
        "host_cores": trial.host.cores if trial.host else None,
        "host_memory": trial.host.memory if trial.host else None,
        "stop_s": trial.stop.after if trial.stop else None,
        "killed": trial.stop.killed if trial.stop else None,
    }


def _progress(trial: Trial) -> dict[str, Any]:
    """Return the rates and counts of the workload's progress reports."""
    seconds = sum(report.seconds for report in trial.progress)

    def total(name: str) -> float:
        amounts: list[float] = [getattr(report, name) for report in trial.progress]
        return sum(amounts)

    rates = {
        f"{name}_per_s": total(name) / seconds if seconds else None
        for name in ("iterations", "flops", "bytes")
    }
    longest = max((report.max_quantum_s for report in trial.progress), default=None)
    counts = {name: total(name) for name in ("checks", "errors")}
    return {**rates, **counts, "longest_quantum_s": longest}


def _readings(trial: Trial) -> dict[str, Any]:
    """Return temperature, power and clock of the GPU."""
    heat = [seen.temperature for seen in trial.readings if seen.temperature is not None]
    power = [seen.power for seen in trial.readings if seen.power is not None]
    clocks = [seen.sm_clock for seen in trial.readings if seen.sm_clock is not None]
    return {
        "temperature_c": max(heat, default=None),
        "power_w": fmean(power) if power else None,
        "power_most_w": max(power, default=None),
        "sm_clock_mhz": median(clocks) if clocks else None,
    }


def _report(trial: Trial, judgement: Judgement, f: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the report: the figures, then the problems."""
    place = f"GPU {trial.gpu.index} ({trial.gpu.name})" if trial.gpu else "no GPU"
    yield f"{trial.workload} on {place}: {judgement.verdict.value}"
    rows = {
        "ready": _ready(trial),
        "work": _work(f),
        "checks": f"{f['checks']} results, {f['errors']} wrong" if f["checks"] else None,
        "note": trial.note,
        "heat": _heat(f),
        "memory": _memory(f),
        "host": _host(f),
        "quantum": _quantum(f),
        "stop": _stop(trial),
    }
    for name, text in rows.items():
        if text is not None:
            yield f"    {name:<10}{text}"
    for problem in judgement.problems:
        yield f"PROBLEM {problem.kind}: {problem.what}"
        if problem.do:
            yield from textwrap.wrap(
                f"do: {problem.do}", 96, initial_indent="    ", subsequent_indent="        "
            )
    if judgement.incomplete is not None:
        yield f"INCOMPLETE: {judgement.incomplete}"


def _ready(trial: Trial) -> str:
    if trial.ready is None or trial.start is None:
        return "never"
    held = f"{format_size(trial.ready.held)} in {trial.ready.chunks} chunks"
    return f"after {format_duration(trial.start)}, with {held}"


def _work(f: Mapping[str, Any]) -> str | None:
    if not f["iterations_per_s"]:
        return None
    rates = [f"{f['flops_per_s'] / 1e12:.3g} TFLOP/s"] if f["flops_per_s"] else []
    rates += [f"{f['bytes_per_s'] / 1e12:.3g} TB/s"] if f["bytes_per_s"] else []
    rates += [f"{f['iterations_per_s']:.3g} iterations/s for {format_duration(f['ran_s'])}"]
    nothing = "; rates of a simulated GPU mean nothing" if f["simulated"] else ""
    return ", ".join(rates) + nothing


def _heat(f: Mapping[str, Any]) -> str | None:
    known = []
    if f["temperature_c"] is not None:
        known.append(f"at most {f['temperature_c']} °C")
    if f["power_w"] is not None:
        known.append(f"{f['power_w']:.0f} W on average, at most {f['power_most_w']:.0f} W")
    if f["sm_clock_mhz"] is not None:
        known.append(f"{f['sm_clock_mhz']:.0f} MHz")
    return ", ".join(known) or None


def _memory(f: Mapping[str, Any]) -> str | None:
    if f["grown"] is None:
        return None
    grew = f"grew by {format_size(f['grown'])}" if f["grown"] else "constant to the byte"
    return f"{grew} after it was ready"


def _host(f: Mapping[str, Any]) -> str | None:
    if f["host_cores"] is None:
        return None
    memory = format_size(f["host_memory"])
    return f"{f['host_cores']:.0%} of a core, {memory} of its memory"


def _quantum(f: Mapping[str, Any]) -> str | None:
    if f["longest_quantum_s"] is None:
        return None
    most = format_duration(MAX_QUANTUM_S)
    return (
        f"at most {format_duration(f['longest_quantum_s'])} per quantum; at most {most} is allowed"
    )


def _stop(trial: Trial) -> str | None:
    if trial.stop is None:
        return None
    how = "killed" if trial.stop.killed else "ended by itself"
    return f"{how} {format_duration(trial.stop.after)} after it was asked to"
