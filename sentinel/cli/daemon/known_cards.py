"""What is known of each GPU: what it has proved, its last verdict, and what a script requires."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sentinel.burnin.checks.check import Status, Thresholds
from sentinel.burnin.checks.evidence import ExpectedEvidence
from sentinel.burnin.checks.expected_checks import EXPECTED
from sentinel.burnin.checks.node_report import judge_node, proven_fault, results_of
from sentinel.burnin.checks.required_readings import unread
from sentinel.burnin.formats import write_reports
from sentinel.burnin.levels import find_plan
from sentinel.burnin.report import judge_run
from sentinel.burnin.run_folder import RunFolder
from sentinel.burnin.verdict import Verdict
from sentinel.cli.daemon.acknowledgement import OwnedGpu
from sentinel.cli.daemon.known_faults import look_up
from sentinel.config.expectation import Expectation
from sentinel.core.faults import describe
from sentinel.core.gpu_state import NOT_READ
from sentinel.errors import ConfigError, DriverUnavailableError
from sentinel.host import verified_store
from sentinel.host.last_verdicts import (
    AHEAD_S,
    RUNS,
    LastVerdict,
    Unknown,
    Work,
    last_verdicts,
    report_paths,
    work_of,
)
from sentinel.host.regular_file import file_errors
from sentinel.protocol.api_types import GpuProof, GpuStatus
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.rules import why_unknown
from sentinel.protocol.views import GpuFault
from sentinel.units import format_duration

if TYPE_CHECKING:
    from sentinel.diagnostics.counters import CountersResult

#: The verdicts that accept a GPU, and those that meet a requirement.
ACCEPTED = frozenset({Verdict.PASS, Verdict.WARN})
REQUIRED = {"pass": frozenset({Verdict.PASS}), "warn": ACCEPTED}


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """What ``--require`` and its options ask of each GPU."""

    #: The verdict.
    name: str
    #: The level whose plan the verdict must be of, or of a longer one; None for any.
    level: str | None = None
    #: How long ago the run may have ended, in seconds; None for any time.
    max_age_s: float | None = None

    @property
    def work(self) -> Work | None:
        """What the plan of the verdict must have asked for."""
        return None if self.level is None else work_of(asdict(find_plan(self.level))["phases"])

    def unmet_by(self, card: Card) -> str | None:
        """Explain why a GPU does not meet it, or return None."""
        burnin = card.burnin
        if card.lost is not None or burnin is None or is_suspect(card):
            return ""
        if burnin.verdict not in REQUIRED[self.name]:
            return ""
        if burnin.no_proof is not None:
            return burnin.no_proof
        if self.max_age_s is None:
            return None
        if burnin.ended is None:
            return "when it ended is not known"
        age = time.time() - burnin.ended.timestamp()
        if age < -AHEAD_S:
            return f"it ended in the future: {burnin.ended:%Y-%m-%d}"
        is_old = age > self.max_age_s
        return f"it ended {format_duration(round(age))} ago" if is_old else None

    def __str__(self) -> str:
        age = None if self.max_age_s is None else format_duration(self.max_age_s)
        more = {"level": self.level, "max-age": age}
        flags = (f"--{flag} {value}" for flag, value in more.items() if value is not None)
        return " ".join((f"--require {self.name}", *flags))


@dataclass(frozen=True, kw_only=True)
class Card(OwnedGpu):
    """What is known of one GPU."""

    name: str | None = None
    verified: GpuProof | None = None
    burnin: LastVerdict | None = None
    #: When a daemon or a burn-in last had it, in seconds since the epoch; 0 if that is not known.
    seen: float = 0.0
    #: Why it is lost now, or nearly nothing of it can be read, which is only known of the GPUs of
    #: the host and of a daemon; or why what was found earlier is not known. None otherwise.
    lost: str | None = None
    #: What its daemon knows, or the last one knew.
    faults: tuple[GpuFault, ...] = ()

    @property
    def untested(self) -> bool:
        """Whether no burn-in has judged it, and no result of it was checked."""
        return self.burnin is None and (self.verified is None or self.verified.last is None)

    @property
    def is_proved(self) -> bool:
        """Whether its last burn-in proves that it is good."""
        last = self.burnin
        return last is not None and last.verdict in ACCEPTED and last.no_proof is None


def cards_of(state: Path, sockets: Sequence[str], least: Work | None = None) -> list[Card]:
    """Join what running daemons know of their GPUs with what is stored of all, by index.

    Args:
        state: The state directory.
        sockets: Of the daemons that share it.
        least: The work that the plan of a verdict must have asked for; None for any plan.

    Raises:
        ConfigError: A file of the daemon cannot be read; those of verified work and faults matter
            only if no daemon reports it. Or a missing report cannot be written.
    """
    with file_errors(f"{state} cannot be read"):
        unjudged = _write_missing_reports(state)
        verdicts = last_verdicts(report_paths(state), least, unjudged)
    looked = look_up(state, sockets)
    present = looked.running
    otherwise = False if present else None
    cards = _stored(looked.stored, present=otherwise)
    for before in looked.faults:  # also of a GPU that no running daemon has
        gpu = before.gpu
        card = cards.get(gpu.uuid) or _card(gpu.uuid, gpu, name=gpu.name)
        here = True if present else card.present
        cards[gpu.uuid] = replace(card, faults=describe(before), present=here)
    for socket, status in present:
        known = cards.get(status.uuid)
        cards[status.uuid] = Card(
            uuid=status.uuid,
            index=None if status.renumbered else status.index,
            serial=status.serial,
            pci_bus_id=status.pci_bus_id,
            present=True,
            name=status.name,
            faults=status.faults or (),
            verified=status.verified or (known.verified if known is not None else None),
            socket=socket,
            seen=known.seen if known is not None else 0.0,
            lost=_why_unknown(status),
        )
    for uuid, last in verdicts.items():
        card = cards.get(uuid) or _card(uuid, last, name=last.model, present=otherwise)
        ended = 0.0 if last.ended is None else last.ended.timestamp()
        cards[uuid] = replace(card, burnin=last, seen=max(card.seen, ended))
    found = (
        replace(
            card, lost=card.lost or looked.forgotten or (None if card.socket else looked.unread)
        )
        for card in cards.values()
    )
    return sorted(found, key=lambda card: (card.index is None, card.index, card.uuid))


def _why_unknown(gpu: GpuStatus) -> str | None:
    """Explain why a daemon cannot read a GPU, or return None; one that has just begun will."""
    is_begun = gpu.admin != "RELEASED" and NOT_READ not in gpu.reason
    return why_unknown(gpu) if is_begun else None


def _card(uuid: str, known: Gpu | LastVerdict, *, name: str, present: bool | None = None) -> Card:
    """Build the card of a GPU of which no daemon has stored work."""
    return Card(
        uuid=uuid,
        index=known.index,
        serial=known.serial,
        pci_bus_id=known.pci_bus_id or "",
        present=present,
        name=name,
    )


def _write_missing_reports(state: Path) -> list[Unknown]:
    """Judge each burn-in of this user that has begun, and whose record was cut off.

    Its report may be a FAIL, and without it an earlier PASS would be the last verdict.

    Returns:
        The runs that cannot be judged: what an earlier run has proved of any GPU, they may have
        disproved.

    Raises:
        ConfigError: A report cannot be written.
        OSError: The folder cannot be read.
    """
    unjudged = []
    for path in (state / RUNS).glob("*/"):
        run = RunFolder(path=path)
        own = not run.report.exists() and path.stat().st_uid == os.getuid()
        if not own or run.is_recorded or not run.has_begun:
            continue
        with run.locked():
            try:
                judged = judge_run(run)
            except ConfigError as error:
                what = f"{run.path} was cut off, and cannot be judged: {error}"
                click.echo(f"sentinel: warning: {what}", err=True)
                at = max(one.stat().st_mtime for one in path.iterdir())
                unjudged.append(Unknown(at=at, why=what))
                continue
            write_reports(run, judged)
            ended = run.events.stat().st_mtime
            os.utime(run.report, (ended, ended))  # the order of the runs is that of their ends
    return unjudged


def _stored(
    works: Mapping[str, verified_store.StoredWork], *, present: bool | None
) -> dict[str, Card]:
    """Build the cards of the GPUs of which daemons have stored work, by UUID."""
    return {
        uuid: Card(
            uuid=uuid,
            index=one.index,
            serial=one.serial,
            present=present,
            name=one.name,
            verified=verified_store.proof_of(one),
            seen=max(one.daemon, one.last or 0.0),
        )
        for uuid, one in works.items()
    }


def read_host_gpus(simulated: Path | None) -> CountersResult:
    """Read the counters of the GPUs that the host has now."""
    from sentinel.diagnostics.counters import read_counters  # slow, and only for this

    return read_counters(simulated)


def cards_of_host(cards: Sequence[Card], found: CountersResult) -> list[Card]:
    """Select the GPUs that the host has now, also those of which nothing is known.

    Raises:
        DriverUnavailableError: They cannot be listed.
    """
    if found.driver_error is not None:
        raise DriverUnavailableError(f"no GPU can be read: {found.driver_error}")
    known = {card.uuid: card for card in cards}
    here = []
    for gpu in found.counters:
        uuid = gpu.uuid or f"lost: {gpu.lost}"
        card = Card(uuid=uuid, index=gpu.index, serial=gpu.serial, present=True, name=gpu.name)
        card = known.get(uuid, card)
        lost = gpu.lost or unread(gpu) or card.lost
        here.append(replace(card, index=gpu.index, serial=gpu.serial, present=True, lost=lost))
    return here


def with_expected(
    chosen: list[Card],
    cards: Sequence[Card],
    expectation: Expectation,
    found: CountersResult | None,
) -> list[Card]:
    """Add to some cards the GPUs of the host, if their number is expected and they can be listed.

    Otherwise a GPU of which nothing is known would not count.
    """
    if expectation.gpus is None or found is None or found.driver_error is not None:
        return chosen
    uuids = {card.uuid for card in chosen}
    return [*chosen, *(card for card in cards_of_host(cards, found) if card.uuid not in uuids)]


def judge_expectation(
    expectation: Expectation,
    found: CountersResult | None,
    simulated: Path | None,
    selected: Sequence[str] = (),
) -> list[tuple[str, Status]]:
    """Judge the host by an expectation: what is not as expected, and what is not known."""
    from sentinel.diagnostics.host_counters import read_host

    if found is None or not expectation.text:
        return []
    evidence = ExpectedEvidence(
        expectation=expectation,
        listed=found.counters,
        hosts=(read_host(simulated),),
        pci_devices=found.pci_devices,
        driver_error=found.driver_error,
        selected=bool(selected),
    )
    report = judge_node(found.counters, Thresholds(), more=(evidence,))
    return [
        (f"{place}: {result.id}: {result.evidence}", result.status)
        for place, result in results_of(report)
        if result.id in EXPECTED and result.status in {Status.FAIL, Status.NOT_TESTED}
    ]


def why_unmet(card: Card, requirement: Requirement | None, *, strict: bool) -> str | None:
    """Explain why a GPU was not tested or does not meet a requirement; None if all is well.

    If ``strict``, a last burn-in that has proved nothing is not enough.
    """
    if requirement is not None:
        return requirement.unmet_by(card)
    is_tested = card.is_proved if strict and card.burnin is not None else not card.untested
    return None if is_tested and card.lost is None else ""


def is_suspect(card: Card) -> bool:
    """Check whether a card has shown a fault, or its daemon knows one."""
    burnin = card.burnin
    verdict, plan = (None, None) if burnin is None else (burnin.verdict, burnin.plan)
    return bool(card.faults) or proven_fault(verdict, plan, card.verified) is not None
