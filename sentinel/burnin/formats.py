"""The formats of a report by name, the files of a run's folder, and text and page.

The layout of the page is ``web/templates/burnin.html``.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sentinel.burnin.checks import measures
from sentinel.burnin.compare import moved
from sentinel.burnin.detection_power import describe_confirmed, statements
from sentinel.burnin.junit import junit_xml
from sentinel.burnin.manifest import check_report, write_manifest
from sentinel.burnin.ocp import ocp_lines
from sentinel.burnin.power_swing import describe_swing
from sentinel.burnin.report import SCHEMA_VERSION, Judged, judge_run, report_object
from sentinel.burnin.run_folder import RunFolder, read_object
from sentinel.burnin.timeline import describe_passes, memory_heat, plot
from sentinel.burnin.verdict import NOT_COMPLETE, Verdict, judged_by, verdict_summary
from sentinel.errors import ConfigError
from sentinel.units import format_count
from sentinel.web.document import html_document

# --- text ------------------------------------------------------------------------------------


#: The worst first.
_VERDICTS = tuple(Verdict)

#: The order of the checks, by their status.
_STATUSES = ("fail", "warn", "not tested", "pass", "n/a")

#: The file of each format in the folder of a run; report.json is the last, so that it is there only
#: if all others are.
FILES: Mapping[str, str] = {
    "text": "report.txt",
    "html": "report.html",
    "junit": "junit.xml",
    "ocp": "ocp.jsonl",
    "json": "report.json",
}
Report = Mapping[str, Any]


def text_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines: the verdict first, then each GPU with its reasons and what it did."""
    yield from _head(report)
    common = _in_common(report["gpus"])
    for title, text in common:
        yield f"each GPU: {title.lower()}: {text}"
    for gpu in sorted(report["gpus"], key=lambda one: _VERDICTS.index(one["verdict"])):
        yield from _gpu_lines(gpu, common)


def _gpu_lines(gpu: Mapping[str, Any], common: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines of a GPU, without what is said of each."""
    yield ""
    serial = f", serial {gpu['serial']}" if gpu["serial"] else ""
    yield f"{gpu['verdict']:<10}  GPU {gpu['index']}  {gpu['model'] or gpu['uuid']}{serial}"
    for reason in _apart_from_phases(gpu, gpu["reasons"]):
        yield f"            {reason}"
    for action in _actions(gpu["checks"]):
        yield f"            do: {action}"
    whys = _whys(gpu)
    for phase in gpu["coverage"]:
        yield f"            {_phase_line(phase, whys.get(phase['phase']))}"
    for title, text in statements(gpu):
        if text not in gpu["reasons"] and (title, text) not in common:
            yield f"            {title.lower()}: {text}"
    if gpu["interruptions"]:
        causes = ", ".join(sorted({interruption["cause"] for interruption in gpu["interruptions"]}))
        count = format_count(len(gpu["interruptions"]), "interruption")
        away = measures.format_seconds(sum(found["away_s"] for found in gpu["interruptions"]))
        yield f"            {count}, {away} in all: {causes}"
    if gpu["not_tested"]:
        names = ", ".join(text.partition(":")[0] for text in gpu["not_tested"])
        yield f"            not tested: {names}"
    for line in _skipped(gpu):
        yield f"            {line}"


def _in_common(gpus: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Select what is said of each of several GPUs in the same words."""
    if len(gpus) < 2:  # noqa: PLR2004 - of one, it is said there
        return []
    first, *others = (list(statements(gpu)) for gpu in gpus)
    return [one for one in first if all(one in other for other in others)]


def _apart_from_phases(gpu: Mapping[str, Any], reasons: Iterable[str]) -> list[str]:
    """Select the reasons that are not about a phase, which has its own line."""
    starts = tuple(NOT_COMPLETE.format(phase["phase"]) for phase in gpu["coverage"])
    return [reason for reason in reasons if not reason.startswith(starts)]


def _actions(checks: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Select what to do about checks that did not pass, each once."""
    bad = (check for check in _worst_first(checks) if check["status"] in {"fail", "warn"})
    return dict.fromkeys(check["action"] for check in bad if check["action"])


def _whys(gpu: Mapping[str, Any]) -> dict[str, str]:
    """Return why phases are not complete, by their names."""
    names = [phase["phase"] for phase in gpu["coverage"]]
    return {
        name: reason.removeprefix(NOT_COMPLETE.format(name)).partition(": ")[2]
        for name in names
        for reason in gpu["incomplete"]
        if reason.startswith(NOT_COMPLETE.format(name))
    }


def _skipped(gpu: Mapping[str, Any]) -> Iterator[str]:
    """Yield the checks that have nothing to judge in this run, by the reason."""
    reasons: dict[str, list[str]] = {}
    for check in gpu["checks"]:
        mark, _, reason = check["evidence"].partition(": ")
        if check["status"] == "n/a" and mark == "skipped":
            reasons.setdefault(reason, []).append(check["id"])
    for reason, names in reasons.items():
        yield f"skipped, {reason}: {', '.join(names)}"


def format_setting(setting: Mapping[str, Any]) -> str:
    """Format a setting that differs from the default, with where it came from."""
    gpu = f" of GPU {setting['gpu']}" if setting["gpu"] is not None else ""
    return f"{setting['key']}{gpu} = {setting['value']} ({setting['source']})"


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was run with which settings, and what is wrong with the node."""
    run, node = report["run"], report["node"]
    yield f"{report['verdict']}  {node['hostname']}  {run['plan']['name']}: {report['meaning']}"
    if run.get("resume") is not None:  # a report of an earlier version has none
        yield f"go on with: {run['resume']}"
    tools = f"{run['tool']} {run['version']}, torch {node.get('torch')}, driver {node['driver']}"
    rules = f"judged by the rules of version {judged_by(report)}"
    yield f"run {run['id']}, {run['mode']}, {tools}, {rules}"
    for setting in run["settings"] or ():
        yield f"setting {format_setting(setting)}"
    for resumed in run["resumed"]:
        given = ", ".join(format_setting(setting) for setting in resumed.get("settings") or ())
        yield f"resumed {resumed['started']}" + (f" with {given}" if given else "")
    yield describe_confirmed(run)
    for check in report["checks"]:
        if check["status"] in {"fail", "warn", "not tested"}:
            yield f"node: {check['status']}: {check['id']}: {check['evidence'] or check['value']}"
    for action in _actions(report["checks"]):
        yield f"node: do: {action}"


def _phase_line(phase: Mapping[str, Any], why: str | None) -> str:
    mark = "done" if phase["complete"] else "not done"
    parts = []
    if phase["quota_s"]:
        done, quota = (measures.format_seconds(phase[name]) for name in ("done_s", "quota_s"))
        parts.append(f"{done} of {quota}")
    if phase["quota_passes"]:
        parts.append(describe_passes(phase))
    if phase["memory_share"]:
        parts.append(f"{phase['memory_share']:.1%} of the memory")
    if phase.get("retained_share"):
        parts.append(f"{phase['retained_share']:.1%} held untouched, a stripe at a time")
    parts += filter(None, (memory_heat(phase), describe_swing(phase)))
    if phase["checks"]:
        parts.append(f"{phase['checks']:,} results checked, {phase['errors']} wrong")
    if reason := why or phase["not_tested"]:
        parts.append(reason)
    return f"{phase['phase']:<12} {mark:<8}  {', '.join(parts)}"


# --- the page --------------------------------------------------------------------------------


def html_page(report: Mapping[str, Any], plots: Mapping[str, Any]) -> str:
    """Build the page of a report.

    Args:
        report: The report as JSON values.
        plots: The values of each GPU's curves, by UUID; see :mod:`sentinel.burnin.timeline`.
    """
    return html_document(
        "burnin.html",
        scripts=("vendor/uPlot.iife.min.js", "dom.js", "curves.js", "burnin.js"),
        filters=_FILTERS,
        report=report,
        plots=plots,
    )


def _worst_first(checks: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort checks by their status."""
    return sorted(checks, key=lambda check: _STATUSES.index(check["status"]))


def _figures(gpu: Mapping[str, Any], drawn: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the rate and the power of the first steady phase, and the highest temperature.

    A GPU may be hottest while it warms up, which does not count: its curves show it.
    """
    measured = gpu["measurements"]
    for name in ("flops_per_s", "power_w"):
        medians = (row["median"] for row in measured if row["steady"] and row["name"] == name)
        median = next(medians, None)
        yield measures.MISSING if median is None else measures.format_measure(name, median)
    curves = drawn["curves"] if drawn else ()
    values = [value for curve in curves if curve["key"] == "heat" for value in curve["values"]]
    # A GPU that was too hot to begin has its counters alone.
    counters = (gpu["counters"][time] or {} for time in ("before", "after"))
    values += [found.get("temperature_c") for found in counters]
    heat = [value for value in values if value is not None]
    yield measures.format_measure("temperature_c", max(heat)) if heat else measures.MISSING


def _limits(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List each check of the GPUs once, by its id, for its threshold and source."""
    checks = {check["id"]: check for gpu in report["gpus"] for check in gpu["checks"]}
    return [checks[name] for name in sorted(checks)]


#: The functions by which the template of the page formats values.
_FILTERS: Mapping[str, Callable[..., Any]] = {
    "describe_passes": describe_passes,
    "describe_swing": describe_swing,
    "apart_from_phases": lambda gpu: _apart_from_phases(gpu, gpu["incomplete"]),
    "statements": statements,
    "confirmed": describe_confirmed,
    "figures": _figures,
    "judged_by": judged_by,
    "limits": _limits,
    "measure": lambda value, name: measures.format_measure(name, value),
    "measure_title": measures.title,
    "memory_heat": memory_heat,
    "moved": moved,
    "seconds": measures.format_seconds,
    "time": measures.format_time,
    "value": measures.format_value,
    "whys": _whys,
    "worst_first": _worst_first,
}


# --- all formats -----------------------------------------------------------------------------


def _html(run: Judged, report: Report) -> str:
    return html_page(report, {gpu.record.uuid: plot(gpu.record, run.span) for gpu in run.gpus})


#: What builds each format of a judged run and its report; without a newline at the end. The page
#: alone needs the run.
FORMATS: Mapping[str, Callable[[Any, Report], str]] = {
    "text": lambda _, report: "\n".join(text_lines(report)),
    "html": _html,
    "junit": lambda _, report: junit_xml(report),
    "ocp": lambda _, report: "\n".join(ocp_lines(report)),
    "json": lambda _, report: json.dumps(report, indent=1),
    "summary": lambda _, report: verdict_summary(report),
}


def stored_report(folder: RunFolder) -> Report:
    """Read the report that the folder of a run has; write it if the run was killed before.

    Raises:
        ConfigError: It cannot be read or written, or is not one of this version.
        IncompleteError: It is not as the manifest of the run says.
    """
    if not folder.report.exists():
        with folder.locked():
            write_reports(folder, judge_run(folder))
    check_report(folder)
    report = read_object(folder.report)
    if report.get("schema_version") != SCHEMA_VERSION:
        how = f"To judge its run again: sentinel report {shlex.quote(str(folder.path))}"
        raise ConfigError(f"{folder.report}: not version {SCHEMA_VERSION} of the report", how)
    return report


def write_reports(folder: RunFolder, run: Judged) -> Report:
    """Write the report of a run into its folder in every format, then the manifest of all files.

    Returns:
        The report as JSON values.
    """
    report = report_object(run)
    for name, file in FILES.items():
        folder.write(folder.path / file, FORMATS[name](run, report))
    write_manifest(folder)
    return report
