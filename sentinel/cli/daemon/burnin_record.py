"""The process that records a burn-in: its start by the command, and what it does.

It survives the terminal of the command where the host's daemon does the work.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, Any

import click

from sentinel.burnin.formats import write_reports
from sentinel.burnin.report import judge_run
from sentinel.burnin.request import RunRequest, decode, encode, plan_of
from sentinel.burnin.run import cancel_run, record_run
from sentinel.burnin.run_files import register
from sentinel.burnin.verdict import exit_code
from sentinel.client import Client, connect
from sentinel.client.hold import private_sentinel
from sentinel.config.sources import NAME
from sentinel.errors import ExitCode, SentinelError
from sentinel.host import registry, simulation, verified_store
from sentinel.host.paths import places
from sentinel.host.process_setup import end_with_parent, leave
from sentinel.host.procfs import read_stat
from sentinel.host.registry import records_folder

#: Signals that end the record of a run.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _RefusedError(SentinelError):
    """The process that records a run has not begun; it has an exit code of its own."""


def start_recorder(request: RunRequest) -> tuple[subprocess.Popen[bytes], str, str]:
    """Start the process that records, and wait until the daemon has begun.

    Returns:
        The process, the socket of the daemon, and the id of the run.

    Raises:
        SentinelError: It has not.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sentinel", "burnin", "record"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # it survives this terminal
    )
    assert process.stdin is not None  # noqa: S101 - as asked for
    assert process.stdout is not None  # noqa: S101
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(encode(request))
    answer = process.stdout.readline()
    told: dict[str, Any] = (
        json.loads(answer) if answer else {"what": "the recording process has failed"}
    )
    if "what" in told:
        process.stdout.close()
        process.wait()
        with contextlib.suppress(OSError):  # it has a run
            Path(request.folder).rmdir()
        error = _RefusedError(told["what"], told.get("remedy", ""))
        code = ExitCode(told.get("code", ExitCode.USAGE))
        # Of a burn-in, the code of a conflict is a verdict: another one has the GPUs.
        error.exit_code = ExitCode.HELD if code is ExitCode.FAIL else code
        raise error
    return process, told["socket"], told["run"]


@click.command("record", hidden=True)
def record() -> int:
    """Record a run; the request comes over standard input.

    The result of the start goes out, and later the error that ends the record. A signal cancels the
    run, so that it ends with a report.
    """
    request = decode(sys.stdin.buffer.read())
    answers = os.fdopen(os.dup(1), "w", buffering=1)  # after the terminal was left, too
    if request.socket is None:
        end_with_parent(request.command, signal.SIGTERM)
    for number in _ENDS:
        signal.signal(number, signal.default_int_handler)
    try:
        if request.simulated is not None and request.simulate is not None:
            simulation.Registry.create(Path(request.simulated), request.simulate)
        begin = partial(_report_start, request, answers)
        with record_run(request, partial(_connected, request), begin) as clean:
            run = judge_run(request.run_folder, request.thresholds)
            write_reports(request.run_folder, run)
    except SentinelError as error:
        told = {"what": error.what, "remedy": error.remedy, "code": error.exit_code}
        with contextlib.suppress(OSError):  # the command has ended
            print(json.dumps(told), file=answers)
        return int(error.exit_code)
    except (BrokenPipeError, KeyboardInterrupt):  # the command has ended before the run had begun
        return int(ExitCode.INTERRUPTED)
    unkillable = any(gpu.record.is_unkillable for gpu in run.gpus)
    code = ExitCode.UNKILLABLE if unkillable else exit_code(run.verdict, strict=run.strict)
    return int(leave(code, clean=clean and not run.stuck))


@contextlib.contextmanager
def _connected(request: RunRequest, gpus: Sequence[str]) -> Iterator[Client]:
    """Connect to the host's daemon, or to a private one, which ends with the block.

    Raises:
        SentinelError: The private daemon did not start.
    """
    if request.socket is not None:
        yield connect(request.socket)
        return
    selected = ["--gpus", ",".join(gpus)] if gpus else []
    files = {NAME: request.single}
    with private_sentinel(["--burnin-only", *request.flags, *selected], files=files) as held:
        held.wait_ready()
        where = places(os.environ, os.getuid(), request.simulation)
        process = read_stat(held.pid)
        record = registry.describe_own(
            where.shared.absolute(),
            pid=held.pid,
            started=0 if process is None else process.started,
            simulated=request.simulated,
            simulate=request.simulate,
            run=request.folder,
            burnin_socket=held.client.address.socket,
        )
        path = where.socket.with_name(f"burnin-{held.pid}.json").absolute()
        with registry.recorded(path, record, records_folder(os.environ, os.getuid())):
            try:
                yield held.client
            finally:
                _count_work(held.client, where.shared)


def _count_work(client: Client, shared: Path) -> None:
    """Add what a private daemon has verified to what the host's daemons count, if possible.

    Its own count ends with it.
    """
    with contextlib.suppress(SentinelError, OSError, ValueError):  # the report has all results
        verified_store.add_work(shared / verified_store.NAME, client.status().gpus)


def _report_start(request: RunRequest, answers: IO[str], client: Client, run: str) -> None:
    """Tell the command that the run has begun; leave its terminal, and end by a cancel."""

    def cancel(_number: int, _frame: FrameType | None) -> None:
        died = request.socket is None and os.getppid() != request.command
        reason = f"its command, process {request.command}, died" if died else None
        threading.Thread(target=cancel_run, args=(client, run, reason), daemon=True).start()

    if request.plan is not None and (
        why := register(request.run_folder, Path(request.state), plan_of(request))
    ):
        what = f"`sentinel health` will not know this run: {why}"
        click.echo(f"sentinel: warning: {what}", err=True)
    for number in _ENDS:
        signal.signal(number, cancel)
    print(json.dumps({"socket": client.address.socket, "run": run}), file=answers)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
