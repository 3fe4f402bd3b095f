"""``sentinel demo``: a hand-over on two simulated GPUs, with its foreign job, in one terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import click

__all__ = ["command"]

#: Seconds: the first children import torch in the meantime, the job stays, they come back.
UNTIL_JOB = 9.0
JOB_STAYS = 6.0
WHOLE_SHOW = 30.0


@click.command("demo")
def command() -> int:
    """Watch a hand-over on two simulated GPUs: occupy, yield, re-occupy, in half a minute."""
    with tempfile.TemporaryDirectory(prefix="sentinel-demo-") as folder:
        environment = {**os.environ, "SENTINEL_SIM_DIR": folder}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        base = [sys.executable, "-m", "sentinel"]
        _say(f"$ python -m sentinel --simulate 2 --rearm 2s --for {WHOLE_SHOW:g}s")
        flags = ["--simulate", "2", "--rearm", "2s", "--for", f"{WHOLE_SHOW:g}s"]
        text = ["--log-format", "text", "--status-every", "8s"]
        with subprocess.Popen([*base, "run", *flags, *text], env=environment) as sentinel:
            time.sleep(UNTIL_JOB)
            _say(f"$ python -m sentinel simulate-job --gpu 0 --memory 97% --for {JOB_STAYS:g}s")
            job = ["simulate-job", "--gpu", "0", "--memory", "97%", "--for", f"{JOB_STAYS:g}s"]
            got = subprocess.run([*base, *job], env=environment, check=False).returncode
            code = sentinel.wait()
        _say("The foreign job got its memory." if got == 0 else "The foreign job was REFUSED.")
        return code or got


def _say(text: str) -> None:
    click.echo(click.style(text, bold=True))
