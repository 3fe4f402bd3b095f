"""``sentinel health``: when each GPU was last proved good, by what, and what was found."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from sentinel.burnin.checks.check_formats import NPD_UNKNOWN, npd_line
from sentinel.burnin.checks.proven_fault import proven_fault
from sentinel.burnin.reports.verdict import Verdict
from sentinel.cli.display.json_output import print_json
from sentinel.cli.display.terminal import color_option
from sentinel.cli.options.client_options import address_options, json_option, simulated_folder
from sentinel.client import Client, connect
from sentinel.errors import ConfigError, ExitCode, SentinelError
from sentinel.host.daemons.daemon_lookup import daemons_sharing, find_shared, locate
from sentinel.host.stores import verified_store
from sentinel.host.stores.run_reports import LastVerdict, last_verdicts, report_paths
from sentinel.protocol.api_types import GpuProof
from sentinel.units import format_count, format_duration

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
    #: Whether a running daemon has it.
    present: bool = False
    #: When a daemon or a burn-in last had it, in seconds since the epoch; 0 if that is not known.
    seen: float = 0.0


@click.command("health")
@address_options
@color_option
@json_option
@click.option("--npd", is_flag=True, help="Be a custom plugin of node-problem-detector.")
def command(socket: str | None, simulated: bool, as_json: bool, npd: bool) -> int:  # noqa: FBT001
    """Show for each GPU when it was last proved good, by what, and what was found.

    VERIFIED is work of which results were checked, under every daemon of this user; BURN-IN the
    last verdict in their state directory. Works without a daemon, too. Exit code 1 if a GPU has
    wrong results or findings, or has failed its last burn-in.

    With `--npd`, one line for the condition GpuBurnInFailed: exit code 0 if every GPU has passed
    its last burn-in, 1 if one is faulty, and 2 if that is not known.
    """
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


def _cards(socket: str | None, *, simulated: bool) -> list[_Card]:
    """Collect what is known of each GPU, by index.

    Raises:
        SentinelError: The files of the daemon cannot be found or read.
    """
    folder = simulated_folder(chosen=simulated)
    state = find_shared(folder, socket)
    sockets = [socket] if socket is not None else _sockets(state, folder)
    try:
        verdicts = last_verdicts(report_paths(state))
    except OSError as error:
        raise ConfigError(f"{state} cannot be read: {error.strerror}") from None
    cards = [
        _with_verdict(card, verdicts.pop(card.uuid, None))
        for card in _proofs(sockets, state / verified_store.NAME)
    ]
    cards += [
        _with_verdict(_Card(uuid=uuid, name=one.model, index=one.index, serial=one.serial), one)
        for uuid, one in verdicts.items()
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
        current |= _from_daemon(connect(socket))
    try:
        stored = _from_file(path)
    except ConfigError:
        if not current:
            raise
        stored = {}  # the daemon reports it
    known = {
        uuid: one for uuid, one in current.items() if one.verified is not None or uuid not in stored
    }
    return list({**stored, **known}.values())


def _from_daemon(client: Client) -> dict[str, _Card]:
    """Read what a running daemon knows; nothing without one."""
    try:
        gpus = client.status().gpus
    except SentinelError:
        return {}
    return {
        gpu.uuid: _Card(
            uuid=gpu.uuid,
            index=gpu.index,
            name=gpu.name,
            serial=gpu.serial,
            verified=gpu.verified,
            present=True,
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
    if proof is not None and proof.errors + proof.findings:
        return f"{name}: {proof.errors + proof.findings} wrong results"
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
