"""``sentinel selftest``: does this GPU's check find every flipped bit, and nothing else?"""

from __future__ import annotations

from dataclasses import replace

import click

from sentinel.cli.json_output import print_json
from sentinel.config.build import Given, build_config
from sentinel.diagnostics.selftest import CLEAN, Outcome, Trials, is_well, run_selftest, summary
from sentinel.errors import ConfigError, ExitCode, IncompleteError
from sentinel.protocol.stressor import SelftestResult
from sentinel.supervisor.bootstrap import leave
from sentinel.supervisor.discovery import Options

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

    Exit code 1 if a flipped bit was not found, or something was found where none was flipped; 3 if
    the GPU was needed by others.
    """
    _check("--simulate", simulate if simulate is not None else 1, 1, 64)
    _check("--flips", flips, 1, _MOST_FLIPS)
    _check("--rounds", rounds, 1, _MOST_ROUNDS)
    for name in dtypes:
        if not name.isalnum():  # it becomes a part of an option, in which commas have a meaning
            raise ConfigError(f"--dtype: {name!r} is no kind of number", "Write one such as bf16.")
    given = {"gpus": Given(text=gpu, source="--gpu")} if gpu is not None else {}
    config = replace(build_config(given), throttle="off")  # a warm GPU is tested like a cool one
    options = Options(config=config, simulate=simulate)
    trials = Trials(flips=flips, rounds=rounds, dtypes=dtypes)
    outcome = run_selftest(options, trials, _hide if as_json else _print)
    error = outcome.error
    if as_json and (error is None or isinstance(error, IncompleteError)):
        print_json(as_object(outcome, simulated=simulate is not None))
    elif error is None:
        one = outcome.gpu
        click.echo(f"GPU {one.index} ({one.name}): {summary(outcome.proofs)}")
    if error is not None:
        click.echo(f"sentinel: {error}", err=True)
    if outcome.code is ExitCode.UNKILLABLE:
        click.echo("sentinel: the stressor was killed and does not end", err=True)
    return int(leave(outcome.code, clean=outcome.clean))


def as_object(outcome: Outcome, *, simulated: bool) -> dict[str, object]:
    """Return everything for programs: a line for each trial, and why these are not all."""
    gpu, error = outcome.gpu, outcome.error
    return {
        "gpu": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        "simulated": simulated,
        "well": error is None and all(map(is_well, outcome.proofs)),
        "incomplete": error.what if error is not None else None,
        "trials": [{**vars(proof), "well": is_well(proof)} for proof in outcome.proofs],
    }


def _hide(_: SelftestResult) -> None:
    """Say nothing: it all is in the object at the end."""


def _print(proof: SelftestResult) -> None:
    if proof.place == CLEAN:
        what = f"{proof.found} of {proof.tried} right results taken for wrong"
    else:
        what = f"{proof.found} of {proof.tried} flipped bits found"
    level = "ok" if is_well(proof) else "FAILED"
    click.echo(f"{level:<7} {proof.dtype:<5} {proof.place:<10} {what}")


def _check(flag: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{flag}: {value} is out of range", f"allowed is from {least} to {most}")
