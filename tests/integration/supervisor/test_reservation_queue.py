"""Clients of a real daemon wait for GPUs in the order in which they came."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.harness.daemon_harness import Daemon, read_line
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]

#: A job that says which it is, and lives until it is killed.
JOB = ("--", "sh", "-c", 'echo "$0"; exec sleep 600')


@pytest.fixture
def daemon(daemon: Daemon) -> Daemon:
    daemon.start(2, "--workload", "hold")
    return daemon


def queued(daemon: Daemon) -> list[int | None]:
    """List the processes that wait, in the order of the queue."""
    return [one.holder.pid for one in daemon.client.queue()]


def test_jobs_start_in_the_order_in_which_they_came(daemon: Daemon) -> None:
    held = daemon.client.reserve([0, 1], reason="maintenance", seconds=None)
    wait = ("--wait", "5m", *JOB)
    with (
        daemon.start_command("exec", "--count", "2", *wait, "large") as large,
        daemon.start_command(
            "exec", "--count", "1", "--wait", "5m", "--silent", *JOB, "gone"
        ) as gone,
    ):
        eventually(lambda: len(queued(daemon)) == 2)
        first = queued(daemon)
        with daemon.start_command("exec", "--count", "1", *wait, "small") as small:
            eventually(lambda: len(queued(daemon)) == 3)
            assert queued(daemon) == [*first, small.pid]
            assert small.stderr is not None
            told = small.stderr.readline()
            assert told.startswith("sentinel: waiting for 1 GPU (request ")
            assert told.endswith(", place 3 in the queue)\n")
            user = pwd.getpwuid(os.getuid()).pw_name
            reserved = f"are reserved by {user} ({held.id}: maintenance)"
            assert small.stderr.readline() == f"  GPU 0-1 {reserved}\n"
            for place, pid in enumerate(first, 1):
                before = small.stderr.readline()
                assert before.startswith(f"  before it, at place {place}: ")
                assert f" of {user} (" in before
                assert f" {pid}) has been waiting for " in before
            shown = json.loads(daemon.run("reserve", "--list", "--json"))["queue"]
            assert [one["place"] for one in shown] == [1, 2, 3]
            assert "queue 3: " in daemon.run("status")

            gone.kill()
            eventually(lambda: gone.pid not in queued(daemon))
            # The API process ends, and each client returns to its place.
            daemon.child("sentinel: api").send_signal(signal.SIGKILL)
            eventually(lambda: queued(daemon) == [large.pid, small.pid])

            daemon.client.cancel_reservation(held.id)
            assert read_line(large) == "large"
            assert queued(daemon) == [small.pid]
            large.kill()
            assert read_line(small) == "small"
        log = [json.loads(line) for line in daemon.places.log.read_text().splitlines()]
        names = [one["event"] for one in log]
        assert names.count("reservation.queued") == 3, "once for each"
        assert names.count("reservation.left") == 1
        assert gone.stderr is not None
        assert gone.stderr.read() == ""


#: Becomes another user, sends requests without an end of their wait, and waits for the first
#: response.
WAITS = """
import os, select, socket, sys
uid, number = map(int, sys.argv[1:])
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
many = []
for nth in range(number):
    many.append(socket.socket(socket.AF_UNIX))
    many[-1].connect("sentinel.sock")
    body = b'{"count": 1, "seconds": 60, "wait_s": null}'
    head = f"PUT /v1/reservations/{uid:04}{nth:04} HTTP/1.1\\r\\nHost: x\\r\\n"
    head += f"Content-Type: application/json\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
    many[-1].sendall(head.encode() + body)
(first, *_), *_ = select.select(many, [], [])
answer = b""
while not answer.endswith(b"}"):
    answer += first.recv(65536)
print(answer.decode().splitlines()[-1], flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_users_who_fill_the_queue_keep_no_other_user_out(daemon: Daemon) -> None:
    daemon.run("stop")
    daemon.start(1, "--workload", "hold", "--access-users", "operate")
    held = daemon.client.reserve([0], seconds=None)
    waiting: list[subprocess.Popen[str]] = []

    def wait_as(uid: int, number: int) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", WAITS, str(uid), str(number)]
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        where = daemon.places.socket.parent
        waiting.append(subprocess.Popen(words, **pipes, text=True, cwd=where))
        return waiting[-1]

    try:
        for uid in (2001, 2002, 2003):
            assert "has 12 requests in the queue, and" in read_line(wait_as(uid, 13))
        assert "36 of 48 " in read_line(wait_as(2004, 5))
        late = wait_as(2005, 1)
        eventually(lambda: daemon.client.queue()[-1].holder.uid == 2005)
        assert len(queued(daemon)) == 41
        for one in waiting[:-1]:
            one.kill()
        eventually(lambda: len(queued(daemon)) == 1)
        daemon.client.cancel_reservation(held.id)
        assert '"id":"20050000"' in read_line(late)
    finally:
        for one in waiting:
            one.kill()
            one.communicate(timeout=TIMEOUT_S)
