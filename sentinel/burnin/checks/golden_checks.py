"""Golden checksums: compare those of a GPU with other GPUs and with the record. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from sentinel.burnin.checks.catalogue import ACTIONS, Table
from sentinel.burnin.checks.check import Judgement, Limits, by_action, by_limits, untested
from sentinel.burnin.checks.load_checks import findings
from sentinel.burnin.checks.load_evidence import LoadEvidence
from sentinel.burnin.record import Checksum
from sentinel.protocol.stressor import FindingPlace

TABLE = Table()

_NONE = "no checksum was computed"


def by_key(checksums: Iterable[Checksum]) -> dict[str, set[str]]:
    """Collect the checksums of a GPU by their key; one each, on a good GPU."""
    found: dict[str, set[str]] = {}
    for checksum in checksums:
        found.setdefault(checksum.key, set()).add(checksum.checksum)
    return found


def stored_before(checksums: Iterable[Checksum]) -> dict[str, str]:
    """Collect the records of a node from before its run; one of the run is no authority."""
    everything = list(checksums)
    made_here = {checksum.key for checksum in everything if checksum.stored is None}
    return {
        checksum.key: checksum.stored
        for checksum in everything
        if checksum.stored and checksum.key not in made_here
    }


def count_votes(gpus: Iterable[Mapping[str, Collection[str]]]) -> dict[str, Counter[str]]:
    """Count by key how many GPUs computed each checksum.

    Args:
        gpus: The checksums of each GPU by key. A GPU that contradicts itself votes for each.
    """
    found: dict[str, Counter[str]] = {}
    for gpu in gpus:
        for key, values in gpu.items():
            found.setdefault(key, Counter()).update(set(values))
    return found


def judge_checksums(
    own: Mapping[str, Collection[str]],
    votes: Mapping[str, Counter[str]],
    stored: Mapping[str, str],
    limits: Limits,
) -> Judgement:
    """Judge by the limits how many golden checksums of a GPU are wrong.

    Args:
        own: Its checksums, by key.
        votes: From ``count_votes``, this GPU included.
        stored: The records from before the run, by key.
        limits: Of the number of wrong keys.
    """
    compared = [key for key in own if votes[key].total() > len(own[key])]
    reasons = [_why_wrong(own[key], votes[key], stored.get(key)) for key in sorted(own)]
    wrong = [f"{key}: {why}" for key, why in zip(sorted(own), reasons, strict=True) if why]
    if not compared and not wrong:
        return untested("no other GPU of this model has computed the same")
    text = f"{len(compared)} checksums are compared with those of other GPUs"
    return by_limits(
        len(wrong), limits, f"{len(wrong)} of {len(own)}: {wrong[0]}" if wrong else text
    )


def _why_wrong(own: Collection[str], votes: Counter[str], stored: str | None) -> str | None:
    """Explain why the checksum of a key is wrong, or return None.

    Without a majority, the record from before the run decides; without one, each may be wrong.
    """
    if len(own) > 1:
        return f"the GPU contradicts itself: {', '.join(sorted(own))}"
    (value,) = own
    most = max(votes.values())
    rivals = sorted(rival for rival, count in votes.items() if count == most and rival != value)
    if not rivals or (votes[value] == most and stored == value):
        return None
    text = f"{value}, as {votes[value] - 1:,} of {votes.total() - 1:,} other GPUs"
    if votes[value] < most:
        return f"{text}; {most:,} computed {rivals[0]}"
    if stored is not None:
        return f"{text}; the record from before the run is {stored}"
    return f"{text}; as many computed {rivals[0]}, and no majority says which is right"


def _is_majority(values: Collection[str], votes: Counter[str]) -> bool:
    """Check whether two GPUs or more, and most of all, have computed this one value."""
    (value, *others) = values
    return not others and votes[value] > 1 and 2 * votes[value] > votes.total()


def _stored(evidence: LoadEvidence) -> dict[str, str]:
    gpus = (evidence.record, *evidence.peers)
    return stored_before(checksum for gpu in gpus for checksum in gpu.checksums)


@TABLE.check("golden.stored")
def _golden_stored(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the golden checksums with those on record."""
    own, stored = by_key(evidence.record.checksums), _stored(evidence)
    # A sample that was lost must not hide a finding.
    found = findings(evidence.record, FindingPlace.GOLDEN)
    if not own and found:
        return by_limits(len(found), limits, f"reported: {found[0]['detail']}")
    if not own:
        return untested(_NONE)
    compared = own.keys() & stored.keys()
    if not compared:
        return untested(f"none of {len(own)} checksums was on record before the run")
    wrong = [key for key in sorted(compared) if own[key] != {stored[key]}]
    text = f"{len(compared)} of {len(own)} checksums were on record before the run"
    votes = count_votes(by_key(gpu.checksums) for gpu in evidence.peers)
    if wrong and all(_is_majority(own[key], votes[key]) for key in wrong):
        text = f"the record of {wrong[0]} is {stored[wrong[0]]}, but most GPUs of this node"
        text += f" computed {', '.join(own[wrong[0]])}: the record is wrong"
        contradicted = by_limits(len(wrong), {"warn": limits["fail"]}, text)
        return by_action(contradicted, ACTIONS["remove_record"])
    if wrong:
        computed, known = ", ".join(sorted(own[wrong[0]])), stored[wrong[0]]
        text = f"{len(wrong)} of {len(compared)} differ; first: {wrong[0]}: {computed}, {known}"
        text += " is on record"
    return by_limits(len(wrong), limits, text)


@TABLE.check("golden.peers")
def _golden_peers(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the golden checksums with those of the peers."""
    own = by_key(evidence.record.checksums)
    if not own:
        return untested(_NONE)
    others = [gpu for gpu in evidence.peers if gpu.uuid != evidence.record.uuid]
    votes = count_votes([own, *(by_key(gpu.checksums) for gpu in others)])
    return judge_checksums(own, votes, _stored(evidence), limits)
