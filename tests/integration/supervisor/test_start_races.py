"""Newcomers at moments of a whole start, on a GPU that frees memory late in calls of its driver."""

from __future__ import annotations

import time

import pytest

from sentinel.core.attribution import IDLE_MEMORY_LISTED_BYTES
from sentinel.host.simulation import Timing
from tests.harness.gpu_environment import SimulatedHost, foreign_process
from tests.harness.sentinel_process import SentinelProcess
from tests.harness.timing import MACHINE_SLOWNESS

QUICK = ("--rearm", "300ms", "--rearm-longest", "300ms", "--poll", "200ms")
#: How many times slower than on an H200 the driver and the newcomers are. The time between a
#: newcomer's first memory and its request grows with it, that from evidence to SIGKILL does not: so
#: a busy host decides no race, and a newcomer is refused only if there was no evidence for long.
SLOWDOWN = 15.0 * MACHINE_SLOWNESS
#: From a newcomer's first memory to its request for nearly all.
CONTEXT_S = 0.11 * SLOWDOWN
#: `units` loads some 60 modules, which take most of its start.
TIMING = Timing(
    listing_s=0.045 * SLOWDOWN, release_s=0.1 * SLOWDOWN, module_load_s=0.03 * MACHINE_SLOWNESS
)
#: How many newcomers there are, at equal distances.
MOMENTS = 8
#: A GPU with so much memory in use is not idle, whether its owner is listed yet or not.
NOT_IDLE_BYTES = IDLE_MEMORY_LISTED_BYTES + 2**28


@pytest.mark.long
@pytest.mark.parametrize("standby", ["off", "on"])
def test_newcomers_get_their_memory_at_every_moment_of_a_start(
    simulated: SimulatedHost, standby: str
) -> None:
    simulated.registry.set_timing(simulated.uuid(), TIMING)
    flags = (*QUICK, "--workload", "units", "--standby", standby)
    with simulated.sentinel(1, *flags) as sentinel:
        sentinel.wait_for("stressor.ready")  # the first start reads files that the next ones find
        with foreign_process(simulated.registry, 0, NOT_IDLE_BYTES):
            wait_until_handed_over(sentinel, standby)
        lasts_s = sentinel.wait_for("stressor.ready", count=2)["start_s"]
        with foreign_process(simulated.registry, 0, NOT_IDLE_BYTES):
            wait_until_handed_over(sentinel, standby)
        for number in range(MOMENTS):
            moment = round((number + 0.5) / MOMENTS * lasts_s, 2)
            with simulated.loaded_job(CONTEXT_S) as newcomer:
                starting = sentinel.wait_for("stressor.starting", count=3 + number)
                assert starting["standby"] == (standby == "on")
                time.sleep(moment)  # no event marks it, and no outcome depends on it
                newcomer.start()
                assert newcomer.got_memory(), f"at {moment} s of a start of {lasts_s:.1f} s"
                wait_until_handed_over(sentinel, standby)
        yields = [event for event in sentinel.events if event["event"] == "gpu.yielding"]
    interrupted = [event["stressor"] for event in yields].count("STARTING")
    assert interrupted > MOMENTS / 3, "most newcomers came after the start"


def wait_until_handed_over(sentinel: SentinelProcess, standby: str) -> None:
    """Wait for it and, where there are standbys, until the next one is ready."""
    sentinel.wait_for("gpu.handed_over", count=sentinel.names().count("stressor.starting"))
    if standby == "on":
        sentinel.wait_for_process("sentinel: standby, becomes")
