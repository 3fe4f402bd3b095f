"""``sentinel burnin``: burn GPUs in by a plan, here or by the daemon, with a verdict for each."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sentinel.burnin.checks.own_checks import registered_checks
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.levels import LEVELS, load_plan, plan_text
from sentinel.burnin.run import NOT_OF_A_RUN
from sentinel.burnin.run_folder import RunFolder, find_run, new_folder
from sentinel.cli.daemon.burnin_run import Order, attach, cancel, follow_new_run, record, status
from sentinel.cli.daemon.run import account_of
from sentinel.cli.daemon.start import count_simulated
from sentinel.cli.display.output import Word, color_option
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_classes import VerdictGroup
from sentinel.cli.options.setting_options import (
    settings_without,
    simulate_option,
    warn_of_no_notifications,
)
from sentinel.cli.options.thresholds_file import load_thresholds
from sentinel.client import Client, connect
from sentinel.config.model import Config
from sentinel.config.plan import Plan
from sentinel.config.sources import Sources, checked
from sentinel.diagnostics.workload_catalog import check_workloads, is_registered, workloads_of_plan
from sentinel.errors import AccessDeniedError, ConfigError, ExitCode, NotRunningError
from sentinel.host.daemons.daemon_lookup import locate as locate_daemon
from sentinel.host.files.paths import places
from sentinel.host.gpus import simulation
from sentinel.host.stores.golden_store import locate


@click.group("burnin", cls=VerdictGroup, invoke_without_command=True)
@click.option(
    "--level",
    type=Word(LEVELS),
    help="1 min, 10 min, 1 h or 24 h of verified work.  [default: standard]",
)
@click.option("--plan", "file", type=click.Path(path_type=Path), help="A plan of your own (TOML).")
@click.option("--show-plan", is_flag=True, help="Print the plan of the level and exit.")
@click.option(
    "--report",
    "target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of the reports.  [default: one for each run in the state directory]",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="RUN",
    shell_complete=value_completion.runs,
    help="Go on with a run that was cut short: its folder, or its name in the state directory.",
)
@color_option
@click.option("--fail-fast", is_flag=True, help="End a GPU's plan at its first error.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option(
    "--thresholds", "limits", metavar="FILE", help="Replace limits by those of this TOML file."
)
@simulate_option("Use N simulated GPUs, for a host without GPUs.")
@settings_without(
    *("workload", "util", "util_tolerance", "util_every", "util_samples", "power", "duty"),
    *("log_file", "log_level"),
)
def command(
    sources: Sources,
    simulate: int | None,
    level: str | None,
    file: Path | None,
    target: Path | None,
    resume: Path | None,
    limits: str | None,
    **flags: bool,
) -> int:
    """Burn GPUs in, and give a verdict for each: PASS, WARN, FAIL or INCOMPLETE.

    A foreign process gets its GPU at once; the burn-in of that GPU goes on when it has left. Where
    a daemon runs, it does the work, and the run survives this terminal. Exit code 0 for PASS and
    WARN, 1 for FAIL, 3 for INCOMPLETE, 2 if nothing could be run.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return int(ExitCode.OK)
    _check_usage(sources, level, file, target, resume)
    level = level or "standard"
    if flags["show_plan"]:
        load_plan(level, file)
        click.echo(plan_text(level, file), nl=False)
        return int(ExitCode.OK)
    plan, text = load_plan(level, file), plan_text(level, file)
    registered_checks(CHECKS.ids)  # a conflict is to be known before the run
    load_thresholds(limits)
    simulated = simulation.default_folder() if simulate is not None else None
    daemon = _daemon(simulated)
    if daemon is not None and daemon.status().daemon.simulated:
        where = locate_daemon(daemon.address.socket).simulated  # its state, and its GPUs
        simulated = where or simulation.default_folder()
    state = places(os.environ, os.getuid(), simulated).shared
    if resume is not None:
        folder = RunFolder(path=find_run(state, str(resume)))
    else:
        folder = RunFolder(path=target) if target is not None else new_folder(state, plan)
    config = checked(sources)
    slowed = [name for name in ("util", "power", "duty") if getattr(config, name) is not None]
    if slowed:
        raise click.UsageError(f"{slowed[0]} is set: a burn-in runs at full speed")
    _check_workloads(plan, file, config, sources, by_daemon=daemon is not None)
    if daemon is not None:
        _check_for_daemon(daemon, sources, simulate)
    else:
        why = "since the API process of a daemon sends them, and no daemon runs"
        warn_of_no_notifications(config, sources, why)
    order = Order(
        folder=str(folder.path.absolute()),
        text=None if resume is not None else text,
        gpus=_selected(sources),
        fail_fast=flags["fail_fast"],
        thresholds=None if limits is None else str(Path(limits).absolute()),
        socket=None if daemon is None else daemon.address.socket,
        flags=[] if daemon is not None else _private_flags(sources, simulate),
        simulated=None if simulated is None else str(simulated.absolute()),
        simulate=simulate,
    )
    return follow_new_run(order, as_json=flags["as_json"])


for _command in (status, attach, cancel, record):
    command.add_command(_command)


def _check_workloads(
    plan: Plan | None, file: Path | None, config: Config, sources: Sources, *, by_daemon: bool
) -> None:
    """Check the workloads of a plan of the user's own; those of the levels are tested.

    A daemon may find modules in other places, but what is registered in the same.
    """
    if plan is None or file is None:
        return
    named = workloads_of_plan(plan, f"--plan {file}")
    here = [one for one in named if not by_daemon or is_registered(one.text)]
    check_workloads(here, account_of(config, sources))


def _check_usage(
    sources: Sources, level: str | None, file: Path | None, target: Path | None, resume: Path | None
) -> None:
    """Refuse options that exclude each other.

    Raises:
        UsageError: There are such.
    """
    if sum(one is not None for one in (level, file, resume)) > 1:
        raise click.UsageError("--level, --plan and --resume exclude each other")
    if resume is not None and target is not None:
        raise click.UsageError("--resume goes on in the folder of the run: omit --report")
    if resume is not None and _selected(sources):
        raise click.UsageError("--resume goes on with the GPUs of the run: omit --gpus")
    if sources.source_of("workload") == "--workload":
        raise click.UsageError("--workload cannot be given: the plan names the workloads")


def _private_flags(sources: Sources, simulate: int | None) -> list[str]:
    """Build the flags of ``sentinel run`` for a private daemon with the same settings.

    It has a state directory of its own: the golden checksums stay those of the host.
    """
    flags = [] if sources.file is None else ["--config", str(sources.file)]
    flags += [] if simulate is None else ["--simulate", str(simulate)]
    for given in sources.given:
        if given.source.startswith("--") and not given.key.startswith(("gpus", *NOT_OF_A_RUN)):
            flags += [given.source, given.text]
    if sources.get("goldens") is None and simulate is None:
        flags += ["--goldens", str(locate(None, os.environ))]
    return flags


def _daemon(simulated: Path | None) -> Client | None:
    """Return the client of the daemon with these GPUs, or None if none runs for this user.

    Without simulated GPUs, it is the daemon of the default paths: one with simulated GPUs cannot
    burn real ones in.
    """
    client = connect(places(os.environ, os.getuid(), simulated).socket)
    try:
        client.status()
    except (NotRunningError, AccessDeniedError):
        return None
    return client


def _check_for_daemon(daemon: Client, sources: Sources, simulate: int | None) -> None:
    """Refuse what a daemon cannot be asked for.

    Raises:
        ConfigError: A setting is given, or the daemon has another number of simulated GPUs.
    """
    gpus = simulate if simulate is None else count_simulated(daemon)
    if simulate != gpus:
        what = f"--simulate: a daemon runs, and has {gpus} simulated GPUs, not {simulate}"
        raise ConfigError(what, f"Give --simulate {gpus} --gpus, or end it: sentinel stop")
    for given in sources.given:
        if given.source.startswith("--") and given.source != "--gpus":
            what = f"{given.source}: a daemon runs, and its own settings apply"
            raise ConfigError(what, "Omit it, or end the daemon first: sentinel stop")


def _selected(sources: Sources) -> tuple[str, ...]:
    """Return the GPUs that --gpus names; without it, the daemon chooses all of its own."""
    given = sources.get("gpus")
    flagged = given is not None and given.source == "--gpus"
    return tuple(given.text.split(",")) if given is not None and flagged else ()
