"""Functions for child processes. They import no pytest, so that the processes start fast."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

from sentinel.host.process_setup import InheritedFd, setup_child_process
from sentinel.protocol.codec import encode
from sentinel.protocol.shared_memory import InflightCalls


def fork_and_wait(group: str, channel: socket.socket, parent: int) -> None:
    """Lead a session, fork a process that ignores its end, and send its PID."""
    setup_child_process(parent, "a test that forks")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    forked = os.fork()
    if group == "its own":
        os.setpgid(forked, 0)
    if forked:
        channel.sendall(str(forked).encode())
    time.sleep(600)


def send_safe_path(_spec: object, channel: socket.socket, parent: int) -> None:
    """Send the variable that keeps programs of this process from searching their own folder."""
    setup_child_process(parent, "a test that imports")
    channel.sendall(json.dumps(os.environ.get("PYTHONSAFEPATH")).encode())


def run_script(
    script: Sequence[object], channel: socket.socket, parent: int, board: InheritedFd
) -> None:
    """Follow a script: send a message, announce a call, print, exit, or raise a signal."""
    calls = InflightCalls.attach(board.detach())
    for step in script:
        match step:
            case ("exit", int(code)):
                os._exit(code)
            case ("signal", int(number)):
                os.kill(os.getpid(), number)
            case ("call", int(slot), str(name)):
                calls.announce(slot, name)
            case ("print", int(size)):
                for _ in range(size // 1000):
                    os.write(2, b"x" * 999 + b"\n")
            case ("finish", int(slot)):
                calls.finish(slot)
            case bytes():
                channel.sendall(step)
            case _:
                channel.sendall(encode(step))
    time.sleep(600)


def send_modules(spec: None, channel: socket.socket, parent: int, inherited: InheritedFd) -> None:
    """Send the names of the loaded modules of sentinel."""
    del spec, parent
    inherited.detach()
    channel.send(json.dumps([name for name in sys.modules if name.startswith("sentinel")]).encode())
