"""The result of ``sentinel check`` for Nagios, for node-problem-detector and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from sentinel.burnin.checks.check import CheckResult, Status
from sentinel.burnin.checks.node_checks import NodeReport
from sentinel.units import format_count

#: The exit codes of ``sentinel check``.
EXIT_CODES = {Status.PASS: 0, Status.WARN: 0, Status.FAIL: 1, Status.NOT_TESTED: 3}
TOOL_FAILED = 2

#: The exit codes and words of Nagios' plugins.
_NAGIOS = {
    Status.PASS: (0, "OK"),
    Status.WARN: (1, "WARNING"),
    Status.FAIL: (2, "CRITICAL"),
    Status.NOT_TESTED: (3, "UNKNOWN"),
}
NAGIOS_UNKNOWN = 3

#: The exit codes of node-problem-detector's custom plugins, and the most characters it takes.
_NPD = {Status.PASS: 0, Status.WARN: 0, Status.FAIL: 1, Status.NOT_TESTED: 2}
NPD_UNKNOWN = 2
NPD_CHARACTERS = 80

#: The checks whose values are performance data, by their labels.
_PERFDATA = {
    "temperature.gpu": "temperature_left",
    "ecc.uncorrected": "ecc_uncorrected",
    "memory.retired_pages": "retired_pages",
}


def exit_code(report: NodeReport) -> int:
    """Choose the exit code of ``sentinel check``."""
    return TOOL_FAILED if report.failure is not None else EXIT_CODES[report.status]


def nagios(report: NodeReport) -> tuple[int, str]:
    """Build the exit code and the line of a Nagios plugin, with performance data."""
    if report.failure is not None:
        return NAGIOS_UNKNOWN, nagios_unknown(report.failure)
    code, word = _NAGIOS[report.status]
    counts = Counter(gpu.status for gpu in report.gpus)
    text = _first_words(report, 5) or f"{format_count(len(report.gpus), 'GPU')} tested"
    data = [
        f"gpus={len(report.gpus)}",
        f"fail={counts[Status.FAIL]};;0",
        f"warn={counts[Status.WARN]};0",
        f"not_tested={counts[Status.NOT_TESTED]}",
        *_figures(report),
    ]
    return code, f"GPU {word} - {_line(text)} | {' '.join(data)}"


def nagios_unknown(why: str) -> str:
    """Build the line of a Nagios plugin that could not check anything."""
    return f"GPU UNKNOWN - {_line(why)}"


def npd(report: NodeReport) -> tuple[int, str]:
    """Build the exit code and the line of a custom plugin of node-problem-detector."""
    if report.failure is not None:
        return NPD_UNKNOWN, npd_line(report.failure)
    text = _first_words(report, 1) or f"{format_count(len(report.gpus), 'GPU')} tested"
    return _NPD[report.status], npd_line(text)


def npd_line(text: str) -> str:
    """Cut a text to the one line that a plugin may print."""
    line = _line(text)
    return line if len(line) <= NPD_CHARACTERS else f"{line[: NPD_CHARACTERS - 3]}..."


def _line(text: str) -> str:
    """Join a text into one line without the character that separates performance data."""
    return " ".join(text.replace("|", "/").split())


def _first_words(report: NodeReport, most: int) -> str:
    """Name the results that made the status of the node; empty if it passed."""
    match report.status:
        case Status.PASS:
            return ""
        case Status.NOT_TESTED:
            untested = [gpu for gpu in report.gpus if gpu.status is Status.NOT_TESTED]
            found = [f"GPU {gpu.counters.index}: {gpu.checks[0].evidence}" for gpu in untested]
        case status:
            found = [
                f"{place}: {result.id} = {result.value}"
                for place, result in _results(report)
                if result.status is status
            ]
    more = f", and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more or "no GPU was tested"


def _results(report: NodeReport) -> Iterator[tuple[str, CheckResult]]:
    """Yield every result with its place."""
    for result in report.node:
        yield "node", result
    for gpu in report.gpus:
        for result in gpu.checks:
            yield f"GPU {gpu.counters.index}", result


def _figures(report: NodeReport) -> Iterator[str]:
    for gpu in report.gpus:
        for result in gpu.checks:
            if result.id in _PERFDATA and isinstance(result.value, int | float):
                yield f"gpu{gpu.counters.index}_{_PERFDATA[result.id]}={result.value:g}"


def as_object(report: NodeReport) -> dict[str, Any]:
    """Build the object for JSON."""
    return {
        "verdict": report.status.value if report.failure is None else None,
        "driver_error": report.driver_error,
        "thresholds_overridden": report.overridden,
        "node": [_as_object(result) for result in report.node],
        "gpus": [
            {
                "uuid": gpu.counters.uuid or None,
                "index": gpu.counters.index,
                "name": gpu.counters.name,
                "serial": gpu.counters.serial,
                "pci_bus_id": gpu.counters.pci_bus_id,
                "driver": gpu.counters.driver,
                "vbios": gpu.counters.vbios,
                "verdict": gpu.status.value,
                "checks": [_as_object(result) for result in gpu.checks],
                "counters": gpu.counters,
            }
            for gpu in report.gpus
        ],
    }


def _as_object(result: CheckResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in CheckResult.__dataclass_fields__}
