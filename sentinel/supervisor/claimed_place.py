"""Claim the paths of a daemon, and record where it is."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from sentinel.host.daemons import registry
from sentinel.host.gpus import simulation
from sentinel.host.logs.log_file import BoundedOutput
from sentinel.host.processes.process_limits import check_file_size
from sentinel.supervisor import single_instance
from sentinel.supervisor.daemonize import redirect_output
from sentinel.supervisor.discovery import Options, Serve
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
