"""What daemons that have ended knew against GPUs is found, wherever they kept it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.cli.daemon.acknowledgement import OwnedGpu, acknowledge
from sentinel.cli.daemon.known_cards import cards_of
from sentinel.cli.daemon.known_faults import (
    acknowledge_stored,
    known_findings,
    stored_faults,
    why_forgotten,
)
from sentinel.errors import ConfigError, ConflictError, NoSuchGpuError, SentinelError
from sentinel.host.timed_file import FAULTS, Clocks
from sentinel.host.verified_store import NAME, StoredWork, save
from sentinel.protocol.api_types import Outcome
from sentinel.protocol.views import KnownFaults, VerifiedCounts
from tests.harness.stub_daemon import GPU, STATUS, Reply, problem, stub_daemon
from tests.harness.world.gpus import fake_gpu


def store(folder: Path, *faults: KnownFaults) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    FAULTS.write(folder / FAULTS.name, faults, Clocks.read())


def test_daemons_with_sockets_of_their_own_are_no_side_door(tmp_path: Path) -> None:
    gpu, other = fake_gpu(0), fake_gpu(1)
    store(tmp_path, KnownFaults(gpu=gpu, xids=(95,), energy_j=9.0))
    store(tmp_path / "sockets" / "a", KnownFaults(gpu=gpu, xids=(48,), energy_j=5.0, lost=True))
    store(tmp_path / "sockets" / "b", KnownFaults(gpu=other, xids=(79,)))
    assert stored_faults(tmp_path) == (
        KnownFaults(gpu=gpu, xids=(48, 95), energy_j=5.0, lost=True),
        KnownFaults(gpu=other, xids=(79,)),
    )
    assert set(known_findings(tmp_path, [])) == {gpu.uuid, other.uuid}
    acknowledge_stored(tmp_path, [gpu.uuid, other.uuid])
    assert stored_faults(tmp_path) == (KnownFaults(gpu=gpu, energy_j=5.0, lost=True),)


@pytest.mark.parametrize("name", ["sockets", "sockets/file"])
def test_what_is_no_folder_of_a_daemon_is_left_out(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert stored_faults(tmp_path) == ()


def test_a_damaged_file_of_faults_hides_no_wrong_results_beside_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon of other GPUs runs; what the file of verified work has still counts."""
    work = StoredWork(index=1, name="H200", since=1.0, total=VerifiedCounts(errors=3))
    save(tmp_path / NAME, {"GPU-1": work}, {})
    (tmp_path / FAULTS.name).write_text("{")
    socket = tmp_path / "sentinel.sock"
    with stub_daemon(socket) as daemon:
        daemon.replies["GET /v1/status"] = Reply({**STATUS, "gpus": [{**GPU, "uuid": "GPU-0"}]})
        assert known_findings(tmp_path, [str(socket)])["GPU-1"].wrong == 3
        cards = {card.uuid: card for card in cards_of(tmp_path, [str(socket)])}
        findings = known_findings(tmp_path, [str(socket)])
    assert (cards["GPU-0"].lost, findings["GPU-0"].unknown) == (None, None), "its daemon knows it"
    for unknown in (cards["GPU-1"].lost, findings["GPU-1"].unknown, findings[""].unknown):
        assert "no file of known faults" in (unknown or "")
    assert cards["GPU-1"].verified is not None
    assert cards["GPU-1"].verified.wrong == 3
    with pytest.raises(ConfigError, match="no file of known faults") as raised:
        known_findings(tmp_path, [])
    assert "remove it" in raised.value.remedy


def test_faults_of_this_boot_that_were_set_aside_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "sockets" / "a" / FAULTS.name
    path.parent.mkdir(parents=True)
    path.write_text("{")
    faults, _ = FAULTS.load(path, Clocks.read())
    assert (faults, path.exists()) == ((), False)
    assert f"{path}.bad is damaged" in (why_forgotten(tmp_path) or "")
    assert f"{path}.bad is damaged" in (known_findings(tmp_path, [])[""].unknown or "")
    os.utime(f"{path}.bad", (1.0, 1.0))
    assert why_forgotten(tmp_path) is None, "of an earlier boot"


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [("conflict", 409, ConflictError), ("no_such_gpu", 404, NoSuchGpuError)],
)
def test_the_faults_of_an_ended_daemon_are_acknowledged_beside_another(
    tmp_path: Path, code: str, status: int, error: type[SentinelError]
) -> None:
    gpu = fake_gpu(1)
    store(tmp_path / "sockets" / "a", KnownFaults(gpu=gpu, xids=(48,)))
    socket = tmp_path / "sentinel.sock"

    def acknowledge_it() -> Outcome:
        card = OwnedGpu(uuid=gpu.uuid, index=1, serial=None, present=False)
        return acknowledge([gpu.uuid], "reset", [card], [str(socket)], tmp_path / NAME)

    with stub_daemon(socket) as daemon:
        daemon.replies["POST /v1/acknowledge"] = problem(code, "it has none", status)
        assert gpu.uuid in acknowledge_it().text
        assert stored_faults(tmp_path) == ()
        with pytest.raises(error):
            acknowledge_it()
