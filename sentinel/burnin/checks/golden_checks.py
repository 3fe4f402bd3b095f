"""The checks of golden checksums: what good GPUs of one model must compute bit for bit. Pure.

A record is made by the first GPU that computes its key, which may be the faulty one. So a record
that was made in the run itself is no authority: there, the majority of the node's GPUs is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sentinel.burnin.checks.check import Check, Judgement, Severity, by_limits, untested
from sentinel.burnin.checks.load_checks import RETEST, LoadEvidence
from sentinel.burnin.checks.peers import Vote, count_votes, vote_on
from sentinel.burnin.checks.thresholds import Limits, above
from sentinel.burnin.records.record import GpuRecord
from sentinel.protocol.stressor import FindingPlace

_NONE = "no checksum was computed"


def _own(record: GpuRecord) -> dict[str, set[str]]:
    """Collect the checksums that a GPU has computed, by their key; one each, on a good GPU."""
    found: dict[str, set[str]] = {}
    for one in record.checksums:
        found.setdefault(one.key, set()).add(one.checksum)
    return found


def _stored(evidence: LoadEvidence) -> dict[str, str]:
    """Collect the records from before the run, by their key."""
    everything = [one for gpu in (evidence.record, *evidence.peers) for one in gpu.checksums]
    made_here = {one.key for one in everything if one.stored is None}
    return {one.key: one.stored for one in everything if one.stored and one.key not in made_here}


def _against_stored(evidence: LoadEvidence, limits: Limits) -> Judgement:
    own, stored = _own(evidence.record), _stored(evidence)
    if not own:
        return _without_checksums(evidence, limits)
    compared = own.keys() & stored.keys()
    if not compared:
        return untested(f"none of {len(own)} checksums was on record before the run")
    wrong = [key for key in sorted(compared) if own[key] != {stored[key]}]
    text = f"{len(compared)} of {len(own)} checksums were on record before the run"
    if wrong:
        first = wrong[0]
        text = (
            f"{len(wrong)} of {len(compared)} differ; first: {first}: {_list(own[first])},"
            f" {stored[first]} is on record"
        )
    return by_limits(len(wrong), limits, text)


def _without_checksums(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Judge a GPU by its findings alone; a lost sample must not hide one."""
    found = [
        one
        for one in evidence.record.named("stressor.finding")
        if one["place"] == FindingPlace.GOLDEN
    ]
    if not found:
        return untested(_NONE)
    return by_limits(len(found), limits, f"reported: {found[0]['detail']}")


def _against_peers(evidence: LoadEvidence, limits: Limits) -> Judgement:
    own, stored = _own(evidence.record), _stored(evidence)
    if not own:
        return untested(_NONE)
    others = {
        one.index: found
        for one in evidence.peers
        if one.uuid != evidence.record.uuid and (found := _own(one))
    }
    compared = [key for key in sorted(own) if any(key in one for one in others.values())]
    wrong = [
        why
        for key in sorted(own)
        if (why := _why_wrong(own[key], _of(key, others), stored.get(key))) is not None
    ]
    if not compared and not wrong:
        return untested("no other GPU of this model has computed the same")
    text = f"{len(compared)} checksums are compared with those of {len(others)} GPUs"
    if wrong:
        text = f"{len(wrong)} of {len(own)}: {wrong[0]}"
    elif deviating := _deviating(own, others):
        text += f"; GPU {', '.join(str(index) for index in deviating)} differs"
    return by_limits(len(wrong), limits, text)


def _of(key: str, others: Mapping[int, Mapping[str, set[str]]]) -> dict[int, set[str]]:
    """Select the checksums of one key, by the index of the GPU."""
    return {index: found[key] for index, found in others.items() if key in found}


def _why_wrong(own: set[str], others: Mapping[int, set[str]], stored: str | None) -> str | None:
    """Explain why the checksum of a key is wrong, or return None.

    Without a majority, the record from before the run decides; without one, each may be wrong.
    """
    if len(own) > 1:
        return f"the GPU contradicts itself: {_list(own)}"
    (value,) = own
    votes = count_votes([own, *others.values()])
    vote, rival = vote_on(value, votes, stored)
    agree = votes[value] - 1
    against = sorted(index for index, found in others.items() if value not in found)
    text = f"{value}, as {agree} of {len(others)} other GPUs; GPU {_list(map(str, against))}"
    match vote:
        case Vote.AGREES:
            return None
        case Vote.OUTVOTED:
            return f"{text} computed {rival}"
        case Vote.AGAINST_RECORD:
            return f"{text} agree with the record, {stored}"
        case Vote.TIED:
            return f"{text} differ, and no majority says which is right"


def _deviating(
    own: Mapping[str, set[str]], others: Mapping[int, Mapping[str, set[str]]]
) -> list[int]:
    """List the GPUs that have computed something else."""
    return sorted(
        index
        for index, found in others.items()
        if any(found[key] != own[key] for key in found.keys() & own.keys())
    )


def _list(values: Iterable[str]) -> str:
    return ", ".join(sorted(values))


CHECKS: tuple[Check[LoadEvidence], ...] = (
    Check(
        id="golden.stored",
        limits={"fail": above(0)},
        title="It computes the golden checksums that were stored before the run",
        reads="the checksums of the references, the file of the golden checksums",
        source="own: the same inputs, kernels and model give the same bits",
        severity=Severity.ISOLATE,
        action=f"TRIAGE: the record may be of a faulty GPU; compare it with other hosts. {RETEST}",
        judge=_against_stored,
    ),
    Check(
        id="golden.peers",
        limits={"fail": above(0)},
        title="It computes the checksums of the node's other GPUs of its model",
        reads="the checksums of the references of all GPUs of the run",
        source="own: the same inputs, kernels and model give the same bits; the majority is right",
        severity=Severity.ISOLATE,
        action="TRIAGE: remove what this GPU has recorded in the file of the golden checksums. "
        + RETEST,
        judge=_against_peers,
    ),
)
