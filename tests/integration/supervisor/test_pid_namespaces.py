"""Sentinel and newcomers in separate PID namespaces, as in containers."""

from __future__ import annotations

import pytest

from tests.harness.gpu_environment import GpuHost, SimulatedHost
from tests.harness.isolation import OWN_NAMESPACE, needs_namespaces
from tests.harness.timing import TIMEOUT_S

QUICK = ("--rearm", "300ms", "--rearm-longest", "300ms", "--poll", "200ms", "--workload", "hold")

pytestmark = [pytest.mark.long, needs_namespaces, pytest.mark.usefixtures("fake_torch")]


def test_a_newcomer_outside_sentinels_namespace_gets_its_memory(host: GpuHost) -> None:
    """Its PID is not listed there; only memory shows its start, presence and exit."""
    with host.sentinel(1, *QUICK, within=OWN_NAMESPACE) as sentinel:
        sentinel.wait_for("stressor.ready", gpu=0)
        learned = sentinel.wait_for("gpu.identity", gpu=0)
        assert learned["mode"] == "direct"
        assert "PID namespace" in learned["hidden"]
        with host.job() as newcomer:
            assert newcomer.got_memory()
            handed = sentinel.wait_for("gpu.handed_over", gpu=0)
            assert handed["evidence"] == "memory"
            assert handed["processes"] == []
            busy = sentinel.wait_for("gpu.busy", gpu=0)
            assert "idle.memory" in busy["reason"]
            newcomer.wait_for_exit()
        sentinel.wait_for("stressor.ready", gpu=0, count=2)
        assert sentinel.names().count("gpu.yielding") == 1


def test_a_newcomer_within_a_namespace_gets_its_memory(host: GpuHost) -> None:
    with host.sentinel(1, *QUICK) as sentinel:
        sentinel.wait_for("stressor.ready", gpu=0)
        assert sentinel.wait_for("gpu.identity", gpu=0)["complete"]
        with host.job(within=OWN_NAMESPACE) as newcomer:
            assert newcomer.got_memory()
            handed = sentinel.wait_for("gpu.handed_over", gpu=0)
            (process,) = sentinel.wait_for("gpu.busy", gpu=0)["processes"]
            assert process["pid"] != newcomer.pid, "the host's PID, and not that of unshare"
            assert handed["exit_s"] <= handed["memory_back_s"]
            newcomer.wait_for_exit()
        sentinel.wait_for("stressor.ready", gpu=0, count=2)


def test_a_gpu_that_a_hidden_process_uses_is_never_occupied(host: GpuHost) -> None:
    with host.job(share=0.05, stay=600) as first:
        assert first.got_memory()
        flags = (*QUICK, "--status-every", "1s")
        with host.sentinel(1, *flags, within=OWN_NAMESPACE) as sentinel:
            status = sentinel.wait_for("gpu.status", gpu=0, count=2)
            assert status["rule"] == "idle.memory"
            first.kill()
            sentinel.wait_for("stressor.ready", gpu=0)
            assert "gpu.yielding" not in sentinel.names()


# --- drivers that list our own processes under other PIDs --------------------------------------


@pytest.mark.parametrize(
    ("fault", "within", "mode"),
    [("leaks", OWN_NAMESPACE, "mapped"), ("blind", OWN_NAMESPACE, "blind"), ("blind", (), "blind")],
)
def test_a_driver_that_does_not_list_the_stressor_is_supported(
    simulated: SimulatedHost, fault: str, within: tuple[str, ...], mode: str
) -> None:
    simulated.registry.inject(simulated.uuid(), fault)
    with simulated.sentinel(1, *QUICK, within=within) as sentinel:
        sentinel.wait_for("stressor.ready", gpu=0)
        identity = sentinel.wait_for("gpu.identity", gpu=0)
        assert (identity["mode"], identity["complete"]) == (mode, False)
        with simulated.job(share=0.05, stay=TIMEOUT_S) as newcomer:
            assert newcomer.got_memory()
            assert sentinel.wait_for("gpu.handed_over", gpu=0)["evidence"] == "memory"
            assert "idle.memory" in sentinel.wait_for("gpu.busy", gpu=0)["reason"]
            newcomer.kill()
        sentinel.wait_for("stressor.ready", gpu=0, count=2)
        assert sentinel.names().count("gpu.yielding") == 1
