"""A child process that sends the names of its modules, instead of the supervisor's children."""

from __future__ import annotations

import json
import socket
import sys

from sentinel.host.process_setup import InheritedFd


def send_modules(spec: None, channel: socket.socket, parent: int, inherited: InheritedFd) -> None:
    """Send the names of the loaded modules of sentinel."""
    del spec, parent
    inherited.detach()
    channel.send(json.dumps([name for name in sys.modules if name.startswith("sentinel")]).encode())
