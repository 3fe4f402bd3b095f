"""``sentinel start`` and ``restart``: start the daemon, or end it and start it again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from sentinel.burnin.levels import LEVELS
from sentinel.cli.daemon.first_stressor import FirstStressor, NotProvedError, wait_for_stressor
from sentinel.cli.daemon.log_place import recorded_log, with_chosen_log
from sentinel.cli.daemon.run import check_before_start, with_plan
from sentinel.cli.display.output import print_json
from sentinel.cli.options.command_classes import GroupedOptions
from sentinel.cli.options.command_options import json_option, wait_option, with_client
from sentinel.cli.options.setting_options import (
    for_daemon,
    plan_option,
    settings_of_daemon,
    simulate_option,
)
from sentinel.client import Client, connect
from sentinel.config.model import SETTINGS
from sentinel.config.sources import Sources, checked
from sentinel.errors import (
    AlreadyRunningError,
    ExitCode,
    SentinelError,
)
from sentinel.host.daemons.daemon_lookup import locate
from sentinel.host.daemons.registry import running
from sentinel.host.files.paths import SIMULATED, Places, places
from sentinel.host.gpus.simulation import default_folder
from sentinel.supervisor.daemonize import NotStartedError, last_reason, start_detached

#: A driver without persistence mode needs up to 3 s per GPU.
START_TIMEOUT_S = 60.0
_WAIT = "Maximum wait until a stressor is ready"
#: What is printed for a daemon without a log.
NO_LOG = "none: it runs in the foreground and prints its events"


@click.command("start", cls=GroupedOptions)
@simulate_option("Use N simulated GPUs, for a host without GPUs.")
@settings_of_daemon
@plan_option
@click.option("--paused", is_flag=True, help="Occupy no GPU until `sentinel resume`.")
@wait_option(_WAIT, "5m")
@json_option
def command(
    sources: Sources,
    simulate: int | None,
    plan: str | None,
    paused: bool,  # noqa: FBT001 - click passes options by name
    wait: float,
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> int:
    """Start the daemon; one that runs already stays as it is, and paused GPUs stay paused.

    The daemon survives the terminal. The command waits until a stressor is ready on one GPU, or
    until the daemon has nothing to start: exit code 1 if stressors fail, or none is ready within
    --wait. The daemon goes on then.
    """
    config, of_plan = checked(sources), []
    if plan is not None:
        with_plan(config, plan, sources)
        of_plan = [f"--plan={plan if plan in LEVELS else Path(plan).absolute()}"]
    where, pid = _find(simulated=simulate is not None)
    if paused and pid is not None:
        raise AlreadyRunningError(
            f"a daemon runs already: pid {pid or 'unknown'}, socket {where.socket}",
            "To release its GPUs, use: sentinel pause",
        )
    flags = [*_flags(sources), *of_plan]
    if pid is None:
        where = with_chosen_log(where, sources)
        check_before_start(config, sources, plan)
        more = ["--simulate", str(simulate)] if simulate is not None else []
        more += ["--paused"] if paused else []
        pid = start_detached([*_config(sources), *flags, *more], where, START_TIMEOUT_S).pid
        proof = _prove(where, pid, wait)
        _print(where, pid, f"started: pid {pid}{proof.text}", proof, as_json=as_json, started=True)
        return int(ExitCode.OK)
    if simulate is not None:
        _check_number(where, pid, simulate)
    if flags:
        raise AlreadyRunningError(
            f"a daemon runs already: pid {pid or 'unknown'}, socket {where.socket}",
            "It keeps its settings. To change them, use: sentinel set",
        )
    _check_that_it_answers(where, pid)
    proof = _prove(where, pid, wait)
    text = f"runs already: pid {pid or 'unknown'}{proof.text}"
    _print(where, pid, text, proof, as_json=as_json, started=False)
    return int(ExitCode.OK)


@click.command("restart")
@wait_option(_WAIT, "5m")
@json_option
@with_client
def restart(client: Client, wait: float, as_json: bool) -> int:  # noqa: FBT001 - click's
    """End the daemon, and start it again with its arguments and environment.

    Reservations and sessions continue, pauses and settings without --save end. The command waits
    as `sentinel start` does. `sentinel set` changes settings without a restart.
    """
    client.restart()
    daemon = client.status().daemon
    proof = FirstStressor(occupied=None, text="")
    if wait:
        proof = _with_subject(wait_for_stressor(client, wait, client.health))
    text = f"restarted: pid {daemon.pid}{proof.text}"
    facts = {"started": True, "pid": daemon.pid, "socket": daemon.socket, "log": daemon.log}
    _print_facts(text, facts, proof, as_json=as_json)
    return int(ExitCode.OK)


def _find(*, simulated: bool) -> tuple[Places, int | None]:
    """Return the paths of the daemon, and its PID if it runs; 0 is an unknown PID."""
    folder = default_folder().absolute() if simulated else None
    where = places(os.environ, os.getuid(), folder)
    return where, _pid(where)


def _check_number(where: Places, pid: int, simulate: int) -> None:
    """Refuse to take a daemon with another number of simulated GPUs for the requested one.

    Raises:
        AlreadyRunningError: It has another number.
        SentinelError: It does not answer.
    """
    number = count_simulated(connect(where.socket))
    if number != simulate:
        raise AlreadyRunningError(
            f"--simulate {simulate}: a daemon with {number} simulated GPUs runs already:"
            f" pid {pid or 'unknown'}, socket {where.socket}",
            f"End it with `sentinel stop --socket {where.socket}`, or use another folder:"
            f" {SIMULATED}.",
        )


def count_simulated(client: Client) -> int:
    """Count the simulated GPUs of the host of a running daemon, which may manage fewer.

    Raises:
        SentinelError: It does not answer.
    """
    record = locate(client.address.socket).record
    number = record.simulate if record is not None and record.alive else None
    return len(client.status().gpus) if number is None else number


def _pid(where: Places) -> int | None:
    """Return the PID of the daemon, 0 if only its socket is accessible, or None if none runs."""
    pid = running(where)
    if pid is None:
        with contextlib.suppress(SentinelError):
            connect(where.socket).health()
            return 0
    return pid


def _flags(sources: Sources) -> list[str]:
    """Return the given flags for a daemon with another working directory."""
    flags = {setting.flag: setting for setting in SETTINGS}
    found = []
    for given in sources.given:
        setting = flags.get(given.source)
        if setting is None:
            continue
        found.append(f"{setting.flag}={for_daemon(setting.key, given.text)}")
    return found


def _config(sources: Sources) -> list[str]:
    """Return the flag for the file that was found, so that a reload reads the same file."""
    return [f"--config={sources.file.absolute()}"] if sources.file is not None else []


def _check_that_it_answers(where: Places, pid: int) -> None:
    try:
        connect(where.socket).request("GET", "/v1/health")
    except SentinelError as error:
        raise NotStartedError(
            f"the daemon, pid {pid or 'unknown'}, runs and does not answer: {error.what}",
            f"Its log is {recorded_log(where)}. To end it: kill {pid or 'PID'}",
        ) from error


def _prove(where: Places, pid: int, wait: float) -> FirstStressor:
    """Wait until the daemon has a stressor, or nothing to start; 0 does not wait.

    Raises:
        NotProvedError: It has failed to.
    """
    if not wait:
        return FirstStressor(occupied=None, text="")
    try:
        proof = wait_for_stressor(connect(where.socket), wait, lambda: running(where) is not None)
    except SentinelError as error:
        if pid and running(where) is None:
            what = f"the daemon has ended: {last_reason(where) or error.what}"
            raise NotProvedError(what, f"Its log is {recorded_log(where)}") from error
        how = f"The daemon, pid {pid or 'unknown'}, goes on; its log is {recorded_log(where)}"
        raise NotProvedError(error.what, f"{how}\nTo end it: sentinel stop") from error
    return _with_subject(proof)


def _with_subject(proof: FirstStressor) -> FirstStressor:
    return replace(proof, text=f"; it {proof.text}")


def _print(
    where: Places, pid: int, text: str, proof: FirstStressor, *, as_json: bool, started: bool
) -> None:
    """Print the outcome for a daemon at these paths."""
    facts = {"started": started, "pid": pid, "socket": where.socket, "log": recorded_log(where)}
    _print_facts(text, facts, proof, as_json=as_json)


def _print_facts(
    text: str, facts: Mapping[str, object], proof: FirstStressor, *, as_json: bool
) -> None:
    if as_json:
        print_json({**facts, "occupied": proof.occupied})
    else:
        print(f"sentinel {text}\nsocket {facts['socket']}\nlog    {facts['log'] or NO_LOG}")
