"""The order of the signals to a stressor and to what it has forked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from sentinel.protocol.shared_memory import FORKED, STRESSOR_STAMPS, Stamps
from sentinel.protocol.stressor import StandbySpec
from sentinel.supervisor.stressor_pool import StressorPool, _Stressor


@dataclass
class Handle:
    """The handle of a stressor that records the kills."""

    generation: int = 1
    kills: list[str] = field(default_factory=list)

    def kill(self) -> None:
        self.kills.append("group")

    def kill_alone(self) -> None:
        self.kills.append("alone")


@pytest.mark.parametrize(
    ("forked", "order"), [(0.0, ["group"]), (12.5, ["alone"]), (float("nan"), ["group"])]
)
def test_a_stressor_is_killed_before_the_many_processes_that_it_has_forked(
    forked: float, order: list[str]
) -> None:
    """The stressor itself writes that, so any number may be there."""
    handle: Any = Handle()
    stamps = Stamps.create(STRESSOR_STAMPS)
    stamps.set(FORKED, forked)
    pool = StressorPool(lambda _: pytest.fail("nothing starts"), lambda _: (), StandbySpec())
    pool._stressors["GPU-0"] = _Stressor(handle=handle, identity=None, stamps=stamps)
    pool.kill("GPU-0", 1)
    stamps.close()
    assert handle.kills == order
    assert pool._stressors["GPU-0"].killed_at is not None
