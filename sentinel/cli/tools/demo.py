"""``sentinel demo``: show a hand-over on two simulated GPUs, with a foreign job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from sentinel.errors import ExitCode
from sentinel.host.paths import SIMULATED
from sentinel.host.simulation import Registry

#: How long each state is shown.
SHOW_S = 6.0
#: The time in which the job's context grows: that of a busy host, since this one may be slow.
CONTEXT = "700ms"
#: The first import of torch from a cold disk took 14 s, and may take longer.
START_TIMEOUT_S = 120.0


@click.command("demo")
def command() -> int:
    """Show a hand-over on two simulated GPUs: occupy, yield, occupy again; half a minute."""
    with tempfile.TemporaryDirectory(prefix="sentinel-demo-") as folder:
        environment = {**os.environ, SIMULATED: folder}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        base = [sys.executable, "-m", "sentinel"]
        flags = ["--simulate", "2", "--rearm", "2s"]
        _print(f"$ python -m sentinel {' '.join(flags)}")
        # Without a socket: no command of this user should take it for a daemon.
        often = ["--status-every", "8s", "--no-api"]
        with subprocess.Popen([*base, "run", *flags, *often], env=environment) as sentinel:
            if not _show_occupied(Path(folder), sentinel):
                return sentinel.wait() or int(ExitCode.FAIL)
            job = ["simulate-job", "--gpus", "0", "--memory", "97%", "--for", f"{SHOW_S:g}s"]
            job += ["--context", CONTEXT]
            _print(f"$ python -m sentinel {' '.join(job)}")
            refused = subprocess.run([*base, *job], env=environment, check=False).returncode
            _show_occupied(Path(folder), sentinel)
            _print("Ctrl+C")
            sentinel.send_signal(signal.SIGINT)
            code = sentinel.wait()
        _print(
            "The foreign job got its memory." if refused == 0 else "The foreign job was REFUSED."
        )
        return code or refused


def _show_occupied(folder: Path, sentinel: subprocess.Popen[bytes]) -> bool:
    """Wait until both GPUs are occupied, and show that state for a while; False if it ended."""
    registry = Registry(folder)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and sentinel.poll() is None:
        gpus = registry.gpus()
        if gpus and all(registry.memory(g.uuid).used > g.memory_total / 2 for g in gpus):
            time.sleep(SHOW_S)
            return True
        time.sleep(0.1)
    return sentinel.poll() is None


def _print(text: str) -> None:
    click.echo(click.style(text, bold=True))
