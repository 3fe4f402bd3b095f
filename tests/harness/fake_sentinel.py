"""A fake ``sentinel run`` that only serves a status, controlled by ``$FAKE_SENTINEL``.

The variable is ``held``, any other word for a GPU that is not held, or ``exit CODE [TEXT]``.
SIGTERM ends the program, which then creates the file ``ended`` in ``$FAKE_SENTINEL_FOLDER``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the program is started by its path

from tests.harness.stub_daemon import GPU, STATUS, stub_daemon

ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
mode = os.environ["FAKE_SENTINEL"]
if mode.startswith("exit "):
    _, code, *text = mode.split(" ", 2)
    sys.stderr.writelines(f"sentinel: {line}\n" for line in text)
    sys.exit(int(code))
stressor = "RUNNING" if mode == "held" else "STOPPED"
status = {**STATUS, "gpus": [{**GPU, "stressor": stressor, "reason": "used by foreign processes"}]}
with stub_daemon(Path(os.environ["SENTINEL_SOCKET"]), status):
    ended.wait()
Path(os.environ["FAKE_SENTINEL_FOLDER"], "ended").touch()
