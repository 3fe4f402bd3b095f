"""What a terminal shows of a burn-in: bars, and no escape sequence that it does not know."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from tests.harness.burnin_run import CHECKED, BurninRun, plan_of
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.sentinel_process import eventually
from tests.harness.terminal import Terminal
from tests.harness.timing import TIMEOUT_S

pytestmark = pytest.mark.long

#: A sequence for the cursor, and one for a colour.
_CONTROL, _COLOUR = re.compile(r"\x1b"), re.compile(r"\x1b\[(?:\d+;)*[349]\d")


def test_bars_survive_a_resize_and_ctrl_c(simulated: SimulatedHost, tmp_path: Path) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("there is no tmux")
    plan = plan_of("short", ("first", CHECKED, "seconds = 2"), ("last", CHECKED, "seconds = 3000"))
    command = BurninRun(simulated, plan, gpus=2).command()
    environ = simulated.environment()
    for name in ("COLUMNS", "LINES"):  # they count for more than the size of the terminal
        environ.pop(name, None)
    terminal = Terminal(tmp_path, shlex.join(command), environ=environ)
    with contextlib.closing(terminal):
        shown = terminal.shows("short for", "GPU 0  2/2 last", "GPU 1  2/2 last", "left")
        assert "occupied" not in shown, "lines of events are for -v"
        for columns in (50, 120):
            terminal.resize(columns, 100)

            def is_drawn_once() -> bool:
                lines = terminal.screen().splitlines()
                bars = [line for line in lines if line.startswith(("GPU 0  ", "GPU 1  "))]
                wide = any(len(line.rstrip()) > 80 for line in bars)
                return len(bars) == 2 and wide is (columns > 80)  # noqa: B023 - called here

            eventually(is_drawn_once)
        assert terminal.has_cursor(), "also after a SIGKILL or Ctrl+Z"
        terminal.press("C-c")
        shown = terminal.shows("INCOMPLETE", "exit code 3")
        assert "short for" not in shown, "the echo of Ctrl+C leaves nothing of the bars"
        assert terminal.has_cursor()


@pytest.mark.parametrize(
    ("variables", "has_control", "has_colour"),
    [
        ({"TERM": "dumb"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm"}, True, True),
    ],
)
def test_a_terminal_gets_what_it_knows(
    simulated: SimulatedHost, variables: dict[str, str], *, has_control: bool, has_colour: bool
) -> None:
    plan = plan_of("short", ("only", CHECKED, "seconds = 3"))
    environ = {**simulated.environment(), **variables}
    for name in {"NO_COLOR", "FORCE_COLOR", "COLUMNS"} - variables.keys():
        environ.pop(name, None)
    text = output_on_terminal(BurninRun(simulated, plan).command(), environ)
    assert bool(_CONTROL.search(text)) is has_control
    assert bool(_COLOUR.search(text)) is has_colour
    assert ("━" in text) is has_control
    assert ("occupied" in text) is not has_control, "a dumb terminal is as a pipe"
    assert "reports: " in text


def output_on_terminal(command: list[str], environ: dict[str, str]) -> str:
    """Run a command on a terminal of 80 by 24, and read what it prints to its end."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, env=environ, cwd=ROOT, start_new_session=True
    )
    os.close(its)
    parts = []
    with contextlib.suppress(OSError):  # all ends of the terminal are closed
        while data := os.read(ours, 65536):
            parts.append(data)
    os.close(ours)
    process.wait(TIMEOUT_S)
    return b"".join(parts).decode()
