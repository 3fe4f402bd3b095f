"""Build report.html: one file that needs no network, and no script but for hovering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.burnin.checks.measures import MISSING, format_measure, format_seconds, format_time
from sentinel.burnin.reports.html_checks import node_section
from sentinel.burnin.reports.html_document import asset, html_document
from sentinel.burnin.reports.html_gpu import gpu_section
from sentinel.burnin.reports.html_parts import badge, facts, kind, notices, sentence, symbol, table
from sentinel.burnin.reports.markup import Markup, element, join


def html_page(report: Mapping[str, Any], plots: Mapping[str, Markup]) -> str:
    """Build the page of a report.

    Args:
        report: The report as JSON values.
        plots: The plot of each GPU, by UUID.
    """
    sections = (gpu_section(gpu, plots[gpu["uuid"]]) for gpu in report["gpus"])
    node, plan = report["node"], report["run"]["plan"]
    body = join(
        _verdict(report),
        element(
            "main",
            _notice(report),
            _summary(report),
            *sections,
            node_section(report["checks"]),
            _basis(report),
        ),
    )
    return html_document(
        title=f"{report['verdict']} {node['hostname']} {plan['name']}",
        style=asset(__package__, "report.css"),
        body=body,
        script=asset(__package__, "report.js"),
    )


def _verdict(report: Mapping[str, Any]) -> Markup:
    """Build the top of the page: the verdict, and what was run where."""
    run, node, plan = report["run"], report["node"], report["run"]["plan"]
    counts = (
        element("li", symbol(word), f"{count} {word}", class_=kind(word))
        for word, count in report["summary"].items()
        if count
    )
    rows = (
        ("Plan", join(plan["name"], " ", element("code", plan["hash"]))),
        ("Started", format_time(run["started"])),
        ("Ended", format_time(run["ended"])),
        ("Duration", format_seconds(run["duration_s"])),
        ("Mode", run["mode"]),
        ("Run", run["id"]),
        ("Driver", node["driver"]),
        ("Kernel", node["kernel"]),
        ("Machine", node["machine_id"] and element("code", node["machine_id"])),
        ("Tool", f"{run['tool']} {run['version']}, Python {node['python']}"),
    )
    return element(
        "header",
        element(
            "div",
            element("p", symbol(report["verdict"]), report["verdict"], class_="word"),
            element(
                "div",
                element("h1", f"Burn-in of {node['hostname']}"),
                element("p", f"{sentence(report['meaning'])}", class_="meaning"),
            ),
            element("ul", *counts, class_="counts", aria_label="GPUs by verdict"),
            class_="verdict",
        ),
        facts(rows),
        class_=f"top {kind(report['verdict'])}",
    )


def _notice(report: Mapping[str, Any]) -> Markup:
    """Build what a reader must not miss."""
    texts = []
    if report["run"]["simulated"]:
        texts.append("These GPUs are simulated: the report says nothing about hardware.")
    if report["thresholds_overridden"]:
        count = len(report["thresholds_overridden"])
        texts.append(f"{count} thresholds are not the default; they are listed at the end.")
    if report["run"]["mode"] == "accumulated":
        texts.append("The work was accumulated over interruptions, not done in one stretch.")
    return notices(texts)


def _summary(report: Mapping[str, Any]) -> Markup:
    """Build the table of all GPUs, for more than one."""
    gpus = report["gpus"]
    if not gpus:
        return element("p", "No GPU was tested.", class_="notice")
    if len(gpus) == 1:
        return Markup()
    head = (
        "GPU",
        "Verdict",
        "Model",
        "Serial",
        "Steady rate",
        "Power",
        "Hottest",
        "Checked",
        "Wrong",
        "Interrupted",
    )
    rows = (
        (
            element("a", f"GPU {gpu['index']}", href=f"#gpu-{gpu['index']}"),
            badge(gpu["verdict"]),
            gpu["model"],
            gpu["serial"],
            *_figures(gpu),
            f"{gpu['detection_power']['checks']:,}",
            gpu["detection_power"]["errors"],
            len(gpu["interruptions"]),
        )
        for gpu in gpus
    )
    return element(
        "section", element("h2", "GPUs"), table(head, rows, label="All GPUs"), class_="all"
    )


def _figures(gpu: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rate and the power of the first steady phase, and the highest temperature."""
    measured = gpu["measurements"]
    for name in ("flops_per_s", "power_w"):
        found = (one for one in measured if one["steady"] and one["name"] == name)
        one = next(found, None)
        yield MISSING if one is None else format_measure(name, one["median"])
    heat = [one["highest"] for one in measured if one["name"] == "temperature_c"]
    yield format_measure("temperature_c", max(heat)) if heat else MISSING


def _basis(report: Mapping[str, Any]) -> Markup:
    """Build what the verdicts are based on: the thresholds, the plan and the files."""
    changed = report["thresholds_overridden"]
    limits = {
        one["id"]: (one["threshold"], one["source"])
        for gpu in report["gpus"]
        for one in gpu["checks"]
    }
    rows = (
        (element("code", name), threshold, source)
        for name, (threshold, source) in sorted(limits.items())
    )
    replaced: Markup = element("p", "All thresholds are the default.")
    if changed:
        replaced = table(
            ("Threshold", "In force"), ((element("code", k), v) for k, v in changed.items())
        )
    phases = (
        (
            element("strong", one["name"]),
            element("code", one["workload"]),
            format_seconds(one["seconds"]) if one["seconds"] else "",
            one["passes"] or "",
            ", ".join(_rules(one)),
        )
        for one in report["run"]["plan"]["phases"]
    )
    files = ((name, element("code", digest)) for name, digest in report["run"]["sha256"].items())
    return element(
        "section",
        element("h2", "Basis of the verdicts"),
        element("h3", "Replaced thresholds"),
        replaced,
        element("h3", "Thresholds in force"),
        table(("Check", "Threshold", "Source"), rows, class_="limits"),
        element("h3", "Settings"),
        *_settings(report["run"]),
        element("h3", "Plan"),
        element("p", report["run"]["plan"]["title"]) if report["run"]["plan"]["title"] else None,
        table(("Phase", "Workload", "Time", "Passes", "Rules"), phases),
        element("h3", "SHA-256 of the recorded files"),
        facts(files, class_="facts list"),
        element(
            "p",
            f"schema {report['schema_version']}; the same report for programs is report.json.",
            class_="quiet",
        ),
        class_="basis",
    )


def _settings(run: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the settings that differ from the defaults, of the run and of each resumption."""
    times = [{"started": None, "settings": run["settings"]}, *run["resumed"]]
    for one in times:
        if one["started"] is not None:
            yield element("p", f"Resumed at {format_time(one['started'])}.")
        if one["settings"] is None:
            yield element("p", "Not recorded: they are those of a daemon.")
        elif one["settings"]:
            rows = (
                (
                    element("code", setting["key"]),
                    element("code", setting["value"]),
                    "" if setting["gpu"] is None else f"GPU {setting['gpu']}",
                    setting["source"],
                )
                for setting in one["settings"]
            )
            yield table(("Setting", "Value", "Only", "Source"), rows)
        else:
            yield element("p", "All settings are the default.")


def _rules(phase: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rules of a phase."""
    if phase["steady"]:
        yield "in one stretch, when warm"
    if not phase["mandatory"]:
        yield "not mandatory"
    if not phase["checked"]:
        yield "results not checked"
