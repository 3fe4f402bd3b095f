"""``sentinel demo``: a hand-over on two simulated GPUs, with its foreign job, in one terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from sentinel.host.simulation import Registry

#: How long each state is shown, in seconds, so that a person can read along.
PAUSE = 6.0
#: The first children of a host read torch from a cold disk, which took 14 s and may take longer.
PATIENCE = 120.0


@click.command("demo")
def command() -> int:
    """Watch a hand-over on two simulated GPUs: occupy, yield, re-occupy, in half a minute."""
    with tempfile.TemporaryDirectory(prefix="sentinel-demo-") as folder:
        environment = {**os.environ, "SENTINEL_SIM_DIR": folder}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        base = [sys.executable, "-m", "sentinel"]
        flags = ["--simulate", "2", "--rearm", "2s"]
        text = ["--log-format", "text"]
        _say(f"$ python -m sentinel {' '.join(flags)}")
        often = ["--status-every", "8s"]
        with subprocess.Popen([*base, "run", *flags, *often, *text], env=environment) as sentinel:
            _show_occupied(Path(folder), sentinel)
            job = ["simulate-job", "--gpu", "0", "--memory", "97%", "--for", f"{PAUSE:g}s"]
            _say(f"$ python -m sentinel {' '.join(job)}")
            got = subprocess.run([*base, *job, *text], env=environment, check=False).returncode
            _show_occupied(Path(folder), sentinel)
            _say("Ctrl+C")
            sentinel.send_signal(signal.SIGINT)
            code = sentinel.wait()
        _say("The foreign job got its memory." if got == 0 else "The foreign job was REFUSED.")
        return code or got


def _show_occupied(folder: Path, sentinel: subprocess.Popen[bytes]) -> None:
    """Wait until both GPUs are occupied, and then for as long as a person needs to see it."""
    registry = Registry(folder)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and sentinel.poll() is None:
        gpus = registry.gpus()
        if gpus and all(registry.memory(g.uuid).used > g.memory_total / 2 for g in gpus):
            time.sleep(PAUSE)
            return
        time.sleep(0.1)


def _say(text: str) -> None:
    click.echo(click.style(text, bold=True))
