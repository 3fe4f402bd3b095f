"""A child that never comes out of the kernel must not keep whoever started it from ending."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, socket, sys, time
from sentinel.spawning import Child

def stuck(first: object, channel: socket.socket, parent: int) -> None:
    time.sleep(600)

if __name__ == "__main__":
    child = Child(stuck, None, (), {})
    print(child.pid, flush=True)
    if sys.argv[1] == "forget":
        child.forget()
"""


@pytest.mark.parametrize(("way", "ends"), [("forget", True), ("remember", False)])
def test_a_child_that_is_forgotten_is_not_waited_for(
    tmp_path_factory: pytest.TempPathFactory, way: str, *, ends: bool
) -> None:
    program = tmp_path_factory.mktemp("program") / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            if ends:
                assert parent.wait(30) == 0
            else:
                with pytest.raises(subprocess.TimeoutExpired):
                    parent.wait(1)
        finally:
            subprocess.run(["kill", "-9", str(child)], check=False)
            parent.kill()
