"""API processes that are forked from one that has imported the API, which saves most of a start."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from sentinel.protocol.commands import ApiSpec
from sentinel.supervisor.api_process import ApiChild

#: The size of a request or of a reply is below this.
_MAX_BYTES = 2**16
#: The channel, at most three listening sockets, and the standard error.
_MAX_FDS = 5


class _Fd:
    """A descriptor that this process has already."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def detach(self) -> int:
        return self._fd


class ForkedApi(ApiChild):
    """An API process with the interface of a spawned one, but for its ``process``.

    Args:
        spec: Its specification.
        listening: Its listening sockets: Unix, TCP and metrics; None for one that is missing.
        environment: Changes to the variables of this process, as the process reads them itself.
    """

    def __init__(
        self,
        spec: ApiSpec,
        listening: Sequence[socket.socket | None],
        environment: Mapping[str, str],
    ) -> None:
        self.channel, child_end = socket.socketpair()
        given = [one is not None for one in listening]
        fds = [child_end.fileno(), 2, *(one.fileno() for one in listening if one is not None)]
        server = _server()
        with child_end:
            variables = {**os.environ, **environment}
            request = ForkingPickler.dumps((spec, given, variables, Path.cwd()))
            socket.send_fds(server, [bytes(request)], fds)
        self.pid = int(server.recv(_MAX_BYTES))
        self.pidfd = os.pidfd_open(self.pid)

    def kill(self) -> None:
        """Send SIGKILL to the process; its zombie keeps the PID until the next one is forked."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> int:
        """Close the descriptors; the exit code is that of a kill."""
        os.close(self.pidfd)
        self.channel.close()
        return -signal.SIGKILL


@cache
def _server() -> socket.socket:
    """Start the process that forks, once in each worker; it ends when this one does."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    atexit.register(here.close)
    context = multiprocessing.get_context("spawn")
    with there:
        context.Process(target=_fork_on_request, args=(there,), daemon=True).start()
    return here


def _fork_on_request(requests: socket.socket) -> None:
    """Fork an API process for every request, until the other end is closed."""
    import sentinel.api.server  # noqa: F401
    from sentinel.api import main

    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(requests, _MAX_BYTES, _MAX_FDS)
        if not data:
            return
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            requests.close()
            _run(main.run, data, fds, parent)
        for fd in fds:
            os.close(fd)
        requests.send(str(pid).encode())


def _run(run: Callable[..., None], data: bytes, fds: list[int], parent: int) -> None:
    """Serve clients in a forked process, and exit."""
    code = 1
    try:
        spec, given, variables, folder = ForkingPickler.loads(data)
        channel, errors, *rest = fds
        os.dup2(errors, 2)
        os.close(errors)
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(folder)
        left = iter(rest)
        listening: list[Any] = [_Fd(next(left)) if one else None for one in given]
        run(spec, socket.socket(fileno=channel), parent, *listening)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except Exception:  # noqa: BLE001 - as multiprocessing does
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
