"""A program in the place of ``sentinel run`` that only answers, as ``$PRETEND`` says.

It ends on SIGTERM and leaves a file ``ended`` in ``$SIGN``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is started by its path

from tests.harness.scripted_daemon import GPU, STATUS, Reply, scripted

ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
how = os.environ["PRETEND"]
if how.isdigit():
    sys.exit(int(how))
if how.startswith("says "):
    _, code, text = how.split(" ", 2)
    sys.stderr.write(f"sentinel: {text}\n")
    sys.exit(int(code))
with scripted(Path(os.environ["SENTINEL_SOCKET"])) as daemon:
    word = "RUNNING" if how == "held" else "STOPPED"
    gpus = [{**GPU, "stressor": word, "reason": "in use by others"}]
    daemon.replies["GET /v1/status"] = Reply({**STATUS, "gpus": gpus})
    ended.wait()
Path(os.environ["SIGN"], "ended").touch()
