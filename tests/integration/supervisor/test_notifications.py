"""A real daemon notifies of a free GPU; no client can change whom."""

from __future__ import annotations

import json
import socket
import sqlite3
from contextlib import closing

import pytest

from sentinel.errors import ConfigError
from sentinel.host import verified_store
from tests.harness.daemon_harness import Daemon
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
            with pytest.raises(ConfigError, match="is fixed while sentinel runs"):
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
