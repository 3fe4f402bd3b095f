"""Two daemons with sockets of their own: each has its own state, and both share the host's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sentinel.host import verified_store
from tests.harness.daemon_harness import Daemon, isolated_daemon
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.sentinel_process import eventually

pytestmark = pytest.mark.usefixtures("fake_torch")


@pytest.fixture
def daemons(
    simulated: SimulatedHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Daemon, Daemon]]:
    """Provide a daemon at the default socket and one at a socket of its own, neither started."""
    with ExitStack() as stack:
        usual = stack.enter_context(isolated_daemon(simulated, monkeypatch))
        monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "own.sock"))
        own = Daemon(simulated)
        stack.callback(own.close)
        yield usual, own


@pytest.mark.long
def test_each_keeps_its_reservations_log_and_history_over_a_restart(
    daemons: tuple[Daemon, Daemon], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual, own = daemons
    own.start(2, "--gpus", "1")
    own.client.reserve(["1"], seconds=3600, reason="for me")
    monkeypatch.delenv("SENTINEL_SOCKET")
    usual.start(2, "--gpus", "0")
    usual.client.reserve(["0"], seconds=3600, reason="for you")
    for one, reason in ((usual, "for you"), (own, "for me")):
        assert [held.reason for held in one.client.status().reservations] == [reason]
    usual.close()
    own.close()

    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "own.sock"))
    own.start(2, "--gpus", "1")
    eventually(lambda: own.gpu(1).occupancy == "IDLE")
    (held,) = own.client.status().reservations
    assert (held.reason, [gpu.index for gpu in own.client.status().gpus]) == ("for me", [1])
    assert not own.gpu(1).occupied

    for daemon in daemons:
        names = {path.name for path in daemon.places.state.iterdir()}
        assert {"reservations.json", "history.db", "sentinel.log"} <= names
        started = json.loads(daemon.places.log.read_text().splitlines()[0])
        assert [gpu["index"] for gpu in started["gpus"]] == [int(daemon is own)]
    assert set(verified_store.read(usual.places.shared / verified_store.NAME)) == {
        usual.host.uuid(0),
        usual.host.uuid(1),
    }
    assert not (own.places.state / verified_store.NAME).exists()
    shown = own.run("logs", "--json")
    assert usual.host.uuid(0) not in shown
    assert "for me" in shown
