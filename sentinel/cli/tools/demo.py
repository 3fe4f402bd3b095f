"""``sentinel demo``: show a hand-over on two simulated GPUs, with a foreign job."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping

import click

from sentinel.cli.display.terminal import wants_colour
from sentinel.cli.tools import simulate_job
from sentinel.errors import ExitCode
from sentinel.host.files.paths import SIMULATED

#: How long each state is shown.
SHOW_S = 6.0
#: The time in which the job's context grows: that of a busy host, since this one may be slow.
CONTEXT = "700ms"
#: The first import of torch from a cold disk took 14 s, and may take longer.
START_TIMEOUT_S = 120.0
#: A line about a GPU that has become occupied.
_OCCUPIED = re.compile(r"GPU (\d+) +occupied")


@click.group("demo", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Show a hand-over on two simulated GPUs: occupy, yield, occupy again; half a minute."""
    if ctx.invoked_subcommand is not None:
        return int(ExitCode.OK)
    with tempfile.TemporaryDirectory(prefix="sentinel-demo-") as folder:
        environment = {**os.environ, SIMULATED: folder}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        base = [sys.executable, "-m", "sentinel"]
        flags = ["--simulate", "2", "--rearm", "2s"]
        _print(f"$ python -m sentinel {' '.join(flags)}")
        # Without a socket: no command of this user should take it for a daemon.
        often = ["--status-every", "8s", "--no-api"]
        colour = ["--color", "always" if wants_colour(sys.stdout) else "never"]
        supervisor = [*base, "run", *flags, *often, *colour]
        with (
            subprocess.Popen(supervisor, env=environment, stdout=subprocess.PIPE) as sentinel,
            contextlib.ExitStack() as stack,
        ):
            stack.callback(_end, sentinel)  # if the reader of the demo is gone
            output = _Output(sentinel)
            if not output.show_occupied({0: 1, 1: 1}):
                return sentinel.wait() or int(ExitCode.FAIL)
            job = ["demo", "job", "--gpus", "0", "--memory", "97%", "--for", f"{SHOW_S:g}s"]
            job += ["--context", CONTEXT]
            _print(f"$ python -m sentinel {' '.join(job)}")
            refused = subprocess.run([*base, *job], env=environment, check=False).returncode
            output.show_occupied({0: 2})
            _print("Ctrl+C")
            sentinel.send_signal(signal.SIGINT)
            code = sentinel.wait()
            output.join()
        _print(
            "The foreign job got its memory." if refused == 0 else "The foreign job was REFUSED."
        )
        return code or refused


command.add_command(simulate_job.command)


class _Output(threading.Thread):
    """Prints what the supervisor prints, and counts how often each GPU became occupied.

    The lines of the demo itself are so printed in their place.
    """

    def __init__(self, sentinel: subprocess.Popen[bytes]) -> None:
        super().__init__(name="output", daemon=True)
        self._sentinel = sentinel
        self._occupied: Counter[int] = Counter()
        self._changed = threading.Condition()
        self.start()

    def run(self) -> None:
        """Print the output to its end."""
        for line in self._sentinel.stdout or ():
            text = line.decode(errors="replace").rstrip("\n")
            with contextlib.suppress(OSError):  # as above; the supervisor must not wait
                click.echo(text, color=True)
            found = _OCCUPIED.search(click.unstyle(text))
            with self._changed:
                self._occupied.update([int(found[1])] if found else [])
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def show_occupied(self, times: Mapping[int, int]) -> bool:
        """Wait until each GPU was occupied so often, and show that for a while; False if it ended.

        Args:
            times: How often, by the index of the GPU.
        """

        def is_over() -> bool:
            return self._is_occupied(times) or self._sentinel.poll() is not None

        with self._changed:
            self._changed.wait_for(is_over, START_TIMEOUT_S)
        if self._sentinel.poll() is None:
            time.sleep(SHOW_S)
        return self._sentinel.poll() is None

    def _is_occupied(self, times: Mapping[int, int]) -> bool:
        return all(self._occupied[gpu] >= count for gpu, count in times.items())


def _end(sentinel: subprocess.Popen[bytes]) -> None:
    """Have the supervisor end, if it has not."""
    if sentinel.poll() is None:
        sentinel.send_signal(signal.SIGINT)


def _print(text: str) -> None:
    click.echo(click.style(text, bold=True))
