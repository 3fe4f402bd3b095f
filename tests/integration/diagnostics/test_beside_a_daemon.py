"""``selftest`` and ``workloads try`` borrow a GPU from the daemon that holds it, and return it."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from sentinel.protocol.api_types import ReservationInfo
from tests.harness.daemon_harness import Daemon
from tests.harness.sentinel_process import eventually

pytestmark = pytest.mark.long

#: More results than a test computes.
ENDLESS = ("--rounds", "100000000", "--flips", "1", "--dtype", "fp32")


def reservation(daemon: Daemon) -> ReservationInfo:
    """Wait for the only reservation."""
    eventually(lambda: len(daemon.client.reservations()) == 1)
    (one,) = daemon.client.reservations()
    return one


@contextlib.contextmanager
def endless_selftest(daemon: Daemon) -> Iterator[subprocess.Popen[str]]:
    with daemon.start_command("workloads", "selftest", "--simulate", "2", *ENDLESS) as process:
        try:
            yield process
        finally:
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            psutil.wait_procs(children, 10)


def test_a_trial_borrows_a_gpu_from_the_daemon_and_returns_it(daemon: Daemon) -> None:
    daemon.start(2)
    daemon.wait_until_occupied(0, 1)
    out = daemon.run("workloads", "try", "hold", "--simulate", "2", "--for", "1s", "--json")
    trial = json.loads(out)
    assert trial["verdict"] == "well"
    log = [json.loads(line) for line in daemon.places.log.read_text().splitlines()]
    (lent,) = [event for event in log if event["event"] == "gpu.reserved"]
    assert lent["gpu"] == trial["gpu"]
    assert lent["reason"] == "sentinel workloads try hold"
    assert lent["bound"]
    assert daemon.client.reservations() == ()
    daemon.wait_until_occupied(0, 1)


def test_a_selftest_holds_its_gpu_until_it_is_killed(daemon: Daemon) -> None:
    daemon.start(2)
    daemon.wait_until_occupied(0, 1)
    with endless_selftest(daemon) as selftest:
        held = reservation(daemon)
        assert held.holder.pid == selftest.pid
        assert held.indices == (0,)
        uuid = daemon.host.uuid(0)

        def is_used() -> bool:
            used = {process.pid for process in daemon.host.registry.processes(uuid)}
            own = psutil.Process(selftest.pid).children(recursive=True)
            return bool(used) and used <= {one.pid for one in own}

        eventually(is_used)
        assert daemon.gpu(0).admin == "RESERVED"
        assert daemon.gpu(1).occupied
    eventually(lambda: daemon.client.reservations() == ())
    daemon.wait_until_occupied(0)


def test_a_gpu_that_the_daemon_cannot_lend_is_reported_with_its_user(daemon: Daemon) -> None:
    daemon.start(2)
    daemon.client.reserve([0], reason="maintenance")
    refused = daemon.run_unchecked("workloads", "selftest", "--simulate", "2", "--wait", "0")
    assert refused.code == 3
    assert "GPU 0 is reserved: maintenance" in refused.err
    assert "--wait" in refused.err
    # Any idle GPU serves a trial.
    out = daemon.run("workloads", "try", "hold", "--simulate", "2", "--for", "1s", "--json")
    assert json.loads(out)["index"] == 1
