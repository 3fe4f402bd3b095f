"""``sentinel health``: when each GPU was last proved good, by what, and what was found."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from sentinel.burnin.checks.node_checks import NPD_UNKNOWN, npd_line, proven_fault
from sentinel.burnin.verdict import Verdict
from sentinel.cli.display.output import color_option, print_json, printable
from sentinel.cli.options.command_options import (
    address_options,
    json_option,
    show,
    simulated_folder,
)
from sentinel.client import connect
from sentinel.errors import (
    AccessDeniedError,
    ConfigError,
    ConflictError,
    ExitCode,
    NotRunningError,
    SentinelError,
)
from sentinel.host.daemons.daemon_lookup import daemons_sharing, find_shared, locate
from sentinel.host.stores import verified_store
from sentinel.host.stores.run_reports import LastVerdict, last_verdicts, report_paths
from sentinel.host.stores.verified_store import KnownGpu, select_known
from sentinel.protocol.api_types import GpuProof, Outcome
from sentinel.units import format_count, format_duration

#: As long as a daemon allows.
_MAX_REASON_LENGTH = 200


def acknowledge(
    selectors: Sequence[str],
    reason: str,
    gpus: Mapping[KnownGpu, str | None],
    sockets: Sequence[str],
    path: Path,
) -> Outcome:
    """Acknowledge the wrong results of GPUs, and return once that is on disk.

    Args:
        selectors: The GPUs, as for ``select_known``.
        reason: Why the results no longer count.
        gpus: The known GPUs, each with the socket of the daemon that has it, or None.
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
    chosen = select_known(selectors, list(gpus))
    owners = {gpu.uuid: socket for gpu, socket in gpus.items()}
    texts: list[str] = []
    done: list[str] = []
    for owner in dict.fromkeys(owners[uuid] for uuid in chosen):
        uuids = [uuid for uuid in chosen if owners[uuid] == owner]
        outcome = _by_daemon(uuids, reason, sockets if owner is None else [owner])
        if outcome is None:
            outcome = _in_file(uuids, reason, path)
        texts.append(outcome.text)
        done += outcome.gpus
    return Outcome(text="\n".join(texts), gpus=tuple(done))


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


_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class _Card:
    """What is known of one GPU."""

    uuid: str
    index: int | None = None
    name: str | None = None
    serial: str | None = None
    verified: GpuProof | None = None
    burnin: LastVerdict | None = None
    #: The socket of the running daemon that has it; None if none has.
    socket: str | None = None
    #: When a daemon or a burn-in last had it, in seconds since the epoch; 0 if that is not known.
    seen: float = 0.0

    @property
    def present(self) -> bool:
        """Whether a running daemon has it."""
        return self.socket is not None


@click.command("health")
@address_options
@color_option
@json_option
@click.option("--npd", is_flag=True, help="Be a custom plugin of node-problem-detector.")
@click.option(
    "--acknowledge",
    "acknowledged",
    metavar="GPU",
    multiple=True,
    help="Take the wrong results of a repaired GPU as known: by index, UUID or serial number.",
)
@click.option("--reason", metavar="TEXT", help="Why they no longer count, for --acknowledge.")
def command(
    socket: str | None,
    simulated: bool,  # noqa: FBT001 - click passes options by name
    as_json: bool,  # noqa: FBT001
    npd: bool,  # noqa: FBT001
    acknowledged: tuple[str, ...],
    reason: str | None,
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
        outcome = _acknowledge(acknowledged, reason, socket, simulated=simulated)
        return show(outcome, as_json=as_json)
    if npd:
        if as_json:
            raise click.UsageError("--json and --npd exclude each other")
        return _print_npd(socket, simulated=simulated)
    cards = _cards(socket, simulated=simulated)
    if as_json:
        print_json({"gpus": [_plain(card) for card in cards]})
    elif cards:
        _print(cards)
    else:
        print("nothing is known yet: run `sentinel burnin`, or a daemon")
    return int(ExitCode.FAIL if any(map(_is_suspect, cards)) else ExitCode.OK)


def _acknowledge(
    selectors: Sequence[str], reason: str, socket: str | None, *, simulated: bool
) -> Outcome:
    """Acknowledge the wrong results of GPUs.

    Raises:
        SentinelError: It is refused, or the files of the daemon cannot be found, read or written.
    """
    state, sockets = _places(socket, simulated=simulated)
    gpus = {
        KnownGpu(
            uuid=card.uuid, index=card.index, serial=card.serial, present=card.present
        ): card.socket
        for card in _cards(socket, simulated=simulated)
    }
    return acknowledge(selectors, reason, gpus, sockets, state / verified_store.NAME)


def _places(socket: str | None, *, simulated: bool) -> tuple[Path, list[str]]:
    """Find the state directory, and the sockets of the daemons that share it.

    Raises:
        SentinelError: They cannot be found.
    """
    folder = simulated_folder(chosen=simulated)
    state = find_shared(folder, socket)
    return state, [socket] if socket is not None else _sockets(state, folder)


def _cards(socket: str | None, *, simulated: bool) -> list[_Card]:
    """Collect what is known of each GPU, by index.

    Raises:
        SentinelError: The files of the daemon cannot be found or read.
    """
    state, sockets = _places(socket, simulated=simulated)
    try:
        verdicts = last_verdicts(report_paths(state))
    except OSError as error:
        raise ConfigError(f"{state} cannot be read: {error.strerror}") from None
    cards = [
        _with_verdict(card, verdicts.pop(card.uuid, None))
        for card in _proofs(sockets, state / verified_store.NAME)
    ]
    cards += [
        _with_verdict(
            _Card(uuid=uuid, name=verdict.model, index=verdict.index, serial=verdict.serial),
            verdict,
        )
        for uuid, verdict in verdicts.items()
    ]
    return sorted(cards, key=lambda card: (card.index is None, card.index, card.uuid))


def _with_verdict(card: _Card, last: LastVerdict | None) -> _Card:
    """Add the last verdict of a card, if it has one."""
    ended = 0.0 if last is None or last.ended is None else last.ended.timestamp()
    return replace(card, burnin=last, seen=max(card.seen, ended))


def _sockets(state: Path, folder: Path | None) -> list[str]:
    """List the sockets of the daemons that share a state directory, and that of the default."""
    sockets = daemons_sharing(state, folder)
    with contextlib.suppress(SentinelError):  # several run, and all of them are listed
        sockets.append(locate(None, folder).socket)
    return list(dict.fromkeys(sockets))


def _proofs(sockets: Sequence[str], path: Path) -> list[_Card]:
    """Join what running daemons know of their GPUs with what is stored of others.

    Raises:
        ConfigError: There is no daemon, and the file is invalid.
    """
    current: dict[str, _Card] = {}
    for socket in sockets:
        current |= _from_daemon(socket)
    try:
        stored = _from_file(path)
    except ConfigError:
        if not current:
            raise
        stored = {}  # the daemon reports it
    known = {
        uuid: one
        if one.verified is not None or uuid not in stored
        else replace(stored[uuid], socket=one.socket)
        for uuid, one in current.items()
    }
    return list({**stored, **known}.values())


def _from_daemon(socket: str) -> dict[str, _Card]:
    """Read what a running daemon knows; nothing without one."""
    try:
        gpus = connect(socket).status().gpus
    except SentinelError:
        return {}
    return {
        gpu.uuid: _Card(
            uuid=gpu.uuid,
            index=gpu.index,
            name=gpu.name,
            serial=gpu.serial,
            verified=gpu.verified,
            socket=socket,
        )
        for gpu in gpus
    }


def _from_file(path: Path) -> dict[str, _Card]:
    """Read what the last daemon has stored.

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
            name=one.name,
            serial=one.serial,
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


#: The verdicts that accept a GPU.
_ACCEPTED = frozenset({Verdict.PASS, Verdict.WARN})


def _print_npd(socket: str | None, *, simulated: bool) -> int:
    """Print the line of a custom plugin of node-problem-detector; return its exit code."""
    try:
        cards = _cards(socket, simulated=simulated)
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


def _print(cards: Sequence[_Card]) -> None:
    from sentinel.cli.display.output import print_table

    header = (
        *("GPU", "NAME", "VERIFIED", "RESULTS", "WRONG", "FINDINGS", "LAST", "BY", "BURN-IN"),
    )
    rows = [_row(card) for card in cards]
    failed = {row[-1]: "bold red" for row in rows if row[-1].startswith(Verdict.FAIL)}
    print_table(header, rows, flexible=1, right=(0, 2, 3, 4, 5), styles=failed)
    for card in cards:
        for one in () if card.verified is None else card.verified.acknowledged:
            name = card.uuid if card.index is None else f"GPU {card.index}"
            count = format_count(one.errors + one.findings, "wrong result")
            when = f"{one.at:%Y-%m-%d %H:%M}"
            print(printable(f"{name}: {count} acknowledged {when} by {one.by}: {one.reason}"))


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
