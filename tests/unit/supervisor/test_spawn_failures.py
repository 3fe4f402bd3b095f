"""A host without descriptors costs a start, and never the supervisor."""

from __future__ import annotations

import errno

import pytest

from sentinel.core.step import Start
from sentinel.protocol.probe import ProbeSpec
from sentinel.protocol.shared_memory import Stamps
from sentinel.protocol.stressor import Failed, FailureKind, MemoryTarget, StandbySpec, StressorSpec
from sentinel.supervisor.child_process import NOT_SPAWNED
from sentinel.supervisor.probe_process import ProbeProcess
from sentinel.supervisor.stressor_pool import StressorPool
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
    assert facts.exit is not None
    assert facts.exit.code == NOT_SPAWNED
    (failed,) = facts.messages
    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.SPAWN
    assert pool.watched_at("GPU-0") == 0.0
    assert pool.collect() == {}


def test_a_probe_without_shared_memory_is_a_failed_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = ProbeProcess(ProbeSpec(poll=1.0, watch_interval=0.025))
    refuse(monkeypatch)
    probe.start(1)
    facts = probe.collect()
    assert facts is not None
    assert facts.exit is not None
    assert facts.exit.code == NOT_SPAWNED
    probe.spare.start(1)
    spare = probe.spare.collect()
    assert spare is not None
    assert spare.exit is not None
    assert probe.close()
    assert probe.close()
