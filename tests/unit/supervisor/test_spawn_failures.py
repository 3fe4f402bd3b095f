"""What a start or a message meets: a host without descriptors, a child that is gone."""

from __future__ import annotations

import errno
import socket

import pytest

from sentinel.core.step import Start
from sentinel.protocol.probe import ProbeSpec, Standby
from sentinel.protocol.shared_memory import Stamps
from sentinel.protocol.stressor import Failed, FailureKind, MemoryTarget, StandbySpec, StressorSpec
from sentinel.protocol.views import LogRecord
from sentinel.supervisor.api_process import ApiChild
from sentinel.supervisor.child_process import NOT_SPAWNED, ChildHandle, Received
from sentinel.supervisor.probe_process import ProbeProcess
from sentinel.supervisor.stressor_pool import StressorPool
from tests.harness.narrowing import not_none
from tests.harness.world.gpus import fake_gpu

SPEC = StressorSpec(
    gpu=fake_gpu(0),
    memory=MemoryTarget(share=0.5),
    chunk=1,
    workload="hold",
    options={},
    lease=3.0,
)


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every creation of shared memory fail."""

    def fail(_: int) -> Stamps:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Stamps, "create", fail)


def test_a_stressor_without_shared_memory_is_a_failed_spawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse(monkeypatch)
    pool = StressorPool(lambda _: SPEC, lambda _: (), StandbySpec())
    pool.start(fake_gpu(0), Start(uuid="GPU-0", generation=1))
    facts = pool.collect()["GPU-0"]
    assert not_none(facts.exit).code == NOT_SPAWNED
    (failed,) = facts.messages
    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.SPAWN
    assert pool.watched_at("GPU-0") == 0.0
    assert pool.collect() == {}


def test_a_probe_without_shared_memory_is_a_failed_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = ProbeProcess(ProbeSpec(poll=1.0, watch_interval=0.025))
    refuse(monkeypatch)
    probe.start(1)
    facts = not_none(probe.collect())
    assert not_none(facts.exit).code == NOT_SPAWNED
    probe.spare.start(1)
    spare = not_none(probe.spare.collect())
    assert spare.exit is not None
    assert probe.close()
    assert probe.close()


def test_a_spare_probe_that_was_killed_becomes_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(ChildHandle, "start", lambda _, number, *__: started.append(number))
    monkeypatch.setattr(ChildHandle, "collect", lambda _: Received(messages=(Standby(),)))
    probe = ProbeProcess(ProbeSpec(poll=1.0, watch_interval=0.025))
    probe.spare.start(1)
    assert probe.spare.collect() is not None
    probe.spare.kill(0)  # as when the driver is released
    probe.start(2)
    assert started == [1, 2]
    assert probe.close()


def test_a_record_for_an_api_process_that_is_reaped_meanwhile_is_no_error() -> None:
    child = ApiChild.__new__(ApiChild)
    child.channel, other = socket.socketpair()
    record = LogRecord(number=1, event={})
    assert child.send(record)
    child._room.close()  # by the loop, while the thread of the log sends
    assert child.send(record)
    child.channel.close()
    assert child.send(record)
    other.close()
