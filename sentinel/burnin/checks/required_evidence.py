"""What a burn-in must have judged for a PASS, and what of it was not. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sentinel.burnin.checks.check import CheckResult, Status
from sentinel.burnin.checks.counter_checks import DATA_CENTRE
from sentinel.burnin.checks.link_checks import links_of
from sentinel.protocol.codec import from_json
from sentinel.protocol.shipped_tables import shipped_table

T = TypeVar("T")

#: Models that remap rows of their memory (NVIDIA, GPU memory error management).
_REMAPPING = re.compile(r"\b(A30|A100|A800|H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300)\b")
#: Models whose memory has a thermometer (NVML, field 82; NVIDIA's data sheets of HBM).
_HEATED = re.compile(r"\b(A100|A800|H20|H100|H200|H800)\b")
#: A virtual GPU: its profile ends the name of the model (NVIDIA, virtual GPU software).
_VIRTUAL = re.compile(r"\bGRID\b|-\d{1,3}(CME|QME|QGFX|[ABCQ]\d?)$")
#: Comparisons that need other GPUs, a reference or earlier runs, and what to call their lack.
_COMPARISONS: Mapping[str, str] = {
    "rate.peers": "peers",
    "rate.reference": "reference",
}


#: The kinds of models in required.toml.
MODELS = {"data-centre": DATA_CENTRE, "remapping": _REMAPPING, "with a memory thermometer": _HEATED}


@dataclass(frozen=True, kw_only=True)
class Required:
    """One piece of evidence, as required.toml explains it."""

    #: In words.
    what: str
    checks: tuple[str, ...]
    any_of: bool = False
    #: One of MODELS, or empty.
    models: str = ""
    always: bool = False
    steady: bool = False


def required(kind: type[T], name: str) -> tuple[T, ...]:
    """Read one of the tables of required.toml."""
    rows = shipped_table("sentinel.burnin.checks", "required.toml")[name]
    return tuple(from_json(kind, row, name) for row in rows)


#: Everything that must have been judged.
REQUIRED = required(Required, "evidence")


def missing_evidence(
    results: Collection[CheckResult],
    *,
    has_steady: bool,
    name: str,
    ecc: bool | None,
    twins: Collection[str] = (),
    alone: bool = False,
) -> Iterator[str]:
    """Yield what was not judged of a GPU, with the reason.

    Args:
        results: Of its checks.
        has_steady: Whether the plan has a steady phase.
        name: The model; empty if it is not known.
        ecc: Its ECC mode before the run; None if it is not known.
        twins: The checks that have judged another GPU of its model.
        alone: Whether no other GPU is listed, to which it could be linked.
    """
    found = {result.id: result for result in results}
    linked = bool(links_of(name)) and not alone
    judged = partial(_is_judged, name=name, ecc=ecc, twins=twins, linked=linked)
    if _VIRTUAL.search(name):
        yield f"the whole GPU was not judged: {name} is a virtual GPU"
    for one in REQUIRED:
        if one.steady and not has_steady:
            continue
        unjudged = [
            found[check] for check in one.checks if check in found and not judged(found[check], one)
        ]
        if unjudged and (not one.any_of or len(unjudged) == len(one.checks)):
            worst = unjudged[0]
            more = f"; {len(unjudged) - 1} more of it" if len(unjudged) > 1 else ""
            yield f"{one.what} not judged: {worst.id}: {worst.unread or worst.evidence}{more}"


def not_linked(results: Collection[CheckResult], name: str) -> str | None:
    """Say that a model with NVLinks has none that works, where it needs none; None if nothing."""
    unjudged = {one.id for one in results if one.status is Status.NOT_APPLICABLE}
    if not links_of(name) or not unjudged & {"nvlink.lost", "nvlink.inactive"}:
        return None
    return f"NVLink not judged: none is {'listed' if 'nvlink.lost' in unjudged else 'active'}"


def _is_judged(
    result: CheckResult,
    one: Required,
    *,
    name: str,
    ecc: bool | None,
    twins: Collection[str],
    linked: bool,
) -> bool:
    """Check whether a result is one, or nothing that there is was left out."""
    if result.status is Status.NOT_APPLICABLE:
        if one.any_of or one.always:
            return False
        has_it = one.models and MODELS[one.models].search(name) and ecc is not False
        if result.id == "nvlink.lost":
            has_it = linked
        of_twins = result.id in twins and result.id != "nvlink.inactive"
        return not has_it and not of_twins
    return result.status is not Status.NOT_TESTED and not result.unread


def not_compared(results: Collection[CheckResult]) -> str | None:
    """Say what the rate of a GPU was not compared with, because there is none; None if nothing."""
    found = {
        _COMPARISONS[result.id]: result.status for result in results if result.id in _COMPARISONS
    }
    lacking = [f"no {name}" for name, status in found.items() if status is Status.NOT_APPLICABLE]
    unjudged = (Status.NOT_APPLICABLE, Status.NOT_TESTED)
    judged = [name for name, status in found.items() if status not in unjudged]
    what = f"rates compared with {judged[0]} only" if judged else "rates not compared"
    return f"{what}: {', '.join(lacking)}" if lacking else None
