"""A terminal in which a command runs: its screen, its keys and its size."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.harness.programs import run_program
from tests.harness.timing import TIMEOUT_S


class Terminal:
    """A terminal of 80 by 24, by tmux, in which a command runs.

    Args:
        folder: The folder of its socket.
        command: The command, for a shell.
        environ: Its environment, by default that of this process.
    """

    def __init__(
        self, folder: Path, *command: str, environ: Mapping[str, str] | None = None
    ) -> None:
        self._environ = environ
        self._tmux = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        size = ["-x", "80", "-y", "24"]
        # The shell stays, also after Ctrl+C, so that the exit code is visible.
        program = " ".join(["trap : INT;", *command, "; echo exit code $?; exec cat"])
        self._run("new-session", "-d", "-s", "t", *size, "sh", "-c", program)

    def _run(self, *words: str) -> str:
        done = run_program(*self._tmux, *words, check=True, env=self._environ)
        return done.stdout

    def press(self, *keys: str) -> None:
        self._run("send-keys", "-t", "t", *keys)

    def resize(self, columns: int, rows: int) -> None:
        """Change its size, of which the command gets a signal."""
        self._run("resize-window", "-t", "t", "-x", str(columns), "-y", str(rows))

    def has_cursor(self) -> bool:
        """Check whether the cursor is visible."""
        return self._run("display-message", "-t", "t", "-p", "#{cursor_flag}").strip() == "1"

    def screen(self) -> str:
        return self._run("capture-pane", "-p", "-t", "t")

    def shows(self, *texts: str) -> str:
        """Wait until all texts are on the screen; lines may break at any space."""
        until = time.monotonic() + TIMEOUT_S
        while True:
            screen = self.screen()
            unbroken = " ".join(screen.split())
            if all(" ".join(text.split()) in unbroken for text in texts):
                return screen
            assert time.monotonic() < until, f"no {texts} on:\n{screen}"
            time.sleep(0.05)

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)
