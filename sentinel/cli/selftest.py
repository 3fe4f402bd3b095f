"""``sentinel selftest``: does this GPU's check find every flipped bit, and nothing else?"""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from sentinel.config import Given, build_config
from sentinel.discovery import Options
from sentinel.errors import ConfigError, ExitCode
from sentinel.messages import Gpu, Proof
from sentinel.selftest import CLEAN, Trials, run_selftest

__all__ = ["command"]

_MOST_FLIPS = 100_000
_MOST_ROUNDS = 100_000_000


@click.command("selftest")
@click.option("--gpu", help="Which: index, UUID or PCI address.  [default: the first]")
@click.option("--simulate", metavar="N", type=int, help="Pretend N GPUs, and test one of them.")
@click.option(
    "--flips", type=int, default=100, show_default=True, help="Bits to flip in each place."
)
@click.option(
    "--rounds", type=int, default=10_000, show_default=True, help="Results with nothing flipped."
)
@click.option(
    "--dtype", "dtypes", multiple=True, help="A kind of number, several times.  [default: all]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(
    gpu: str | None,
    simulate: int | None,
    flips: int,
    rounds: int,
    dtypes: tuple[str, ...],
    as_json: bool,  # noqa: FBT001 - click's
) -> int:
    """Flip bits in results, memory, inputs and references of one idle GPU, and count what is found.

    Exit code 1 if a flipped bit was not found, or something was found where none was flipped.
    """
    _check("--simulate", simulate if simulate is not None else 1, 1, 64)
    _check("--flips", flips, 1, _MOST_FLIPS)
    _check("--rounds", rounds, 1, _MOST_ROUNDS)
    given = {"gpus": Given(text=gpu, source="--gpu")} if gpu is not None else {}
    options = Options(config=build_config(given), simulate=simulate)
    trials = Trials(flips=flips, rounds=rounds, dtypes=dtypes)
    one, proofs = run_selftest(options, trials, _hide if as_json else _print)
    well = all(map(_is_well, proofs))
    if as_json:
        click.echo(json.dumps(as_object(one, proofs, simulated=simulate is not None)))
    else:
        click.echo(f"GPU {one.index} ({one.name}): {_summary(proofs)}")
    return int(ExitCode.OK if well else ExitCode.FAIL)


def as_object(gpu: Gpu, proofs: Sequence[Proof], *, simulated: bool) -> dict[str, object]:
    """Return everything for programs: a line for each trial."""
    return {
        "schema_version": 1,
        "gpu": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        "simulated": simulated,
        "well": all(map(_is_well, proofs)),
        "trials": [{**vars(proof), "well": _is_well(proof)} for proof in proofs],
    }


def _is_well(proof: Proof) -> bool:
    return proof.found == (0 if proof.place == CLEAN else proof.tried)


def _hide(_: Gpu, __: Proof) -> None:
    """Say nothing: it all is in the object at the end."""


def _print(_: Gpu, proof: Proof) -> None:
    if proof.place == CLEAN:
        what = f"{proof.found} of {proof.tried} right results taken for wrong"
    else:
        what = f"{proof.found} of {proof.tried} flipped bits found"
    level = "ok" if _is_well(proof) else "FAILED"
    click.echo(f"{level:<7} {proof.dtype:<5} {proof.place:<10} {what}")


def _summary(proofs: Sequence[Proof]) -> str:
    flipped = [proof for proof in proofs if proof.place != CLEAN]
    clean = [proof for proof in proofs if proof.place == CLEAN]
    found, tried = sum(p.found for p in flipped), sum(p.tried for p in flipped)
    alarms, results = sum(p.found for p in clean), sum(p.tried for p in clean)
    return f"{found} of {tried} flipped bits found, {alarms} false alarms in {results} results"


def _check(flag: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{flag}: {value} is out of range", f"allowed is from {least} to {most}")
