"""A real daemon notifies of a free GPU; no client can change whom."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from sentinel.errors import ConfigError
from sentinel.host import verified_store
from tests.harness.daemon_harness import Daemon
from tests.harness.gpu_environment import named
from tests.harness.sentinel_process import eventually
from tests.harness.webhook_server import WebhookServer

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]


def test_a_webhook_gets_a_free_gpu_and_the_end_of_the_daemon(daemon: Daemon) -> None:
    with WebhookServer() as server:
        server.behaviours = [503]
        flags = ("--notify-webhook", server.url, "--notify-every", "1s")
        daemon.start(1, *flags, "--notify-events", "gpu.idle,sentinel.stop*")
        daemon.wait_until_occupied(0)

        def received(name: str) -> bool:
            return any(one.json["event"]["event"] == name for one in server.received)

        with daemon.host.job(stay=0.1) as job:
            assert job.got_memory()
            job.wait_for_exit()
        eventually(lambda: received("gpu.idle"))
        for change in ({"notify.command": "/bin/true"}, {"notify.webhook": "http://127.0.0.1:1/"}):
            with pytest.raises(ConfigError, match="takes effect only at a start"):
                daemon.client.set(change)
        daemon.run("stop")
        assert received("sentinel.stopping")
        log = [json.loads(line)["event"] for line in daemon.places.log.read_text().splitlines()]
        assert "service.warning" not in log


def test_a_recipient_without_an_answer_costs_no_record_at_the_end(daemon: Daemon) -> None:
    with WebhookServer() as server:
        server.behaviours = ["hang"] * 100
        daemon.start(1, "--notify-webhook", server.url, "--notify-events", "*")
        daemon.wait_until_occupied(0)
        slow = socket.socket(socket.AF_UNIX)
        with slow:  # a request that is not complete takes the time of the open responses
            slow.connect(str(daemon.places.socket))
            head = b"POST /v1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
            slow.sendall(head + b"Content-Type: application/json\r\n\r\n{")
            daemon.run("stop")
        with closing(sqlite3.connect(daemon.places.state / "history.db")) as history:
            names = [name for (name,) in history.execute("SELECT name FROM events")]
        assert "sentinel.stopped" in names
        assert (daemon.places.state / verified_store.NAME).exists()


#: What a shell would execute, split, expand or take for an option; a name has at most 15 bytes.
MADE = Path(f"/tmp/{os.getpid():x}")  # noqa: S108 - short, and never made
NAMES = (f"$(>{MADE})", f"`>{MADE}`", f"a\n>{MADE}", f";>{MADE}", "-rf 'x'\" * ~")
#: A reason of a reservation is one line.
REASON = f"--help -rf $(>{MADE}) `>{MADE}` '; >{MADE} \" | tee {MADE} & ${{IFS}} %s \\n ~ *"


def test_no_name_no_reason_and_no_argument_is_interpreted(daemon: Daemon, tmp_path: Path) -> None:
    out, hook = tmp_path / "out", tmp_path / "hook"
    hook.write_text(f'#!/bin/sh\nexec >> {out}\nenv -0; printf "ARGUMENT=%s\\0" "$@"; cat\n')
    hook.chmod(0o755)
    command = shlex.join([str(hook), REASON])
    flags = ("--notify-command", command, "--notify-events", "gpu.busy,gpu.reserved")
    count = len(NAMES)
    daemon.start(count + 1, *flags, "--notify-every", "1s")
    daemon.wait_until_occupied(*range(count + 1))
    daemon.run("reserve", "--gpus", str(count), "--for", "1h", f"--reason={REASON}")
    with ExitStack() as stack:
        for gpu, name in enumerate(NAMES):
            job = stack.enter_context(daemon.host.job(gpu, stay=600, within=named(name)))
            assert job.got_memory()
        eventually(lambda: len(variables(out, "SENTINEL_EVENT_NAME")) == count + 1)
    seen = [json.loads(text) for text in variables(out, "SENTINEL_EVENT_PROCESSES")]
    assert {process["name"] for processes in seen for process in processes} == set(NAMES)
    assert REASON in variables(out, "SENTINEL_EVENT_REASON")
    assert variables(out, "ARGUMENT") == [REASON] * (count + 1)
    assert not MADE.exists()
    assert not (tmp_path / MADE.name).exists()


def variables(out: Path, name: str) -> list[str]:
    """List the values of one variable in each run of the hook."""
    parts = out.read_text().split("\0") if out.exists() else []
    return [part.partition("=")[2] for part in parts if part.startswith(f"{name}=")]
