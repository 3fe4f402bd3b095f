"""Format the report of a fleet for a terminal: what is wrong first, the rest in counts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sentinel.burnin.checks.measures import format_measure
from sentinel.burnin.checks.peer_checks import Peers
from sentinel.fleet.checks.groups import Group
from sentinel.fleet.checks.outliers import LISTED, Outlier, outliers
from sentinel.fleet.checks.verdict import FleetVerdict
from sentinel.fleet.reports.node_names import fold_names
from sentinel.fleet.reports.report import meaning
from sentinel.units import format_count

#: Of each verdict, so many entries are listed with their reasons; the others only by their nodes.
MAX_LISTED = 40
#: So many reasons of one entry are listed.
_MAX_REASONS = 3
_INDENT = " " * 12


def text_lines(fleet: FleetVerdict) -> Iterator[str]:
    """Yield the lines: the verdict, what is wrong, and what is usual."""
    run = fleet.run
    name = "fleet" if run is None else f"{run.id}  {run.plan}"
    yield f"{fleet.verdict}  {name}: {meaning(fleet)}"
    yield f"{format_count(len(fleet.nodes), 'node')}: {_counts(fleet.node_counts)}"
    yield f"{format_count(len(fleet.gpus), 'GPU')}: {_counts(fleet.gpu_counts)}"
    yield from fleet.notices
    found = outliers(fleet)
    for word in LISTED:
        yield from _listed(word, [one for one in found if one.word == word])
    yield ""
    for group in fleet.groups:
        yield from _group(group)
    for text, number in fleet.not_compared:
        yield f"not compared on {format_count(number, 'GPU')}: {text}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {word}" for word, number in counts.items() if number) or "none"


def _listed(word: str, found: Sequence[Outlier]) -> Iterator[str]:
    """Yield the entries of one word, and the nodes of those that are too many to list."""
    if found:
        yield ""
    for one in found[:MAX_LISTED]:
        yield f"{word:<10}  {_subject(one)}"
        for reason in one.reasons[:_MAX_REASONS]:
            yield f"{_INDENT}{reason}"
        if len(one.reasons) > _MAX_REASONS:
            yield f"{_INDENT}and {len(one.reasons) - _MAX_REASONS} more reasons"
    if left := found[MAX_LISTED:]:
        names = fold_names(node.name for one in left for node in one.nodes)
        yield f"{word:<10}  and {len(left):,} more: {names}"


def _subject(outlier: Outlier) -> str:
    """Name the nodes or GPUs of an entry."""
    names = fold_names(node.name for node in outlier.nodes)
    if len(outlier.nodes) > 1:
        gpus = f"{format_count(len(outlier.gpus), 'GPU')} of " if outlier.gpus else ""
        return f"{gpus}{format_count(len(outlier.nodes), 'node')}: {names}"
    if not outlier.gpus:
        return names
    if len(outlier.gpus) > 1:
        numbers = fold_names(str(one.gpu.index) for one in outlier.gpus).strip("[]")
        return f"{names} GPUs {numbers}"
    gpu = outlier.gpus[0].gpu
    return f"{names} GPU {gpu.index}  {gpu.uuid}" + (f"  serial {gpu.serial}" if gpu.serial else "")


def _group(group: Group) -> Iterator[str]:
    """Yield what is usual in a group."""
    nodes = group.by_node()
    size = f"{format_count(len(group.members), 'GPU')} of {format_count(len(nodes), 'node')}"
    yield f"group {group.number}: {size}: {group.hardware}"
    parts = [
        f"{title} {format_measure(name, peers.median)} ± {_deviation(name, peers)}"
        for title, name, peers in (
            ("rate", "flops_per_s", group.rate),
            ("temperature", "temperature_c", group.temperature),
            ("power", "power_w", group.power),
        )
        if peers is not None
    ]
    yield f"  {', '.join(parts) or 'too few GPUs, or no steady phase, to compare'}"


def _deviation(name: str, peers: Peers) -> str:
    """Format the deviation; of a rate as a share, since its unit has a prefix."""
    if name == "flops_per_s" and peers.median:
        return f"{peers.deviation / peers.median:.1%}"
    return format_measure(name, round(peers.deviation, 1))
