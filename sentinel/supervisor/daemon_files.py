"""Claim the paths of a daemon, record where it is, and restore what an earlier one has left."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sentinel.core import faults
from sentinel.core.node import sessions
from sentinel.core.state import State
from sentinel.core.step import Step
from sentinel.host import registry, simulation
from sentinel.host.log_file import BoundedOutput
from sentinel.host.process_setup import check_file_size
from sentinel.host.timed_file import RESERVATIONS, SESSIONS, Clocks
from sentinel.protocol.events import Event
from sentinel.supervisor import single_instance
from sentinel.supervisor.daemonize import redirect_output
from sentinel.supervisor.discovery import EarlierFaults, Options, Serve
from sentinel.supervisor.single_instance import Claim


@contextlib.contextmanager
def claimed(options: Options) -> Iterator[Claim | None]:
    """Claim the daemon's paths if there is an API, before anything is started."""
    if options.serve is None:
        yield None
        return
    check_file_size()
    config = options.config
    claim = single_instance.claim(
        options.serve.places,
        config.tcp,
        config.socket_group,
        config.metrics,
        is_open=config.access_users != "none",
        record=_record(options, options.serve),
    )
    try:
        with contextlib.ExitStack() as stack:
            output = _own_output(options.serve)
            if output is not None:
                stack.enter_context(contextlib.closing(BoundedOutput(output)))
            if options.serve.recorded:
                folder = registry.records_folder(os.environ, os.getuid())
                registry.link(claim.places.record.absolute(), folder)
            yield claim
    finally:
        claim.release()


def _own_output(serve: Serve) -> int | None:
    """Return the descriptor of the file that has the output of this process and its children.

    None if the output belongs to a user or to systemd. Called before the first child, which
    inherits the redirection.
    """
    if serve.detached:
        return redirect_output(serve.places)
    script = not serve.recorded and stat.S_ISREG(os.fstat(2).st_mode)
    return 2 if script else None


def log_of(serve: Serve) -> str | None:
    """Return the file of the log, or None if events go elsewhere."""
    has_file = serve.places.log_named or (serve.detached and serve.journal is None)
    return str(serve.places.log) if has_file else None


def _record(options: Options, serve: Serve) -> registry.DaemonRecord:
    """Describe this daemon for the commands of its user, also after its death."""
    folder = None if options.simulate is None else simulation.default_folder().absolute()
    return registry.describe_own(
        serve.places.state.absolute(),
        socket=str(serve.places.socket.absolute()),
        log=log_of(serve),
        journal=serve.journal,
        simulated=None if folder is None else str(folder),
        simulate=options.simulate,
    )


def restore(state: State, folder: Path | None, earlier: EarlierFaults) -> Step[State]:
    """Load what the files in a state folder have, before the loop starts.

    The API process writes these files. Reservations and sessions of missing GPUs are kept: a card
    may be lost today and back tomorrow.

    Args:
        state: The first state.
        folder: The state folder, or None for a daemon without one.
        earlier: What an earlier daemon knew of faults.

    Returns:
        The state with what was restored, and an event for each problem.
    """
    if folder is None:
        return Step(state)
    clocks = Clocks.read()
    held, why_not_reserved = RESERVATIONS.load(folder / RESERVATIONS.name, clocks)
    laid, why_not_started = SESSIONS.load(folder / SESSIONS.name, clocks)
    state = replace(state, reservations={reservation.id: reservation for reservation in held})
    state, left_out = sessions.restore(state, laid)
    missing = {gpu.uuid for gpu in earlier.missing}
    for before in earlier.faults:
        gpu_state = state.gpu_states.get(before.gpu.uuid)
        if gpu_state is None:
            state = replace(state, faults_elsewhere=(*state.faults_elsewhere, before))
        else:
            listed = before.gpu.uuid not in missing
            state = state.with_gpu(faults.restored(gpu_state, before, listed=listed))
    problems = [("reservations", why_not_reserved), ("sessions", why_not_started)]
    problems += [("faults", earlier.problem)]
    problems += [("sessions", why) for why in left_out]
    events = tuple(
        Event(name="service.warning", at=clocks.monotonic, fields={"about": about, "text": text})
        for about, text in problems
        if text is not None
    )
    return Step(state, events=events)
