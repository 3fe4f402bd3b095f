"""``sentinel health``: when each GPU was last proved good, by what, and what was found."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from sentinel.burnin.checks.node_checks import NPD_UNKNOWN, npd_line, proven_fault
from sentinel.burnin.verdict import Verdict
from sentinel.cli.display.output import Table, color_option, printable
from sentinel.cli.options import command_options as options
from sentinel.client import connect
from sentinel.errors import (
    AccessDeniedError,
    ConfigError,
    ConflictError,
    ExitCode,
    NotRunningError,
    SentinelError,
)
from sentinel.host import verified_store
from sentinel.host.daemon_lookup import daemons_sharing, find_shared, locate, simulated_folder
from sentinel.host.verified_store import (
    KnownGpu,
    LastVerdict,
    last_verdicts,
    report_paths,
    select_known,
)
from sentinel.protocol.api_types import GpuProof, GpuStatus, Outcome
from sentinel.units import format_count, format_duration

#: As long as a daemon allows.
_MAX_REASON_LENGTH = 200
_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class _Card(KnownGpu):
    """What is known of one GPU."""

    name: str | None = None
    verified: GpuProof | None = None
    burnin: LastVerdict | None = None
    #: The socket of the running daemon that has it; None if none has.
    socket: str | None = None
    #: When a daemon or a burn-in last had it, in seconds since the epoch; 0 if that is not known.
    seen: float = 0.0


@click.command("health")
@options.address_options
@color_option
@click.option("--npd", is_flag=True, help="Be a custom plugin of node-problem-detector.")
@click.option(
    "--acknowledge",
    "acknowledged",
    metavar="GPU",
    multiple=True,
    help="Take the wrong results of a repaired GPU as known: by index, UUID or serial number.",
)
@click.option("--reason", metavar="TEXT", help="Why they no longer count, for --acknowledge.")
@options.json_option
def command(
    socket: str | None,
    simulated: bool,
    npd: bool,
    acknowledged: tuple[str, ...],
    reason: str | None,
    as_json: bool,
) -> int:
    """Show for each GPU when it was last proved good, by what, and what was found.

    VERIFIED is work of which results were checked, under every daemon of this user; BURN-IN the
    last verdict in their state directory. Works without a daemon, too. Exit code 1 if a GPU has
    wrong results or findings, or has failed its last burn-in.

    With `--npd`, one line for the condition GpuBurnInFailed: exit code 0 if every GPU has passed
    its last burn-in, 1 if one is faulty, and 2 if that is not known.

    With `--acknowledge GPU --reason TEXT`, the wrong results and findings of that GPU no longer
    count, until there are new ones. They stay counted and are shown with the user, the time and
    the reason. A FAIL stays until a burn-in passes. Exit code 1 if there is nothing to acknowledge.
    """
    if acknowledged or reason is not None:
        if npd or not acknowledged or reason is None:
            raise click.UsageError("--acknowledge and --reason need each other, and exclude --npd")
        state, sockets = _places(socket, simulated=simulated)
        path, cards = state / verified_store.NAME, _cards(state, sockets)
        done = acknowledge(acknowledged, reason, cards, sockets, path)
        return options.outcome(done).show(as_json=as_json)
    if npd:
        if as_json:
            raise click.UsageError("--json and --npd exclude each other")
        return _print_npd(socket, simulated=simulated)
    cards = _cards(*_places(socket, simulated=simulated))
    code = ExitCode.FAIL if any(map(_is_suspect, cards)) else ExitCode.OK
    plain = {"gpus": [_plain(card) for card in cards]}
    return options.Printed(json=plain, lines=_lines(cards), code=code).show(as_json=as_json)


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


def _cards(state: Path, sockets: Sequence[str]) -> list[_Card]:
    """Join what running daemons know of their GPUs with what is stored of all, by index.

    Raises:
        ConfigError: A file of the daemon cannot be read; that of verified work matters only if no
            daemon reports it.
    """
    try:
        verdicts = last_verdicts(report_paths(state))
    except OSError as error:
        raise ConfigError(f"{state} cannot be read: {error.strerror}") from None
    present = [(socket, gpu) for socket in sockets for gpu in _gpus_of(socket)]
    try:
        cards = _stored(state / verified_store.NAME)
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
            uuid=uuid, index=last.index, serial=last.serial, present=False, name=last.model
        )
        ended = 0.0 if last.ended is None else last.ended.timestamp()
        cards[uuid] = replace(card, burnin=last, seen=max(card.seen, ended))
    return sorted(cards.values(), key=lambda card: (card.index is None, card.index, card.uuid))


def _gpus_of(socket: str) -> tuple[GpuStatus, ...]:
    """List the GPUs of a running daemon; nothing without one."""
    try:
        return connect(socket).status().gpus
    except SentinelError:
        return ()


def _stored(path: Path) -> dict[str, _Card]:
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
            present=False,
            name=one.name,
            verified=verified_store.proof_of(one),
            seen=max(one.daemon, one.last or 0.0),
        )
        for uuid, one in stored.items()
    }


def _is_suspect(card: _Card) -> bool:
    """Check whether a card has shown a fault."""
    burnin = card.burnin
    verdict, plan = (None, None) if burnin is None else (burnin.verdict, burnin.plan)
    return proven_fault(verdict, plan, card.verified) is not None


# --- acknowledged results --------------------------------------------------------------------


def acknowledge(
    selectors: Sequence[str],
    reason: str,
    cards: Sequence[_Card],
    sockets: Sequence[str],
    path: Path,
) -> Outcome:
    """Acknowledge the wrong results of GPUs, and return once that is on disk.

    Args:
        selectors: The GPUs, as for ``select_known``.
        reason: Why the results no longer count.
        cards: The known GPUs.
        sockets: The sockets of all daemons that share the file.
        path: The file of verified work.

    Raises:
        ConfigError: The reason is empty, too long or not one line, or the file cannot be used.
        ConflictError: No wrong results count against these GPUs.
        NoSuchGpuError: A selector matches no GPU, or several.
        SentinelError: A daemon refuses it.
    """
    if not 0 < len(reason) <= _MAX_REASON_LENGTH or not reason.isprintable():
        raise ConfigError(f"--reason: give 1 to {_MAX_REASON_LENGTH} characters of one line")
    owners = {card.uuid: card.socket for card in cards}
    by_owner: dict[str | None, list[str]] = {}
    for uuid in select_known(selectors, cards):
        by_owner.setdefault(owners[uuid], []).append(uuid)
    outcomes = [
        _by_daemon(uuids, reason, sockets if owner is None else [owner])
        or _in_file(uuids, reason, path)
        for owner, uuids in by_owner.items()
    ]
    return Outcome(
        text="\n".join(done.text for done in outcomes),
        gpus=tuple(gpu for done in outcomes for gpu in done.gpus),
    )


def _by_daemon(uuids: Sequence[str], reason: str, sockets: Sequence[str]) -> Outcome | None:
    """Have a daemon do it, which knows also what is not in the file yet; None if none runs."""
    for socket in sockets:
        try:
            return connect(socket).acknowledge(uuids, reason)
        except NotRunningError:
            continue
    return None


def _in_file(uuids: Sequence[str], reason: str, path: Path) -> Outcome:
    """Do it in the file.

    Raises:
        AccessDeniedError: The file is another user's.
        ConfigError: The file cannot be read or written.
        ConflictError: No wrong results count against these GPUs.
    """
    try:
        if path.exists() and path.stat().st_uid != os.geteuid():
            remedy = "Run this as that user: the file would no longer be readable to it."
            raise AccessDeniedError(f"{path} belongs to another user", remedy)
        done = verified_store.acknowledge(path, uuids, _user(), reason) if path.exists() else {}
    except OSError as error:
        raise ConfigError(f"nothing was acknowledged: {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no file of verified work: {error}") from None
    if not done:
        raise ConflictError(f"no wrong results count against {', '.join(uuids)}")
    counts = "; ".join(
        f"{format_count(one.errors + one.findings, 'wrong result')} of {uuid}"
        for uuid, one in done.items()
    )
    return Outcome(text=f"acknowledged {counts}; no daemon runs", gpus=tuple(done))


def _user() -> str:
    """Name the user of this process."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


# --- output ----------------------------------------------------------------------------------

#: The verdicts that accept a GPU.
_ACCEPTED = frozenset({Verdict.PASS, Verdict.WARN})


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
        if card.burnin is None or card.burnin.verdict not in _ACCEPTED or _is_suspect(card)
    ]
    shown = faulty or unproved
    if not here:
        print("no burn-in is known")
        return NPD_UNKNOWN
    if not shown:
        print(npd_line(f"{format_count(len(here), 'GPU')} passed the last burn-in"))
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
    }


def _lines(cards: Sequence[_Card]) -> Iterator[str]:
    """Yield the table of the cards, and what was acknowledged."""
    if not cards:
        yield "nothing is known yet: run `sentinel burnin`, or a daemon"
        return
    rows = [_row(card) for card in cards]
    failed = {row[-1]: "bold red" for row in rows if row[-1].startswith(Verdict.FAIL)}
    header = (
        *("GPU", "NAME", "VERIFIED", "RESULTS", "WRONG", "FINDINGS", "LAST", "BY", "BURN-IN"),
    )
    yield from Table(header, flexible=1, right=(0, 2, 3, 4, 5), styles=failed).lines(rows)
    for card in cards:
        for results in () if card.verified is None else card.verified.acknowledged:
            name = card.uuid if card.index is None else f"GPU {card.index}"
            count = format_count(results.errors + results.findings, "wrong result")
            when = f"{results.at:%Y-%m-%d %H:%M}"
            yield printable(
                f"{name}: {count} acknowledged {when} by {results.by}: {results.reason}"
            )


def _hours(seconds: float) -> str:
    """Format a duration in hours, or a short one exactly."""
    hours = seconds / _HOUR_S
    return f"{hours:,.1f} h" if hours >= 1 else format_duration(round(seconds))


def _row(card: _Card) -> tuple[str, ...]:
    proof, burnin = card.verified, card.burnin
    verdict = "none"
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
