"""``sentinel doctor``: check whether sentinel can run safely on this host."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import click

from sentinel.cli.display.output import color_option, print_json, wants_colour
from sentinel.cli.options.setting_options import simulate_option
from sentinel.config.sources import checked, find_file, gather
from sentinel.diagnostics.doctor_checks import diagnose
from sentinel.diagnostics.doctor_facts import Diagnosis, DoctorLevel, verdict
from sentinel.diagnostics.doctor_inspection import examine
from sentinel.host.trusted_code import check_search_path
from sentinel.units import format_count, format_indices

_COLOURS = {DoctorLevel.OK: "green", DoctorLevel.WARNING: "yellow", DoctorLevel.PROBLEM: "red"}

#: Exit codes; 2 is also wrong usage, with a message on standard error.
_EXIT_CODES = {DoctorLevel.OK: 0, DoctorLevel.WARNING: 1, DoctorLevel.PROBLEM: 2}

_VERDICTS = {
    DoctorLevel.OK: "Sentinel can run on this host",
    DoctorLevel.WARNING: "Sentinel can run on this host, with limits",
    DoctorLevel.PROBLEM: "Sentinel cannot run, or is not safe, on this host",
}

#: The column at which the text of a check begins, and the maximum width.
_INDENT = 27
_WIDTH = 100


@click.command("doctor")
@simulate_option("Check with N simulated GPUs.")
@color_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(simulate: int | None, as_json: bool) -> int:
    """Check whether sentinel can run safely here; exit code 1 for warnings, 2 for problems."""
    facts, stuck = examine(simulate, driver=_configured_driver())
    findings = diagnose(facts)
    code = _EXIT_CODES[verdict(findings)]
    if as_json:
        print_json(as_object(findings))
    else:
        width = min(_WIDTH, max(_INDENT + 30, shutil.get_terminal_size((_WIDTH, 24)).columns))
        print("\n".join(page(findings, colour=wants_colour(sys.stdout), width=width)))
    if stuck:  # the interpreter's exit would wait for the process
        sys.stdout.flush()
        os._exit(code)
    return code


def _configured_driver() -> str:
    """Read the driver that a daemon of this user would read the GPUs through.

    Raises:
        ConfigError: No daemon would start: the settings cannot be read, or root's would search a
            folder for modules that another user can change.
    """
    check_search_path()
    file = find_file(None, os.environ)
    return checked(gather({}, os.environ, file)).driver


def as_object(findings: Sequence[Diagnosis]) -> dict[str, object]:
    """Return all findings for JSON."""
    names = ("check", "gpu", "level", "found", "means", "do")
    lines = [{name: getattr(finding, name) for name in names} for finding in findings]
    return {"verdict": verdict(findings).value, "lines": lines}


def page(findings: Sequence[Diagnosis], *, colour: bool, width: int = _WIDTH) -> Iterator[str]:
    """Yield the lines of the report; GPUs with equal findings share an entry."""
    groups: dict[Diagnosis, list[Diagnosis]] = {}
    order: dict[str, int] = {}
    for finding in findings:
        order.setdefault(finding.check, len(order))
        groups.setdefault(replace(finding, gpu=None, index=None), []).append(finding)
    entries = sorted(groups.values(), key=lambda group: order[group[0].check])
    for group in entries:
        yield from _entry(group, colour=colour, width=width - _INDENT)
    worst = verdict(findings)
    counts = Counter(group[0].level for group in entries)  # of what is printed
    bad = (DoctorLevel.PROBLEM, DoctorLevel.WARNING)
    parts = [format_count(counts[level], level.value) for level in bad if counts[level]]
    if counts[DoctorLevel.OK]:
        parts.append(f"{counts[DoctorLevel.OK]} {DoctorLevel.OK.value}")
    summary = ", ".join(parts)
    last = f"{_VERDICTS[worst]}: {summary}"
    yield ""
    yield click.style(last, fg=_COLOURS[worst]) if colour else last


def _entry(group: Sequence[Diagnosis], *, colour: bool, width: int) -> Iterator[str]:
    """Yield the entry of equal findings; one that is ok is short."""
    one = group[0]
    level = f"{one.level.value:<8}"
    head = click.style(level, fg=_COLOURS[one.level]) if colour else level
    found = f"{_gpus(group)}{one.found}"
    first = f"{found} - {one.means}" if one.level is DoctorLevel.OK else found
    start, *rest = _wrapped(first, width)
    yield f"{head} {one.check:<{_INDENT - 9}}{start}"
    if one.level is not DoctorLevel.OK:
        rest += _wrapped(one.means, width) + _wrapped(one.do, width, "do: ")
    yield from (f"{'':<{_INDENT}}{line}" for line in rest)


def _wrapped(text: str, width: int, label: str = "") -> list[str]:
    indent = " " * len(label)
    return textwrap.wrap(label + text, width, subsequent_indent=indent, break_on_hyphens=False)


def _gpus(findings: Sequence[Diagnosis]) -> str:
    """Format the GPUs of an entry by index; a lock may belong to a GPU that is not listed."""
    unlisted = [finding.gpu for finding in findings if finding.index is None and finding.gpu]
    indices = [finding.index for finding in findings if finding.index is not None]
    listed = [f"GPU {format_indices(indices)}"] if indices else []
    names = ", ".join(listed + unlisted)
    return f"{names}: " if names else ""
