"""``sentinel health``: when each GPU was last proved good, by what, and what was found."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from sentinel.burnin.checks.node_checks import NPD_UNKNOWN, npd_line, proven_fault
from sentinel.burnin.checks.required import unread
from sentinel.burnin.formats import write_reports
from sentinel.burnin.levels import LEVELS, find_plan
from sentinel.burnin.report import judge_run
from sentinel.burnin.resume import thresholds_of
from sentinel.burnin.run_folder import RunFolder
from sentinel.burnin.verdict import Verdict
from sentinel.cli.daemon.acknowledgement import OwnedGpu, acknowledge
from sentinel.cli.display.output import Table, Word, color_option, printable
from sentinel.cli.options import command_options as options
from sentinel.cli.options.setting_options import load_thresholds
from sentinel.client import connect
from sentinel.errors import (
    ConfigError,
    DriverUnavailableError,
    ExitCode,
    SentinelError,
)
from sentinel.host import verified_store
from sentinel.host.daemon_lookup import daemons_sharing, find_shared, locate, simulated_folder
from sentinel.host.last_verdicts import (
    RUNS,
    LastVerdict,
    Work,
    last_verdicts,
    report_paths,
    work_of,
)
from sentinel.host.paths import SOCKET_VARIABLE
from sentinel.host.verified_store import select_known
from sentinel.protocol.api_types import GpuProof, GpuStatus, RepairOutcome
from sentinel.units import format_count, format_duration

#: The verdicts that accept a GPU, and those that meet a requirement.
_ACCEPTED = frozenset({Verdict.PASS, Verdict.WARN})
_REQUIRED = {"pass": frozenset({Verdict.PASS}), "warn": _ACCEPTED}

_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class _Requirement:
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

    def unmet_by(self, card: _Card) -> str | None:
        """Explain why a GPU does not meet it, or return None."""
        burnin = card.burnin
        if card.lost is not None or burnin is None or _is_suspect(card):
            return ""
        if burnin.verdict not in _REQUIRED[self.name]:
            return ""
        if burnin.no_proof is not None:
            return burnin.no_proof
        if self.max_age_s is None:
            return None
        if burnin.ended is None:
            return "when it ended is not known"
        age = time.time() - burnin.ended.timestamp()
        is_old = age > self.max_age_s
        return f"it ended {format_duration(round(age))} ago" if is_old else None

    def __str__(self) -> str:
        age = None if self.max_age_s is None else format_duration(self.max_age_s)
        more = {"level": self.level, "max-age": age}
        flags = (f"--{flag} {value}" for flag, value in more.items() if value is not None)
        return " ".join((f"--require {self.name}", *flags))


@dataclass(frozen=True, kw_only=True)
class _Card(OwnedGpu):
    """What is known of one GPU."""

    name: str | None = None
    verified: GpuProof | None = None
    burnin: LastVerdict | None = None
    #: When a daemon or a burn-in last had it, in seconds since the epoch; 0 if that is not known.
    seen: float = 0.0
    #: Why it is lost now, or nearly nothing of it can be read, or None; only known of the GPUs of
    #: the host.
    lost: str | None = None

    @property
    def untested(self) -> bool:
        """Whether no burn-in has judged it, and no result of it was checked."""
        return self.burnin is None and (self.verified is None or self.verified.last is None)


@click.command("health")
@options.address_options
@color_option
@click.option("--npd", is_flag=True, help="Be a custom plugin of node-problem-detector.")
@click.option(
    "--acknowledge",
    "acknowledged",
    metavar="GPU",
    multiple=True,
    callback=options.selectors,
    help="Take the wrong results of a repaired GPU as known: by index, UUID or serial number.",
)
@click.option("--reason", metavar="TEXT", help="Why they no longer count, for --acknowledge.")
@click.option(
    "--outcome",
    type=Word(tuple(map(str, RepairOutcome))),
    help="What became of the GPU, for --acknowledge.",
)
@click.option(
    "--require",
    "required",
    type=Word(tuple(_REQUIRED)),
    help="Exit with 0 only if the last burn-in of every GPU of the host has this verdict; warn"
    " accepts PASS, too.",
)
@click.option(
    "--level",
    type=Word(LEVELS),
    help="With --require: that burn-in was of this level, or of a plan with at least its work.",
)
@options.duration("--max-age", "max_age_s", "With --require: it ended this long ago at most.")
@click.option(
    "--gpus",
    "selected",
    metavar="LIST",
    multiple=True,
    callback=options.selectors,
    help="Only these GPUs: by index, UUID or serial number.  [default: all]",
)
@options.json_option
def command(
    socket: str | None,
    simulated: bool,
    npd: bool,
    acknowledged: tuple[str, ...],
    reason: str | None,
    outcome: str | None,
    required: str | None,
    level: str | None,
    max_age_s: float | None,
    selected: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show for each GPU when it was last proved good, by what, and what was found.

    VERIFIED is work of which results were checked, under every daemon of this user and in burn-ins
    without one; BURN-IN the last verdict that is known. Works without a daemon, too. Exit code 1 if
    a GPU has wrong results or findings, or has failed its last burn-in, 3 if a GPU is untested or
    none is known, else 0.

    With `--require pass`, exit code 0 only if every GPU of the host, or of `--gpus`, has passed its
    last burn-in: 1 as above, 3 if one has another verdict or none, is lost or cannot be read.
    `--level` leaves out burn-ins with less work than that level, `--max-age` older ones.

    A FAIL stands until later burn-ins have judged each check that failed as PASS or WARN, with at
    least the work of the plan that failed.

    With `--npd`, one line for the condition GpuBurnInFailed: exit code 0 if every GPU has passed
    its last burn-in, 1 if one is faulty, and 2 if that is not known.

    With `--acknowledge GPU --reason TEXT`, the wrong results and findings of that GPU no longer
    count, until there are new ones. They stay counted and are shown with the user, the time and
    the reason. A FAIL stays until a burn-in passes. Exit code 1 if there is nothing to acknowledge.
    `--outcome` records what became of the GPU: its fault was confirmed elsewhere, was not found, or
    it was replaced. Reports of burn-ins and fleets count confirmed faults, also those of GPUs
    without wrong results: Sentinel has not found them.
    """
    if not simulated and not (socket or os.environ.get(SOCKET_VARIABLE)):
        options.warn_of_simulated_gpus()
    if (npd or acknowledged) and (required or selected):
        raise click.UsageError("--require and --gpus exclude --npd and --acknowledge")
    if acknowledged or reason is not None or outcome is not None:
        if npd or not acknowledged or reason is None:
            raise click.UsageError(
                "--acknowledge and --reason need each other, and exclude --npd;"
                " --outcome needs both of them"
            )
        state, sockets = _places(socket, simulated=simulated)
        path, cards = state / verified_store.NAME, _cards(state, sockets)
        became = None if outcome is None else RepairOutcome(outcome)
        done = acknowledge(acknowledged, reason, cards, sockets, path, became)
        return options.outcome(done).show(as_json=as_json)
    if npd:
        if as_json:
            raise click.UsageError("--json and --npd exclude each other")
        return _print_npd(socket, simulated=simulated)
    requirement = _requirement(required, level, max_age_s)
    least = None if requirement is None else requirement.work
    cards = _cards(*_places(socket, simulated=simulated), least)
    if requirement is not None:
        cards = _of_the_host(cards, simulated_folder(chosen=simulated))
    if selected:
        uuids = select_known(selected, cards)
        cards = [card for card in cards if card.uuid in uuids]
    unmet = {card.uuid: why for card in cards if (why := _why_unmet(card, requirement)) is not None}
    code = ExitCode.INCOMPLETE if unmet or not cards else ExitCode.OK
    code = ExitCode.FAIL if any(map(_is_suspect, cards)) else code
    plain = {"gpus": [_plain(card) for card in cards], "unmet": list(unmet)}
    shown = [] if requirement is None else [card for card in cards if card.uuid in unmet]
    lines = itertools.chain(
        _lines(cards),
        (
            f"{requirement}: {': '.join(filter(None, (_standing(card), unmet[card.uuid])))}"
            for card in shown
        ),
    )
    return options.Printed(json=plain, lines=lines, code=code).show(as_json=as_json)


def _requirement(
    required: str | None, level: str | None, max_age_s: float | None
) -> _Requirement | None:
    """Build what is required, or None without ``--require``."""
    if required is not None:
        return _Requirement(name=required, level=level, max_age_s=max_age_s)
    if level is not None or max_age_s is not None:
        raise click.UsageError("--level and --max-age need --require")
    return None


# --- what is known ---------------------------------------------------------------------------


def _places(socket: str | None, *, simulated: bool) -> tuple[Path, list[str]]:
    """Find the state directory, and the sockets of the daemons that share it.

    Raises:
        SentinelError: They cannot be found.
    """
    folder = simulated_folder(chosen=simulated)
    state = find_shared(folder, socket)
    if socket is not None:
        return state, [socket]
    sockets = daemons_sharing(state, folder)
    with contextlib.suppress(SentinelError):  # several run, and all of them are listed
        sockets.append(locate(None, folder).socket)
    return state, list(dict.fromkeys(sockets))


def _are_simulated(socket: str | None, *, simulated: bool) -> bool:
    """Check whether the daemon that is meant, or else the folder, has simulated GPUs."""
    folder = simulated_folder(chosen=simulated)
    with contextlib.suppress(SentinelError):  # several run
        found = locate(socket, folder)
        if found.record is not None:
            return found.simulated is not None
    return folder is not None


def _cards(state: Path, sockets: Sequence[str], least: Work | None = None) -> list[_Card]:
    """Join what running daemons know of their GPUs with what is stored of all, by index.

    Args:
        state: The state directory.
        sockets: Of the daemons that share it.
        least: The work that the plan of a verdict must have asked for; None for any plan.

    Raises:
        ConfigError: A file of the daemon cannot be read; that of verified work matters only if no
            daemon reports it. Or a missing report cannot be written.
    """
    try:
        _write_missing_reports(state)
        verdicts = last_verdicts(report_paths(state), least)
    except OSError as error:
        raise ConfigError(f"{state} cannot be read: {error.strerror}") from None
    present = [(socket, gpu) for socket in sockets for gpu in _gpus_of(socket)]
    otherwise = False if present else None
    try:
        cards = _stored(state / verified_store.NAME, present=otherwise)
    except ConfigError:
        if not present:
            raise
        cards = {}
    for socket, gpu in present:
        known = cards.get(gpu.uuid)
        cards[gpu.uuid] = _Card(
            uuid=gpu.uuid,
            index=gpu.index,
            serial=gpu.serial,
            present=True,
            name=gpu.name,
            verified=gpu.verified or (known.verified if known is not None else None),
            socket=socket,
            seen=known.seen if known is not None else 0.0,
        )
    for uuid, last in verdicts.items():
        card = cards.get(uuid) or _Card(
            uuid=uuid, index=last.index, serial=last.serial, present=otherwise, name=last.model
        )
        ended = 0.0 if last.ended is None else last.ended.timestamp()
        cards[uuid] = replace(card, burnin=last, seen=max(card.seen, ended))
    return sorted(cards.values(), key=lambda card: (card.index is None, card.index, card.uuid))


def _write_missing_reports(state: Path) -> None:
    """Judge each burn-in of this user that has begun, and whose record was cut off.

    Its report may be a FAIL, and without it an earlier PASS would be the last verdict.

    Raises:
        ConfigError: A report cannot be written.
        OSError: The folder cannot be read.
    """
    for header in (state / RUNS).glob("*/run.json"):
        run = RunFolder(path=header.parent)
        own = not run.report.exists() and header.stat().st_uid == os.getuid()
        if not own or run.is_recorded or not run.event_count():
            continue
        with run.locked():
            try:
                judged = judge_run(run, load_thresholds(thresholds_of(run)).node)
            except (ConfigError, click.UsageError) as error:
                what = f"{run.path} was cut off, and cannot be judged: {error}"
                click.echo(f"sentinel: warning: {what}", err=True)
                continue
            write_reports(run, judged)
            ended = run.events.stat().st_mtime
            os.utime(run.report, (ended, ended))  # the order of the runs is that of their ends


def _gpus_of(socket: str) -> tuple[GpuStatus, ...]:
    """List the GPUs of a running daemon; nothing without one."""
    try:
        return connect(socket).status().gpus
    except SentinelError:
        return ()


def _stored(path: Path, *, present: bool | None) -> dict[str, _Card]:
    """Read what the last daemon has stored, by UUID.

    Raises:
        ConfigError: The file is invalid.
    """
    try:
        stored = verified_store.read(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no file of verified work: {error}") from None
    return {
        uuid: _Card(
            uuid=uuid,
            index=one.index,
            serial=one.serial,
            present=present,
            name=one.name,
            verified=verified_store.proof_of(one),
            seen=max(one.daemon, one.last or 0.0),
        )
        for uuid, one in stored.items()
    }


def _of_the_host(cards: Sequence[_Card], simulated: Path | None) -> list[_Card]:
    """Select the GPUs that the host has now, also those of which nothing is known.

    Raises:
        DriverUnavailableError: They cannot be listed.
    """
    from sentinel.diagnostics.counters import read_counters  # slow, and only for this

    found = read_counters(simulated)
    if found.driver_error is not None:
        raise DriverUnavailableError(f"no GPU can be read: {found.driver_error}")
    known = {card.uuid: card for card in cards}
    here = []
    for gpu in found.counters:
        uuid = gpu.uuid or f"lost: {gpu.lost}"
        card = _Card(uuid=uuid, index=gpu.index, serial=gpu.serial, present=True, name=gpu.name)
        card = known.get(uuid, card)
        lost = gpu.lost or unread(gpu)
        here.append(replace(card, index=gpu.index, serial=gpu.serial, present=True, lost=lost))
    return here


def _why_unmet(card: _Card, requirement: _Requirement | None) -> str | None:
    """Explain why a GPU was not tested or does not meet a requirement; None if all is well."""
    if requirement is None:
        return "" if card.untested else None
    return requirement.unmet_by(card)


def _is_suspect(card: _Card) -> bool:
    """Check whether a card has shown a fault."""
    burnin = card.burnin
    verdict, plan = (None, None) if burnin is None else (burnin.verdict, burnin.plan)
    return proven_fault(verdict, plan, card.verified) is not None


# --- output ----------------------------------------------------------------------------------


def _print_npd(socket: str | None, *, simulated: bool) -> int:
    """Print the line of a custom plugin of node-problem-detector; return its exit code."""
    try:
        cards = _cards(*_places(socket, simulated=simulated))
    except SentinelError as error:
        print(npd_line(str(error)))
        return NPD_UNKNOWN
    # The reports of a replaced card remain. A running daemon knows which cards there are. Without
    # one, a card whose place another one has had since may be gone: its fault is not known.
    here = [card for card in cards if card.present] or cards
    latest = {card.index: card for card in sorted(here, key=lambda card: card.seen)}
    faulty = [card for card in here if _is_suspect(card) and latest[card.index] is card]
    unproved = [
        card
        for card in here
        if card.burnin is None
        or card.burnin.verdict not in _ACCEPTED
        or card.burnin.no_proof is not None
        or _is_suspect(card)
    ]
    shown = faulty or unproved
    if not here:
        print("no burn-in is known")
        return NPD_UNKNOWN
    if not shown:
        noun = "simulated GPU" if _are_simulated(socket, simulated=simulated) else "GPU"
        print(npd_line(f"{format_count(len(here), noun)} passed the last burn-in"))
        return 0
    more = f" and {len(shown) - 1} more" if len(shown) > 1 else ""
    print(npd_line(f"{_standing(shown[0])}{more}"))
    return 1 if faulty else NPD_UNKNOWN


def _standing(card: _Card) -> str:
    """Name a card and why it is not accepted; its identity is first, since the line may be cut."""
    name = f"GPU {'?' if card.index is None else card.index} {card.uuid[:12]}"
    proof, burnin = card.verified, card.burnin
    if burnin is not None and burnin.verdict == Verdict.FAIL:
        return f"{name}: FAIL {burnin.plan}"
    if proof is not None and proof.wrong:
        return f"{name}: {proof.wrong} wrong results"
    if card.lost is not None:
        return f"{name}: {card.lost}"
    return f"{name}: {'not burned in' if burnin is None else f'{burnin.verdict} {burnin.plan}'}"


def _plain(card: _Card) -> dict[str, Any]:
    """Return a card as JSON values."""
    return {
        "uuid": card.uuid,
        "index": card.index,
        "name": card.name,
        "serial": card.serial,
        "verified": None if card.verified is None else asdict(card.verified),
        "burnin": None if card.burnin is None else asdict(card.burnin),
        "untested": card.untested,
    }


def _lines(cards: Sequence[_Card]) -> Iterator[str]:
    """Yield the table of the cards, and what was acknowledged."""
    if not cards:
        yield "untested: nothing is known of any GPU; to test all of them: sentinel burnin"
        return
    rows = [_row(card) for card in cards]
    failed = {row[-1]: "bold red" for row in rows if row[-1].startswith(Verdict.FAIL)}
    header = (
        *("GPU", "NAME", "VERIFIED", "RESULTS", "WRONG", "FINDINGS", "LAST", "BY", "BURN-IN"),
    )
    yield from Table(header, flexible=1, right=(0, 2, 3, 4, 5), styles=failed).lines(rows)
    for card in cards:
        if card.burnin is not None and (why := card.burnin.not_taken_back) is not None:
            yield f"GPU {card.index}: the FAIL of {card.burnin.plan} stands: {why}"
        for results in () if card.verified is None else card.verified.acknowledged:
            name = card.uuid if card.index is None else f"GPU {card.index}"
            count = format_count(results.errors + results.findings, "wrong result")
            when = f"{results.at:%Y-%m-%d %H:%M}"
            outcome = f", {results.outcome}" if results.outcome else ""
            yield printable(
                f"{name}: {count} acknowledged {when} by {results.by}{outcome}: {results.reason}"
            )


def _hours(seconds: float) -> str:
    """Format a duration in hours, or a short one exactly."""
    hours = seconds / _HOUR_S
    return f"{hours:,.1f} h" if hours >= 1 else format_duration(round(seconds))


def _row(card: _Card) -> tuple[str, ...]:
    proof, burnin = card.verified, card.burnin
    verdict = "untested" if card.untested else "none"
    if burnin is not None:
        verdict = f"{burnin.verdict} {burnin.plan}"
        if burnin.ended is not None:
            verdict += f" {burnin.ended:%Y-%m-%d}"
    first = ("" if card.index is None else str(card.index), card.name or card.uuid)
    if proof is None or proof.last is None:
        return (*first, "none", "", "", "", "", "", verdict)
    return (
        *first,
        _hours(proof.seconds),
        f"{proof.checks:,}",
        f"{proof.errors:,}",
        f"{proof.findings:,}",
        f"{proof.last:%Y-%m-%d %H:%M}",
        proof.workload or "",
        verdict,
    )
