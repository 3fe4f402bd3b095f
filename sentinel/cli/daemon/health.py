"""``sentinel health``: when each GPU was last proved good, by what, and what was found."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from sentinel.burnin.checks.check import Status
from sentinel.burnin.checks.node_formats import NPD_UNKNOWN, npd_line
from sentinel.burnin.verdict import Verdict
from sentinel.cli.daemon.acknowledgement import acknowledge, count_of
from sentinel.cli.daemon.known_cards import (
    ACCEPTED,
    REQUIRED,
    Card,
    Requirement,
    cards_of,
    cards_of_host,
    is_suspect,
    judge_expectation,
    read_host_gpus,
    why_unmet,
    with_expected,
)
from sentinel.cli.daemon.known_faults import places_of
from sentinel.cli.display.output import Table, Word, color_option, printable
from sentinel.cli.options import command_options as options
from sentinel.cli.options.setting_options import expect_options, level_option, load_expectation
from sentinel.config.expectation import Expectation
from sentinel.config.gpu_selection import select_known
from sentinel.errors import ExitCode, SentinelError
from sentinel.host import verified_store
from sentinel.host.daemon_lookup import locate, simulated_folder
from sentinel.protocol.api_types import RepairOutcome
from sentinel.units import format_count, format_duration

_HOUR_S = 3600.0


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
    help="Take the wrong results of a repaired GPU as known: by index, UUID, PCI address or serial"
    " number.",
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
    type=Word(tuple(REQUIRED)),
    help="Exit with 0 only if the last burn-in of every GPU of the host has this verdict; warn"
    " accepts PASS, too.",
)
@level_option(
    "with --require, that burn-in was of this level, or of a plan with at least its work."
)
@options.duration("--max-age", "max_age_s", "With --require: the burn-in is at most this old.")
@options.gpus_flag("selected", "index, UUID or serial number; may be repeated.  [default: all]")
@expect_options
@options.strict_option
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
    expect: str | None,
    expect_gpus: int | None,
    strict: bool,
    as_json: bool,
) -> int:
    """Show for each GPU when it was last proved good, by what, and what was found.

    VERIFIED is the time of checked work, by all daemons and burn-ins of this user; BURN-IN the last
    verdict that is known. No daemon is needed. Exit code 1 if a GPU has wrong results, findings or
    known faults, or has failed its last burn-in, 3 if a GPU is untested, cannot be read by its
    daemon, or none is known, else 0.

    With `--require pass`, exit code 0 only if every GPU of the host, or of `--gpus`, has passed its
    last burn-in: 1 as above, 3 if one has another verdict or none, is lost or cannot be read.
    `--level` leaves out burn-ins with less work than that level, `--max-age` older ones.

    A FAIL stands until later burn-ins have judged each check that failed as PASS or WARN, with at
    least the work of the plan that failed.

    A node that is not as `--expect` says has exit code 1, and 3 if that is not known. With an
    expected number of GPUs, one without records counts as untested.

    With `--npd`, one line for the condition GpuBurnInFailed: exit code 0 if every GPU has passed
    its last burn-in, 1 if one is faulty, and 2 if that is not known.

    With `--acknowledge GPU --reason TEXT`, the wrong results and findings of that GPU no longer
    count, until there are new ones. They stay counted and are shown with the user, the time and
    the reason. A FAIL stays until a burn-in passes. Exit code 1 if there is nothing to acknowledge.
    `--outcome` records what became of the GPU: its fault was confirmed elsewhere, was not found, or
    it was replaced. Reports of burn-ins and fleets count confirmed faults, including
    faults that Sentinel did not find.
    """
    if not simulated and not socket:
        _judge_choice(strict=strict or required is not None)
    requirement = _requirement(required, level, max_age_s)
    folder = simulated_folder(chosen=simulated)
    if (npd or acknowledged) and (required or selected):
        raise click.UsageError("--require and --gpus exclude --npd and --acknowledge")
    if acknowledged or reason is not None or outcome is not None:
        if npd or not acknowledged or reason is None:
            raise click.UsageError(
                "--acknowledge and --reason need each other, and exclude --npd;"
                " --outcome needs both of them"
            )
        state, sockets = places_of(socket, folder)
        path, cards = state / verified_store.NAME, cards_of(state, sockets)
        became = None if outcome is None else RepairOutcome(outcome)
        done = acknowledge(acknowledged, reason, cards, sockets, path, became)
        return options.outcome(done).show(as_json=as_json)
    expectation = load_expectation(expect, expect_gpus, is_here=folder is None)
    if npd:
        if as_json:
            raise click.UsageError("--json and --npd exclude each other")
        return _print_npd(socket, expectation, folder, strict=strict)
    is_asked = requirement is not None or bool(expectation.text)
    found = read_host_gpus(folder) if is_asked else None
    expected = judge_expectation(expectation, found, folder, selected)
    least = None if requirement is None else requirement.work
    cards = cards_of(*places_of(socket, folder), least)
    if requirement is not None and found is not None:
        cards = cards_of_host(cards, found)
    else:
        cards = with_expected(cards, cards, expectation, found)
    if selected:
        uuids = select_known(selected, cards)
        cards = [card for card in cards if card.uuid in uuids]
    reasons = {card.uuid: why_unmet(card, requirement, strict=strict) for card in cards}
    unmet = {uuid: why for uuid, why in reasons.items() if why is not None}
    statuses = {status for _, status in expected}
    is_unknown = bool(unmet) or not cards or Status.NOT_TESTED in statuses
    code = ExitCode.INCOMPLETE if is_unknown else ExitCode.OK
    is_bad = partial(_is_bad, strict=strict)
    code = ExitCode.FAIL if any(map(is_bad, cards)) or Status.FAIL in statuses else code
    texts = [text for text, _ in expected]
    plain = {
        "gpus": [_plain(card) for card in cards],
        "unmet": list(unmet),
        "not_as_expected": texts,
    }
    if requirement is not None and expectation.gpus is None:
        texts.append("the number of GPUs was not checked")
    shown = [] if requirement is None else [card for card in cards if card.uuid in unmet]
    level = None if requirement is None else requirement.level
    lines = itertools.chain(
        _lines(cards),
        _doubts(cards) if requirement is None else (),
        (
            f"{requirement}: {': '.join(filter(None, (_standing(card, level), unmet[card.uuid])))}"
            for card in shown
        ),
        map(printable, texts),
    )
    return options.Printed(json=plain, lines=lines, code=code).show(as_json=as_json)


def _requirement(
    required: str | None, level: str | None, max_age_s: float | None
) -> Requirement | None:
    """Build what is required, or None without ``--require``."""
    if required is not None:
        return Requirement(name=required, level=level, max_age_s=max_age_s)
    if level is not None or max_age_s is not None:
        raise click.UsageError("--level and --max-age need --require")
    return None


def _judge_choice(*, strict: bool) -> None:
    """Say so where the simulated GPUs were not chosen by the command.

    Raises:
        UsageError: If strict.
    """
    options.warn_of_simulated_gpus("--simulated", strict=strict)
    if strict and _are_simulated(None, None):
        what = "the daemon has simulated GPUs, accepted only with --simulated"
        raise click.UsageError(what)


# --- output ----------------------------------------------------------------------------------


def _are_simulated(socket: str | None, folder: Path | None) -> bool:
    """Check whether the daemon that is meant, or else the folder, has simulated GPUs."""
    with contextlib.suppress(SentinelError):  # several run
        found = locate(socket, folder)
        if found.record is not None:
            return found.simulated is not None
    return folder is not None


def _is_bad(card: Card, *, strict: bool) -> bool:
    """Check whether a card has shown a fault, or, if strict, its last burn-in a warning."""
    last = card.burnin
    return is_suspect(card) or (strict and last is not None and last.verdict == Verdict.WARN)


def _print_npd(
    socket: str | None, expectation: Expectation, folder: Path | None, *, strict: bool
) -> int:
    """Print the line of a custom plugin of node-problem-detector; return its exit code."""
    try:
        host = read_host_gpus(folder) if expectation.text else None
        found = judge_expectation(expectation, host, folder)
        for text, status in found:
            if status is Status.FAIL:
                print(npd_line(text))
                return 1
        cards = cards_of(*places_of(socket, folder))
    except SentinelError as error:
        print(npd_line(str(error)))
        return NPD_UNKNOWN
    # The reports of a replaced card remain. A running daemon knows which cards there are. Without
    # one, a card whose place another one has had since may be gone: its fault is not known.
    here = [card for card in cards if card.present] or cards
    here = with_expected(here, cards, expectation, host)
    latest = {card.index: card for card in sorted(here, key=lambda card: card.seen)}
    faulty = [card for card in here if _is_bad(card, strict=strict) and latest[card.index] is card]
    unproved = [
        card for card in here if not card.is_proved or card.lost is not None or is_suspect(card)
    ]
    shown = faulty or unproved
    if found and not faulty:
        print(npd_line(found[0][0]))
        return NPD_UNKNOWN
    if not here:
        print("no burn-in is known")
        return NPD_UNKNOWN
    if not shown:
        noun = "simulated GPU" if _are_simulated(socket, folder) else "GPU"
        note = "" if expectation.gpus is not None else "; the number of GPUs was not checked"
        print(npd_line(f"{format_count(len(here), noun)} passed the last burn-in{note}"))
        return 0
    more = f" and {len(shown) - 1} more" if len(shown) > 1 else ""
    why = None if faulty or shown[0].burnin is None else shown[0].burnin.no_proof
    print(npd_line(": ".join(filter(None, (f"{_standing(shown[0])}{more}", why)))))
    return 1 if faulty else NPD_UNKNOWN


def _standing(card: Card, level: str | None = None) -> str:
    """Name a card and why it is not accepted; its identity is first, since the line may be cut."""
    name = f"GPU {'?' if card.index is None else card.index} {card.uuid[:12]}"
    proof, burnin = card.verified, card.burnin
    if burnin is not None and burnin.verdict == Verdict.FAIL:
        return f"{name}: FAIL {burnin.plan}"
    if card.faults:
        return f"{name}: {card.faults[0].text}"
    if proof is not None and proof.wrong:
        return f"{name}: {proof.wrong} wrong results"
    if card.lost is not None:
        return f"{name}: {card.lost}"
    if burnin is not None:
        return f"{name}: {burnin.verdict} {burnin.plan}"
    return f"{name}: not burned in{f' with the work of level {level}' if level else ''}"


def _plain(card: Card) -> dict[str, Any]:
    """Return a card as JSON values."""
    return {
        **{name: getattr(card, name) for name in ("uuid", "index", "name", "serial")},
        "verified": None if card.verified is None else asdict(card.verified),
        "burnin": None if card.burnin is None else asdict(card.burnin),
        "untested": card.untested,
        "unknown": card.lost,
        "faults": [asdict(fault) for fault in card.faults],
    }


def _lines(cards: Sequence[Card]) -> Iterator[str]:
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
        name = card.uuid if card.index is None else f"GPU {card.index}"
        yield from (f"{name}: {fault.text}: {fault.remedy}" for fault in card.faults)
        if card.lost is not None and not card.faults:
            yield printable(f"{name}: {card.lost}")
        if card.burnin is not None and (why := card.burnin.not_taken_back) is not None:
            yield f"GPU {card.index}: the FAIL of {card.burnin.plan} stands: {why}"
        for results in () if card.verified is None else card.verified.acknowledged:
            when = f"{results.at:%Y-%m-%d %H:%M}"
            outcome = f", {results.outcome}" if results.outcome else ""
            yield printable(
                f"{name}: {count_of(results)} acknowledged {when} by {results.by}{outcome}:"
                f" {results.reason}"
            )


def _doubts(cards: Sequence[Card]) -> Iterator[str]:
    """Yield why burn-ins that a GPU has passed prove nothing."""
    for card in cards:
        last = card.burnin
        if last is not None and last.verdict in ACCEPTED and last.no_proof is not None:
            name = card.uuid if card.index is None else f"GPU {card.index}"
            proof = f"the {last.verdict} of {last.plan} proves nothing"
            yield printable(f"{name}: {proof}: {last.no_proof}")


def _hours(seconds: float) -> str:
    """Format a duration in hours, or a short one exactly."""
    hours = seconds / _HOUR_S
    return f"{hours:,.1f} h" if hours >= 1 else format_duration(round(seconds))


def _row(card: Card) -> tuple[str, ...]:
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
