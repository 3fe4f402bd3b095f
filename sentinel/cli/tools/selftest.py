"""``sentinel workloads selftest``: prove that the checks find each flipped bit."""

from __future__ import annotations

from dataclasses import replace

import click

from sentinel.cli.display.output import print_json
from sentinel.cli.options.command_options import one_gpu, wait_option
from sentinel.cli.options.setting_options import check_range, simulate_option
from sentinel.cli.tools.reserved_gpu import reserved_gpu
from sentinel.config.build import build_config
from sentinel.config.sources import from_flags
from sentinel.diagnostics.selftest import CLEAN, Outcome, Trials, is_well, run_selftest, summary
from sentinel.errors import ConfigError, ExitCode, IncompleteError
from sentinel.protocol.stressor import SelftestResult
from sentinel.supervisor.bootstrap import leave
from sentinel.supervisor.discovery import Options

_MAX_FLIPS = 100_000
_MAX_ROUNDS = 100_000_000


@click.command("selftest")
@one_gpu(None, "the first GPU")
@simulate_option("Use N simulated GPUs, and test one.")
@click.option(
    "--flips",
    type=int,
    default=100,
    show_default=True,
    help="Bits to flip in each place.",
)
@click.option(
    "--rounds",
    type=int,
    default=10_000,
    show_default=True,
    help="Results without a flipped bit.",
)
@click.option(
    "--dtype", "dtypes", multiple=True, help="Number format; may be repeated.  [default: all]"
)
@wait_option("Maximum wait for a daemon to free the GPU")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    gpu: str | None,
    simulate: int | None,
    flips: int,
    rounds: int,
    dtypes: tuple[str, ...],
    wait: float,
    as_json: bool,
) -> int:
    """Flip bits in results, memory, inputs and references of one idle GPU; count the found ones.

    A daemon that holds the GPU lends it: it is reserved there until the selftest ends.

    Exit code 1 if a flipped bit is not found, or an error is reported without one; 3 if a
    newcomer needs the GPU.
    """
    check_range("--flips", flips, 1, _MAX_FLIPS)
    check_range("--rounds", rounds, 1, _MAX_ROUNDS)
    for name in dtypes:
        if not name.isalnum():  # it becomes part of an option, where commas are separators
            raise ConfigError(f"--dtype: {name!r} is not a number format", "Use one such as bf16.")
    given = from_flags({"gpus": gpu} if gpu is not None else {})
    config = replace(build_config(given), throttle="off")  # test a warm GPU like a cool one
    options = Options(config=config, simulate=simulate)
    trials = Trials(flips=flips, rounds=rounds, dtypes=dtypes)
    with reserved_gpu(options, "sentinel workloads selftest", wait) as usable:
        outcome = run_selftest(usable, trials, _hide if as_json else _print)
    error = outcome.error
    if as_json and (error is None or isinstance(error, IncompleteError)):
        print_json(as_object(outcome, simulated=simulate is not None))
    elif error is None:
        one = outcome.gpu
        click.echo(f"GPU {one.index} ({one.name}): {summary(outcome.proofs)}")
    if error is not None:
        click.echo(f"sentinel: {error}", err=True)
    if outcome.code is ExitCode.UNKILLABLE:
        click.echo("sentinel: the stressor has survived SIGKILL", err=True)
    return int(leave(outcome.code, clean=outcome.clean))


def as_object(outcome: Outcome, *, simulated: bool) -> dict[str, object]:
    """Return all trials for JSON, and why they are incomplete."""
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
    """Print nothing: the JSON object has all results."""


def _print(proof: SelftestResult) -> None:
    if proof.place == CLEAN:
        what = f"{proof.found} of {proof.tried} correct results reported as wrong"
    else:
        what = f"{proof.found} of {proof.tried} flipped bits found"
    level = "ok" if is_well(proof) else "FAILED"
    click.echo(f"{level:<7} {proof.dtype:<5} {proof.place:<10} {what}")
