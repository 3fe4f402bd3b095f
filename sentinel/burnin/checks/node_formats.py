"""The formats of ``sentinel check``: its exit codes, Nagios, node-problem-detector, JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sentinel.burnin.checks.check import CheckResult, Status
from sentinel.burnin.checks.expected_checks import EXPECTED, count_unchecked, unproved
from sentinel.burnin.checks.node_report import NodeReport, results_of
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

#: What is shown of a GPU beside its counters.
_NAMED = ("index", "name", "serial", "pci_bus_id", "driver", "vbios")
#: The checks whose values are performance data, by their labels.
_PERFDATA = {
    "temperature.gpu": "temperature_left",
    "ecc.uncorrected": "ecc_uncorrected",
    "memory.retired_pages": "retired_pages",
}


def exit_code(report: NodeReport, *, strict: bool = False) -> int:
    """Choose the exit code of ``sentinel check``; a strict one fails for a warning, too."""
    if report.failure is not None:
        return TOOL_FAILED
    return EXIT_CODES[Status.FAIL if strict and report.status is Status.WARN else report.status]


def nagios(report: NodeReport) -> tuple[int, str]:
    """Build the exit code and the line of a Nagios plugin, with performance data."""
    if report.failure is not None:
        return NAGIOS_UNKNOWN, nagios_unknown(report.failure)
    code, word = _NAGIOS[report.status]
    counts = Counter(gpu.status for gpu in report.gpus)
    text = _first_words(report, 5)
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


def npd(report: NodeReport, *, strict: bool = False) -> tuple[int, str]:
    """Build the exit code and the line of a custom plugin of node-problem-detector."""
    if report.failure is not None:
        return NPD_UNKNOWN, npd_line(report.failure)
    text = _first_words(report, 1)
    bad = strict and report.status is Status.WARN
    return _NPD[Status.FAIL if bad else report.status], npd_line(text)


def npd_line(text: str) -> str:
    """Cut a text to the one line that a plugin may print."""
    line = _line(text)
    return line if len(line) <= NPD_CHARACTERS else f"{line[: NPD_CHARACTERS - 3]}..."


def _line(text: str) -> str:
    """Join a text into one line without the character that separates performance data."""
    return " ".join(text.replace("|", "/").split())


def _first_words(report: NodeReport, most: int) -> str:
    """Name what made the status of the node, and the limits by which no GPU is proved correct."""
    texts = [report.thresholds.why_unproved, _results_in_words(report, most)]
    return "; ".join(filter(None, texts if report.status is Status.NOT_TESTED else texts[::-1]))


def _results_in_words(report: NodeReport, most: int) -> str:
    """Name the results that made the status of the node; count the GPUs if it passed."""
    match report.status:
        case Status.PASS:
            simulated = any(gpu.counters.is_simulated for gpu in report.gpus)
            noun = "simulated GPU" if simulated else "GPU"
            notes = filter(None, [count_unchecked(report.node)])
            return "; ".join([f"{format_count(len(report.gpus), noun)} tested", *notes])
        case Status.NOT_TESTED:
            untested = [gpu for gpu in report.gpus if gpu.status is Status.NOT_TESTED]
            found = [
                f"GPU {gpu.counters.index}: {gpu.why_unread or gpu.checks[0].evidence}"
                for gpu in untested
            ]
            found += unproved(report.node)
        case status:
            found = [
                f"{place}: {result.id} = {result.value}{_words(result)}"
                for place, result in results_of(report)
                if result.status is status
            ]
    more = f", and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more or ("" if report.gpus else "no GPU was tested")


def _words(result: CheckResult) -> str:
    """Explain a word, such as the call that hung on a lost GPU, and what was expected."""
    explained = isinstance(result.value, str) or result.id in EXPECTED
    return f" ({result.evidence})" if explained and result.evidence else ""


def _figures(report: NodeReport) -> Iterator[str]:
    for gpu in report.gpus:
        for result in gpu.checks:
            if result.id in _PERFDATA and isinstance(result.value, int | float):
                yield f"gpu{gpu.counters.index}_{_PERFDATA[result.id]}={result.value:g}"


def as_object(report: NodeReport) -> dict[str, Any]:
    """Build the object for JSON."""
    return {
        "verdict": report.status.value if report.failure is None else None,
        "notes": [*filter(None, [count_unchecked(report.node)])],
        "driver_error": report.driver_error,
        "thresholds_overridden": report.thresholds.overridden(),
        "correctness_overridden": dict(report.thresholds.excused),
        "node": [asdict(result) for result in report.node],
        "gpus": [
            {
                "uuid": gpu.counters.uuid or None,
                **{name: getattr(gpu.counters, name) for name in _NAMED},
                "verdict": gpu.status.value,
                "unread": gpu.why_unread,
                "checks": [asdict(result) for result in gpu.checks],
                "counters": gpu.counters,
            }
            for gpu in report.gpus
        ],
    }
