"""What an earlier daemon has left is restored, and what cannot be is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.config.build import build_config, resolve
from sentinel.config.model import Config
from sentinel.core.decide import first_state
from sentinel.core.node.status import Host, host_view
from sentinel.core.state import State
from sentinel.core.step import Step
from sentinel.host.timed_file import FAULTS, RESERVATIONS, SESSIONS, Clocks
from sentinel.protocol.commands import Caller
from sentinel.protocol.views import FaultKind, KnownFaults, Reservation, Session
from sentinel.supervisor.daemon_files import restore
from sentinel.supervisor.discovery import EarlierFaults
from tests.harness.given_settings import given
from tests.harness.world.gpus import fake_gpu

BY = Caller(via="unix", uid=1001)
GPUS = (fake_gpu(0), fake_gpu(1))
CLOCKS = Clocks(wall=1000.0, monotonic=100.0, boot="another")


def configured(**texts: str) -> Config:
    """Build the settings of a daemon with these texts, by key."""
    values = given({key.replace("__", "."): text for key, text in texts.items()})
    return resolve(build_config(values), (), GPUS)[0]


@pytest.fixture
def state() -> State:
    return first_state(GPUS, 0.0, Config())


def session(name: str, gpu: int, **settings: str) -> Session:
    keys = {key.replace("__", "."): text for key, text in settings.items()}
    return Session(name=name, gpus=(GPUS[gpu].uuid,), settings=keys, by=BY, since=0.0)


def test_reservations_and_sessions_are_restored(tmp_path: Path, state: State) -> None:
    held = Reservation(id="ab", gpus=(GPUS[1].uuid,), count=1, reason="", by=BY, since=0.0)
    RESERVATIONS.write(tmp_path / RESERVATIONS.name, [held], CLOCKS)
    stored = [session("train", 0, workload="hold")]
    SESSIONS.write(tmp_path / SESSIONS.name, stored, CLOCKS)
    found = restore(replace(state, config=configured(power="400W")), tmp_path, EarlierFaults())
    assert list(found.state.reservations) == ["ab"]
    assert list(found.state.sessions) == ["train"]
    own = found.state.config.of(GPUS[0].uuid)
    assert (own.workload, own.power) == ("hold", 400.0)
    assert found.state.config.of(GPUS[1].uuid).workload == "gemm"
    assert found.events == ()


def test_what_cannot_be_restored_is_a_warning_and_no_failure(tmp_path: Path, state: State) -> None:
    (tmp_path / RESERVATIONS.name).write_text("{")
    low = {"throttle__temp_critical_from": "80"}
    SESSIONS.write(tmp_path / SESSIONS.name, [session("a", 0, **low), session("b", 1)], CLOCKS)
    found = restore(
        replace(state, config=configured(throttle__temp_throttled_from="82")),
        tmp_path,
        EarlierFaults(),
    )
    suspended = {name: one.suspended for name, one in found.state.sessions.items()}
    assert suspended["b"] is None
    assert "throttle.temp_critical_from" in str(suspended["a"])
    about = [event.fields["about"] for event in found.events]
    assert about == ["reservations", "sessions"]
    assert "session a: throttle.temp_critical_from" in str(found.events[1].fields["text"])


def test_without_a_state_folder_nothing_is_restored(state: State) -> None:
    assert restore(state, None, EarlierFaults()) == Step(state)


@pytest.mark.parametrize(
    ("written", "now", "expected"),
    [("this", "this", 1), ("this", "next", 0), ("", "", 1), ("this", "", 0)],
)
def test_faults_outlive_a_daemon_and_no_reboot(
    written: str, now: str, expected: int, tmp_path: Path
) -> None:
    path = tmp_path / FAULTS.name
    item = KnownFaults(gpu=GPUS[1], xids=(48, 79), energy_j=12.5)
    FAULTS.write(path, [item], replace(CLOCKS, boot=written))
    found, problem = FAULTS.load(path, replace(CLOCKS, boot=now))
    assert found == (item,) * expected
    assert problem is None


def test_known_faults_are_restored_and_a_missing_gpu_is_lost(tmp_path: Path, state: State) -> None:
    faults = (KnownFaults(gpu=GPUS[0], xids=(79,)), KnownFaults(gpu=GPUS[1], lost=True))
    earlier = EarlierFaults(faults=faults, missing=(GPUS[1],), problem="faults.json: not JSON")
    found = restore(state, tmp_path, earlier)
    first, second = (found.state.gpu_states[gpu.uuid] for gpu in GPUS)
    assert first.fault_xids == {79}
    assert [fault.kind for fault in second.faults] == [FaultKind.LOST]
    assert [event.fields["text"] for event in found.events] == ["faults.json: not JSON"]


def test_a_daemon_keeps_the_faults_of_gpus_that_it_does_not_have(
    tmp_path: Path, state: State
) -> None:
    elsewhere = KnownFaults(gpu=replace(GPUS[1], uuid="GPU-elsewhere"), xids=(48,))
    found = restore(state, tmp_path, EarlierFaults(faults=(elsewhere,)))
    host = Host(pid=1, driver="580", simulated=False)
    assert host_view(found.state, 0.0, host).known_faults == (elsewhere,)
