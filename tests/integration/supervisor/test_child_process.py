"""The supervisor's children start without the supervisor's modules."""

from __future__ import annotations

import json
import os

from sentinel.host.process_setup import Inherited
from sentinel.supervisor.child_process import Child
from tests.harness.child_functions import send_modules
from tests.harness.sentinel_process import eventually


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
