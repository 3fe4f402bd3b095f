"""The supervisor's children start without the supervisor's modules."""

from __future__ import annotations

import json
import os
import signal

from sentinel.host.process_setup import Inherited
from sentinel.host.procfs import read_stat
from sentinel.supervisor.child_process import Child
from tests.harness.child_functions import fork_and_wait, send_modules
from tests.harness.sentinel_process import eventually


def test_what_a_child_has_forked_is_killed_when_the_child_that_was_killed_alone_is_reaped() -> None:
    child = Child(fork_and_wait, None, (), {})
    child.channel.setblocking(True)
    forked = child.channel.recv(20).decode()
    child.kill_alone()
    eventually(child.ended)
    assert is_alive(forked)
    assert child.reap() == -signal.SIGKILL
    eventually(lambda: not is_alive(forked))


def is_alive(pid: str) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.alive


def test_a_child_loads_no_module_of_the_supervisor() -> None:
    reading, writing = os.pipe()
    try:
        child = Child(send_modules, None, (Inherited(reading),), {})
        child.channel.setblocking(True)
        loaded = json.loads(child.channel.recv(2**16))
        eventually(child.ended)
        assert child.reap() == 0
    finally:
        os.close(reading)
        os.close(writing)
    assert "sentinel.host.process_setup" in loaded
    assert not [
        name for name in loaded if name.startswith(("sentinel.supervisor", "sentinel.core"))
    ]
