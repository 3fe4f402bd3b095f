"""Commands that other programs call: ``slurm``, by Slurm's nodes, and ``mcp``, by agents."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from sentinel.cli.options.command_options import duration, wait_option, with_client
from sentinel.cli.options.setting_options import expect_options, load_expectation
from sentinel.client import Client, connect
from sentinel.config.expectation import Expectation
from sentinel.errors import ConfigError, ExitCode, NotRunningError, SentinelError
from sentinel.fleet.drain import PREFIX, drain_by_health, faults, state_of_node
from sentinel.fleet.expected import NODE, differences, not_in_status, subject_of
from sentinel.fleet.job_gpus import (
    JobFiles,
    end_lost,
    end_unused,
    gpus_of_job,
    names_of_job,
    read_gres,
    release_job,
    reserve_for_job,
)
from sentinel.host.daemon_lookup import find_shared
from sentinel.host.device_order import DRIVER_FILES, addresses_by_minor
from sentinel.host.paths import SIMULATED
from sentinel.host.verified_store import NAME, read
from sentinel.protocol.api_types import GpuStatus, Status

_FOLDER = Path("/var/lib/sentinel/slurm")
#: The daemon answers from what it has read already; the whole check must end within a second.
_HEALTH_TIMEOUT_S = 0.6
#: When a job whose epilog never ran is over, in seconds: longer than any job.
_LONGEST_S = 30 * 86400.0

_folder_option = click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=_FOLDER,
    show_default=True,
    help="The files of this node's jobs.",
)


@click.group("slurm")
def slurm_command() -> None:
    """Serve Slurm's prolog, epilog and health check, which deploy/slurm has as scripts.

    They run on a node, as root, with the variables that slurmd sets.
    """


def _say(text: str) -> None:
    """Write a line that is no fault, for slurmd's log."""
    click.echo(f"sentinel: {text}", err=True)


@slurm_command.command("prolog", short_help="Reserve the GPUs of a job before it starts.")
@_folder_option
@wait_option("Maximum wait for the memory of the job's GPUs")
@duration("--for", "seconds", "When a job without an epilog is over.  [default: 30d]")
@expect_options
def prolog(
    folder: Path, wait: float, seconds: float | None, expect: str | None, expect_gpus: int | None
) -> int:
    """Reserve the GPUs of a job before it starts ($SLURM_JOB_ID, $SLURM_JOB_GPUS).

    Exit code 1, and the fault on standard output, if a GPU of the job has shown a fault: its last
    burn-in has failed, it has computed wrong results, or it or the node is not as expected.
    Anything else is exit code 0, also if no daemon runs or a foreign process uses the GPU.
    """
    job, names = os.environ.get("SLURM_JOB_ID", ""), names_of_job(os.environ)
    if not job.isdecimal() or not names:
        return int(ExitCode.OK)
    client = connect()
    expectation = load_expectation(expect, expect_gpus, is_here=_is_here())
    try:
        status = client.status()
        gpus = _find(names, status.gpus)
        own = {subject_of(gpu.uuid) for gpu in gpus} | {NODE}
        expected, _ = _differences(client, status, expectation)
        found = faults(gpus) | {key: text for key, text in expected.items() if key in own and text}
        if found:
            click.echo(f"{PREFIX} {'; '.join(found.values())}")
            return int(ExitCode.FAIL)
        if gpus:
            uuids = [gpu.uuid for gpu in gpus]
            longest = _LONGEST_S if seconds is None else seconds
            files = JobFiles(path=folder)
            for problem in reserve_for_job(client, files, job, uuids, wait=wait, longest=longest):
                _say(problem)
    except NotRunningError:
        pass  # nothing is held
    except SentinelError as error:
        _say(error.what)
    return int(ExitCode.OK)


def _is_here() -> bool:
    return not os.environ.get(SIMULATED)


def _differences(
    client: Client, status: Status, expectation: Expectation
) -> tuple[dict[str, str | None], str]:
    """Compare what the daemon knows with an expectation; see :func:`differences`.

    Returns:
        The differences, and a note of what was not compared.

    Raises:
        SentinelError: The daemon does not answer.
    """
    note = "; the number of GPUs was not checked"
    chosen = client.settings().get("gpus")
    named = chosen is not None and set(chosen.text.split(",")) - {"all", ""}
    is_whole = not named and status.daemon.visible_devices is None
    if is_whole:
        note = "" if expectation.gpus is not None else f"{note}{_gone(status)}"
    if names := not_in_status(expectation):
        note += f"; not compared here: {', '.join(names)}"
    return differences(expectation, status.gpus, status.daemon.driver, is_whole=is_whole), note


def _gone(status: Status) -> str:
    """Name the GPUs that an earlier daemon has verified and this one does not have."""
    folder, found = os.environ.get(SIMULATED), set[str]()
    with contextlib.suppress(SentinelError, OSError, ValueError):  # they decide nothing
        found = set(read(find_shared(Path(folder) if folder else None) / NAME))
    gone = sorted(found - {gpu.uuid for gpu in status.gpus})
    return f"; here before, and not now: {', '.join(gone)}" if gone else ""


def _find(names: tuple[str, ...], gpus: tuple[GpuStatus, ...]) -> tuple[GpuStatus, ...]:
    """Find the GPUs of a job among those of the daemon."""
    gres: tuple[int | None, ...] = ()
    try:
        gres = read_gres()
    except SentinelError as error:
        _say(f"{error.what}; taking Slurm's numbers of GPUs for NVML's indices")
    simulated = os.environ.get(SIMULATED)
    addresses = addresses_by_minor(Path(simulated) if simulated else DRIVER_FILES)
    return gpus_of_job(names, gres, addresses, gpus)


@slurm_command.command("epilog", short_help="End the reservation of a job.")
@_folder_option
def epilog(folder: Path) -> int:
    """End the reservation of a job ($SLURM_JOB_ID), unless another job shares its GPUs.

    The exit code is 0. Without a daemon, the reservation ends with the next prolog, epilog or
    health check.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return int(ExitCode.OK)
    _quietly(lambda: release_job(connect(), JobFiles(path=folder), job))
    return int(ExitCode.OK)


@slurm_command.command("healthcheck", short_help="Print whether a GPU has shown a fault.")
@_folder_option
@click.option("--drain", is_flag=True, help="Drain this node for a fault, and take that back.")
@expect_options
def healthcheck(folder: Path, drain: bool, expect: str | None, expect_gpus: int | None) -> int:
    """Print whether a GPU of this node has shown a fault, as the daemon knows it; exit 0.

    It also reports a node that differs from --expect. Exit code 2 for an expectation that cannot be
    used.

    With --drain, a fault drains this node in Slurm ($SLURMD_NODENAME) with a reason that begins
    with "gpu-sentry:". A reason of another program is not replaced. Only a drain of this command is
    taken back, once the GPU has passed a burn-in.
    """
    client = connect(timeout=_HEALTH_TIMEOUT_S)
    files = JobFiles(path=folder)
    expectation = load_expectation(expect, expect_gpus, is_here=_is_here())
    try:
        status = client.status()
        gpus = status.gpus
        expected, note = _differences(client, status, expectation)
        unlike = {key: text for key, text in expected.items() if text}
        click.echo(f"{PREFIX} {state_of_node(gpus, unlike)}{note}")
        end_unused(client, files)
        node = os.environ.get("SLURMD_NODENAME", "")
        if drain and node:
            done = drain_by_health(folder, node, gpus, expected)
            if done is not None:
                click.echo(f"{PREFIX} {done}")
        if node:
            end_lost(client, files, node)  # last, because Slurm may not answer
    except SentinelError as error:
        _say(error.what)
    return int(ExitCode.OK)


def _quietly(act: Callable[[], None]) -> None:
    """Report an error without a failure: slurmd would drain the node."""
    try:
        act()
    except NotRunningError:
        pass
    except SentinelError as error:
        _say(error.what)


@click.command("mcp")
@with_client
def mcp_command(client: Client) -> NoReturn:
    """Serve tools for agents over standard input and output (Model Context Protocol).

    The tools are status, pause, resume, reserve, cancel_reservation, sessions, start_session and
    stop_session. An agent starts this command if it is in the agent's configuration. It ends when
    the agent closes its standard input; the daemon need not run. Requires the package mcp: pip
    install 'gpu-sentry[mcp]'.
    """
    try:
        from sentinel.cli.mcp_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise ConfigError(
            "sentinel mcp requires version 2 of the package mcp, which is not installed",
            "Install it: pip install 'gpu-sentry[mcp]'",
        ) from error
    # A thread reads standard input, and the interpreter's exit would wait for its next line.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve(client)
    # Nor does anything wait for a tool whose agent has gone: its connection ends, and its request.
    sys.stdout.flush()
    os._exit(ExitCode.OK)
