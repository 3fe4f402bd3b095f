"""Take the picture of ``sentinel top``: ``python docs/pictures/terminal.py``.

The daemon, the stressors, the foreign job and the screen are real; the four GPUs are simulated.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sentinel
from sentinel.cli.tui import Live
from sentinel.client import Client

PICTURE = Path(__file__).with_name("top.svg")
#: Columns and rows of the terminal.
SIZE = (120, 30)
#: Time before and after the GPUs change state, for the graphs to fill, in seconds.
RECORDING_S = 14.0
TIMEOUT_S = 120.0
#: Textual links its font from a content delivery network; the picture does without.
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    """Start a daemon, save its screen, and end it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["SENTINEL_SIM_DIR"] = folder
        run("start", "--simulate", "4", "--rearm", "1s", "--duty", "4s/3s")
        try:
            client = sentinel.connect()
            wait_until(
                lambda: all(gpu.occupied for gpu in client.status().gpus), "all GPUs are occupied"
            )
            picture = asyncio.run(record(client))
        finally:
            run("stop")
    PICTURE.write_text(FONTS.sub("", picture))


def sentinel_command(*words: str) -> list[str]:
    """Build the command line of a Sentinel command."""
    return [sys.executable, "-m", "sentinel", *words]


def run(*words: str) -> None:
    """Run a Sentinel command to its end."""
    subprocess.run(sentinel_command(*words), check=True, capture_output=True)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll the daemon until a condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {TIMEOUT_S:.0f} s")
        time.sleep(0.5)


def change_states(client: Client) -> subprocess.Popen[bytes]:
    """Make GPU 1 busy, reserve GPU 2 and pause GPU 3; return the job on GPU 1."""
    run("pause", "1")  # the job gets its memory, however loaded this machine is
    job = subprocess.Popen(
        sentinel_command("demo", "job", "--gpus", "1", "--memory", "70%", "--for", "5m"),
        stdout=subprocess.DEVNULL,
    )
    wait_until(lambda: client.gpu(1).occupancy == "BUSY", "GPU 1 is busy")
    run("resume", "1")
    run("reserve", "--gpus", "2", "--for", "2h", "--reason", "training")
    run("pause", "3", "--for", "30m")
    return job


async def record(client: Client) -> str:
    """Run the screen without a terminal, and return it as SVG."""
    app = Live(client, client.status(), every=0.5)
    async with app.run_test(size=SIZE) as pilot:
        await asyncio.sleep(RECORDING_S)
        job = await asyncio.to_thread(change_states, client)
        try:
            await asyncio.sleep(RECORDING_S)
            await pilot.pause()
            return app.export_screenshot(title="sentinel top")
        finally:
            job.terminate()
            job.wait()


if __name__ == "__main__":
    main()
