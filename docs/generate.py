"""Generate the parts of the documents that follow from the code: ``make docs``.

Tables between ``<!-- generated: NAME -->`` and ``<!-- end -->`` are replaced in place. The manual
page and the OpenAPI document are written as whole files, which are not committed, and so is the
schema of the configuration file, which is.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from event_texts import Field

    from sentinel.burnin.checks.check import Check

DOCS = Path(__file__).resolve().parent
# Of the tree in which this lies, and not an installed one.
sys.path[:0] = [str(DOCS.parent), str(DOCS)]


# --- tables ----------------------------------------------------------------------------------


def options() -> str:
    """Return the table of the options of ``sentinel run``, with the key of each setting."""
    from sentinel.cli.daemon.run import command
    from sentinel.config.model import EFFECTS, SETTINGS
    from sentinel.config.setting import Scope

    settings = {one.field: one for one in SETTINGS}
    rows = []
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        setting = settings.get(option.name or "")
        flag = " ".join([option.opts[0], *_metavar(option)])
        if setting is None:
            text = (option.help or "").partition("  [default")[0]
            rows.append((f"`{flag}`", "", text.rstrip(".")))
        else:
            marks = ("†" if setting.scope is Scope.GPU else "") + (
                "‡" if setting.key in EFFECTS else ""
            )
            values = f"{setting.default} {f'({setting.limits})' if setting.limits else ''}".strip()
            cell = f"`{flag}`<br>`{setting.key}`{marks}"
            rows.append((cell, values, setting.help.rstrip(".")))
    return _table(("Option, key", "Default (allowed)", "Meaning"), rows)


def _metavar(option: click.Option) -> list[str]:
    """Return how the value of an option is written; nothing for a flag."""
    if option.is_flag:
        return []
    if isinstance(option.type, click.Choice):
        return ["|".join(option.type.choices)]
    return [option.metavar or "VALUE"]


def overview() -> str:
    """Return the output of ``sentinel --help``."""
    from sentinel.cli.main import sentinel_command

    settings: dict[str, Any] = sentinel_command.context_settings
    context = click.Context(sentinel_command, info_name="sentinel", terminal_width=80, **settings)
    text, _, _ = sentinel_command.get_help(context).partition("\n  Exit codes:")  # has a table
    return f"```\n$ sentinel --help\n{text}...\n```"


def events_of_gpu() -> str:
    """Return the table of the events about one GPU."""
    return _events(of_host=False)


def events_of_host() -> str:
    """Return the table of the events about the host."""
    return _events(of_host=True)


def _events(*, of_host: bool) -> str:
    from event_texts import event_texts

    from sentinel.protocol.events import HOST_EVENTS

    rows = [
        (
            # The anchor that a heading with this name would have.
            f'<a id="{name.replace(".", "")}"></a>`{name}`',
            text.description,
            "<br>".join(_field(field) for field in text.fields),
        )
        for name, text in event_texts().items()
        if (name in HOST_EVENTS) == of_host
    ]
    return _table(("Event", "When", "Fields"), rows)


def _field(field: Field) -> str:
    """Return a field, without a type that its name has."""
    kind = field.type
    for end, unit in UNITS.items():
        if field.name.endswith(end):
            kind = kind.replace(unit, "").strip()
    kind = re.sub(r"^text\b", "", kind).strip()
    return f"`{field.name}`" + (kind and f" ({kind})") + (field.text and f": {field.text}")


def metrics_of_daemon() -> str:
    """Return the table of the metrics of the daemon."""
    return _metrics(of_gpu=False)


def metrics_of_gpu() -> str:
    """Return the table of the metrics of a GPU."""
    return _metrics(of_gpu=True)


def _metrics(*, of_gpu: bool) -> str:
    from sentinel.api.metric_table import GPU_LABELS, METRICS

    rows = []
    for one in METRICS:
        if one.name.startswith("sentinel_gpu_") == of_gpu:
            own = ", ".join(label for label in one.labels if label not in GPU_LABELS)
            rows.append((f"`{one.name}{f'{{{own}}}' if own else ''}`", one.help.rstrip(".")))
    return _table(("Metric", "Meaning"), rows)


def levels() -> str:
    """Return a table of the requests that each level of access allows besides those below it."""
    from sentinel.api.app import document, make_app

    found: dict[str, list[str]] = {}
    for path, methods in json.loads(document(make_app()))["paths"].items():
        for method, operation in methods.items():
            found.setdefault(operation["x-level"], []).append(f"`{method.upper()} {path}`")
    rows = [(f"`{level}`", ", ".join(found[level])) for level in ("read", "operate", "administer")]
    return _table(("Level", "Requests"), rows)


def evidence_of_a_pass() -> str:
    """Return the table of what a burn-in must have judged for a PASS."""
    from sentinel.burnin.checks.required_evidence import MODELS, REQUIRED

    rows = []
    for one in REQUIRED:
        joint = " or " if one.any_of else ", "
        checks = joint.join(f"`{check}`" for check in one.checks)
        when = "plans with a steady phase" if one.steady else ""
        models = "data-centre models" if one.models else ""
        if one.models == "with a memory thermometer":
            models = MODELS[one.models].pattern.strip("\\b()").replace("|", ", ")
        rows.append((one.what, checks, "; ".join(filter(None, (when, models)))))
    return _table(("Evidence", "Checks", "Always needed on"), rows)


def required_groups() -> str:
    """Return the table of what must have been read of a GPU."""
    groups = tomllib.loads((DOCS.parent / "sentinel/burnin/checks/required.toml").read_text())
    rows = [
        (one["name"], ", ".join(f"`{name}`" for name in one["checks"]), one["why"])
        for one in groups["readings"]
    ]
    return _table(("Of these, one at least", "Checks", "Because"), rows)


def needs_of_a_pass() -> str:
    """Return the table of what a PASS of each level has checked, and of the least of any plan."""
    from sentinel.burnin.checks.recorded_run import CHECKS
    from sentinel.burnin.levels import LEVELS, find_plan
    from sentinel.burnin.verdict import MIN_CHECKED_S
    from sentinel.units import format_duration

    share = CHECKS["memory.covered"].limits["warn"]
    rows = [("any plan", f"{MIN_CHECKED_S:g} s", "", "")]
    for plan in map(find_plan, LEVELS):
        checked = [phase for phase in plan.phases if phase.checked and phase.mandatory]
        seconds = format_duration(sum(phase.seconds for phase in checked))
        passes = sum(phase.passes for phase in checked)
        needs = (seconds, str(passes), f"{share.value:.0%}")
        rows.append((f"`{plan.name}`", *(("no PASS", "", "") if plan.screen else needs)))
    header = ("Plan", "Seconds with checked results", "Passes of the memory test", "Of the memory")
    return _table(header, rows)


def fields_of_a_node() -> str:
    """Return the table of the fields of an expectation."""
    from schemas import GPU_FIELDS, NODE_FIELDS

    rows = [
        (f"`{name}`", "a GPU" if name in GPU_FIELDS else "a port", text.rstrip("."), f"`{example}`")
        for name, (text, example) in NODE_FIELDS.items()
    ]
    return _table(("Key", "Of", "Meaning", "Example"), rows)


def checks_of_a_moment() -> str:
    """Return the table of the checks of one moment."""
    from sentinel.burnin.checks.evidence import (
        ExpectedEvidence,
        HostEvidence,
        MomentEvidence,
        NodeEvidence,
    )
    from sentinel.burnin.checks.recorded_run import CHECKS

    kinds = (NodeEvidence, ExpectedEvidence, HostEvidence, MomentEvidence)
    return _checks(check for kind in kinds for check in CHECKS.of(kind))


def checks_of_a_difference() -> str:
    """Return the table of the checks of two readings."""
    from sentinel.burnin.checks.evidence import GpuEvidence, GrowthEvidence
    from sentinel.burnin.checks.recorded_run import CHECKS

    of_both = CHECKS.of(GpuEvidence)
    return _checks(check for check in CHECKS.of(GrowthEvidence) if check not in of_both)


def checks_of_a_load() -> str:
    """Return the table of the checks of a burn-in's load, without those of its links."""
    from sentinel.burnin.checks.evidence import GrowthEvidence, ParticipationEvidence
    from sentinel.burnin.checks.kernel_checks import KernelEvidence
    from sentinel.burnin.checks.load_evidence import LoadEvidence
    from sentinel.burnin.checks.recorded_run import CHECKS

    elsewhere = [*CHECKS.of(GrowthEvidence), *_links()]
    own = [check for check in CHECKS.of(LoadEvidence) if check not in elsewhere]
    return _checks((*own, *CHECKS.of(ParticipationEvidence), *CHECKS.of(KernelEvidence)))


def checks_of_links() -> str:
    """Return the table of the checks of a burn-in's links."""
    return _checks(_links())


def _links() -> list[Check[Any]]:
    from sentinel.burnin.checks.recorded_run import CHECKS

    return [check for check in CHECKS if check.id.startswith("links.")]


def _checks(checks: Iterable[Check[Any]]) -> str:
    """Return a table of checks with the numbers of their sources."""
    sources = _sources()
    rows = [
        (
            f"`{check.id}`",
            re.sub(r"[\w/]*\*[\w/*]*", r"`\g<0>`", check.reads),  # else the asterisks are emphasis
            _rule(check),
            str(sources[check.source]),
        )
        for check in checks
    ]
    return _table(("Check", "Reads", "Rule", "[From](#sources)"), rows)


def checks_of_a_fleet() -> str:
    """Return the table of the comparisons between the GPUs and nodes of a fleet."""
    from sentinel.fleet.fleet_checks import CHECKS

    header = ("Check", "Passes if", "Reads", "Rule", "Severity", "Source", "What to do")
    rows = [
        (
            f"`{check.id}`",
            check.title,
            check.reads,
            _rule(check),
            check.severity.value,
            check.source,
            check.action,
        )
        for check in CHECKS
    ]
    return _table(header, rows)


def _rule(check: Check[Any]) -> str:
    return check.threshold(check.limits) + (f" ({check.unit})" if check.unit else "")


def _sources() -> Mapping[str, int]:
    """Return the sources of all checks with their numbers."""
    from sentinel.burnin.checks.recorded_run import CHECKS

    found = dict.fromkeys(check.source for check in CHECKS)
    return {source: number for number, source in enumerate(found, start=1)}


def sources_of_checks() -> str:
    """Return the list of the sources of checks."""
    return "\n".join(f"{number}. {source}" for source, number in _sources().items())


def xids() -> str:
    """Return the table of the XIDs; those of one verdict, bucket and source share a row."""
    from sentinel.protocol.xids import CATALOG, XIDS, XidMeaning

    groups: dict[tuple[XidMeaning, str, str], dict[str, list[int]]] = {}
    for xid in XIDS.values():
        key = (xid.meaning, xid.bucket, xid.source.removeprefix(CATALOG).removeprefix("; "))
        name = re.sub(r" \d+$", "", xid.name)
        groups.setdefault(key, {}).setdefault(name, []).append(xid.number)
    order = list(XidMeaning)
    rows = [
        (
            meaning.value,
            bucket,
            "; ".join(f"{_ranges(numbers)} {name}" for name, numbers in names.items())
            + (note and f" (*{note}*)"),
        )
        for (meaning, bucket, note), names in sorted(
            groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
        )
    ]
    return _table(("Meaning", "Bucket", "XIDs"), rows)


def faults() -> str:
    """Return the table of faults with the verdict that a test demands of each."""
    from itertools import groupby

    from tests.harness.faults import KINDS, ROWS

    beside = {row.kind.name for row in ROWS if row.beside}
    parts = []
    for group, kinds in groupby(KINDS, key=lambda kind: kind.group):
        rows = []
        for kind in kinds:
            verdict = "; ".join(
                [kind.right, *(f"{word} with {gpus}" for gpus, word in kind.others)]
            )
            moments = ", ".join(moment.name for moment in kind.moments)
            mark = "+" if kind.name in beside else ""
            sizes = ", ".join(map(str, kind.sizes)) + mark
            rows.append((kind.text, moments, sizes, verdict, kind.source))
        head = (group, "When", "GPUs", "Verdict", "Why that is right")
        parts.append(_table(head, rows))
    return "\n\n".join(parts)


def kernel_faults() -> str:
    """Return the table of the kernel's fault lines without an XID, those of one source in a row."""
    from sentinel.burnin.checks.kernel_checks import KINDS

    groups: dict[tuple[str, str, str], list[str]] = {}
    for kind, row in KINDS.items():
        key = (row.meaning.value, row.bucket, row.source)
        groups.setdefault(key, []).append(f"`{kind}` {row.name}")
    rows = [
        (meaning, bucket, "; ".join(kinds), source)
        for (meaning, bucket, source), kinds in sorted(groups.items())
    ]
    return _table(("Meaning", "Bucket", "Faults", "Source"), rows)


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers with each row of them as a range: 39-41, 85."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(header)
    lines = [names, ["---"] * len(names), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def light() -> str:
    """Return the commands that install everything but torch."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    words = [f"'{one}'" for one in project["dependencies"] if not one.startswith("torch")]
    lines = textwrap.wrap(" ".join(words), 100, break_long_words=False, break_on_hyphens=False)
    rest = " \\\n    ".join(lines)
    return (
        "<!-- test: light-pip -->\n```\npython -m pip install --no-deps gpu-sentry\n"
        f"python -m pip install {rest}\n```"
    )


def torch_builds() -> str:
    """Return the table of the commands that install torch, by driver."""
    from sentinel.host.packages import BUILDS, Installer

    rows = [
        (
            f"{'.'.join(map(str, oldest))} or newer",
            f"`{Installer().command(requirement, index, replace=False)}`",
        )
        for oldest, index, requirement in BUILDS
    ]
    return _table(("Driver", "Command"), rows)


#: The units that the names of fields end with.
UNITS = {"_s": "seconds", "_at": "clock", "_w": "watts", "_c": "°C", "_mhz": "MHz"}

#: The generated parts by name.
PARTS: Mapping[str, Callable[[], str]] = {
    "overview": overview,
    "options": options,
    "events of a GPU": events_of_gpu,
    "events of the host": events_of_host,
    "metrics of the daemon": metrics_of_daemon,
    "metrics of a GPU": metrics_of_gpu,
    "levels": levels,
    "node": fields_of_a_node,
    "checks of a moment": checks_of_a_moment,
    "checks of a difference": checks_of_a_difference,
    "checks of a load": checks_of_a_load,
    "checks of links": checks_of_links,
    "checks of a fleet": checks_of_a_fleet,
    "sources of checks": sources_of_checks,
    "xids": xids,
    "faults": faults,
    "kernel faults": kernel_faults,
    "light": light,
    "torch": torch_builds,
    "required": required_groups,
    "evidence of a PASS": evidence_of_a_pass,
    "needs of a PASS": needs_of_a_pass,
}
_PART = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(\n<!-- end -->)", re.DOTALL)


def generated(document: str) -> str:
    """Return the text of a document with up-to-date parts."""
    return _PART.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}", document)


# --- files -----------------------------------------------------------------------------------


def manual_page() -> str:
    """Return the manual page."""
    from manual_page import page

    return page()


def openapi() -> str:
    """Return the OpenAPI document."""
    from sentinel.api.app import document, make_app

    return document(make_app())


def config_schema() -> str:
    """Return the JSON Schema of the configuration file."""
    import schemas

    return json.dumps(schemas.config_schema(), indent=2) + "\n"


def node_schema() -> str:
    """Return the JSON Schema of an expectation."""
    import schemas

    return json.dumps(schemas.node_schema(), indent=2) + "\n"


def completion(shell: str) -> str:
    """Return the completion for a shell."""
    from sentinel.cli.completion import completion_script

    return completion_script(shell)


#: The files that are generated as a whole.
FILES: Mapping[str, Callable[[], str]] = {
    "sentinel.1": manual_page,
    "openapi.json": openapi,
    "config.schema.json": config_schema,
    "node.schema.json": node_schema,
    # Named as each shell looks for them.
    "completion/sentinel": lambda: completion("bash"),
    "completion/_sentinel": lambda: completion("zsh"),
    "completion/sentinel.fish": lambda: completion("fish"),
}


def write(name: str) -> None:
    """Write one of the generated files."""
    path = DOCS / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(FILES[name]())


def main() -> None:
    """Write the generated parts and files, or only the named files."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("files", nargs="*", help=f"one of {', '.join(FILES)}")
    names = parser.parse_args().files
    for name in names or FILES:
        write(name)
    if not names:
        for path in sorted(DOCS.rglob("*.md")):
            text = path.read_text()
            path.write_text(generated(text))


if __name__ == "__main__":
    main()
