"""Memory that stays after a stressor is reported, and cleared by opening and closing a context."""

from __future__ import annotations

import pytest
from inotify_simple import INotify, flags  # type: ignore[import-untyped]

from tests.harness.gpu_environment import SimulatedHost
from tests.harness.sentinel_process import SentinelProcess, eventually

QUICK = ("--rearm", "300ms", "--poll", "200ms", "--workload", "hold", "--status-every", "1s")

#: A file was created.
CREATED = flags.CREATE | flags.MOVED_TO

pytestmark = pytest.mark.usefixtures("fake_torch")


def inject_leak(simulated: SimulatedHost, sentinel: SentinelProcess) -> None:
    """Leak memory after the stressor's baseline is known."""
    sentinel.wait_for("stressor.ready", gpu=0)
    eventually(lambda: any(event.get("running_s", 0) > 0.5 for event in sentinel.events))
    simulated.registry.inject(simulated.uuid(), "unattributed")


@pytest.mark.long
def test_a_leak_is_reported_and_a_context_is_opened_and_closed(simulated: SimulatedHost) -> None:
    with simulated.sentinel(1, *QUICK) as sentinel, INotify() as watch:
        watch.add_watch(simulated.registry.folder / simulated.uuid(), CREATED)
        inject_leak(simulated, sentinel)
        leak = sentinel.wait_for("gpu.memory_leaked", gpu=0)
        assert leak["bytes"] == 2**28
        sentinel.wait_for("gpu.cleanup_started", gpu=0)
        stopped = sentinel.wait_for("stressor.stopped", gpu=0)
        assert stopped["exit_code"] == 0
        # The stressor or the short-lived context.
        shares = {event.name for event in watch.read(0) if event.name.endswith(".share")}
        assert len(shares) == 2
        assert simulated.held() == 0
        assert sentinel.names().count("stressor.starting") == 1
        simulated.registry.inject(simulated.uuid(), None)
        sentinel.wait_for("stressor.ready", gpu=0, count=2)
        assert "stressor.failed" not in sentinel.names()


@pytest.mark.long
def test_a_newcomer_gets_its_memory_while_a_leak_is_cleared(simulated: SimulatedHost) -> None:
    with simulated.sentinel(1, *QUICK) as sentinel:
        inject_leak(simulated, sentinel)
        sentinel.wait_for("gpu.cleanup_started", gpu=0)
        with simulated.job(share=0.9) as newcomer:
            assert newcomer.got_memory()
            eventually(lambda: not sentinel.stressors())
            newcomer.wait_for_exit()
