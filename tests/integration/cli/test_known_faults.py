"""A known fault is never "no fault": in the status, health, Slurm's health check and metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel.fleet.drain import PREFIX
from sentinel.host.timed_file import FAULTS
from sentinel.host.verified_store import NAME, StoredWork, save
from sentinel.protocol.views import FaultKind
from tests.harness.burnin_run import CHECKED, BurninRun, plan_of
from tests.harness.daemon_harness import Daemon
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.parameters import mostly_long
from tests.harness.sentinel_process import eventually

PLANT: dict[FaultKind, tuple[Callable[[SimulatedHost], None], str]] = {
    FaultKind.LOST: (lambda host: host.registry.inject(host.uuid(1), "lost"), "has lost it"),
    FaultKind.XID: (
        lambda host: host.registry.throw_xids(host.uuid(1), 48, 95),
        "XID 48: double bit ECC error; XID 95: uncontained memory error",
    ),
    FaultKind.RECOVERY: (
        lambda host: host.registry.inject_figures(host.uuid(1), {"recovery_action": "gpu_reset"}),
        "the driver demands a recovery: gpu reset",
    ),
    FaultKind.UNCORRECTABLE: (
        lambda host: host.registry.inject_figures(host.uuid(1), {"ecc_uncorrected_total": 2}),
        "2 uncorrectable errors of its memory",
    ),
    FaultKind.UNREAD: (
        lambda host: host.registry.inject_figures(
            host.uuid(1), {"ecc_uncorrected_total": None, "remap_failed": None}
        ),
        "its memory errors can no longer be counted",
    ),
}


def plant_fault(daemon: Daemon, kind: FaultKind) -> None:
    """Plant a fault of GPU 1, and wait until all of it is known: each XID is an event."""
    plant, words = PLANT[kind]
    plant(daemon.host)
    eventually(lambda: any(words in fault.text for fault in daemon.gpu(1).faults or ()))


PLAN = plan_of("short", ("first", CHECKED, "seconds = 2"))

#: One kind is tried by the quick tests, each for some seconds with a daemon.
ALL_KINDS = [
    pytest.param(kind, marks=[] if kind is FaultKind.XID else pytest.mark.long)
    for kind in FaultKind
]


@pytest.mark.parametrize("kind", ALL_KINDS)
@mostly_long("flags", [(), ("--paused",)], ids=["", "paused"])
def test_a_known_fault_is_shown_with_its_remedy_also_while_paused(
    daemon: Daemon, kind: FaultKind, flags: tuple[str, ...]
) -> None:
    words = PLANT[kind][1]
    daemon.start(2, *flags)
    daemon.wait_until_read()
    healthy = daemon.run_unchecked("slurm", "healthcheck").out
    assert healthy == f"{PREFIX} no fault on 2 GPUs; the number of GPUs was not checked\n"
    plant_fault(daemon, kind)
    (fault,) = daemon.gpu(1).faults
    assert fault.kind == kind
    assert daemon.gpu(0).faults == ()
    shown = daemon.run("status")
    row = next(line for line in shown.splitlines() if line.split()[:1] == ["1!"])
    assert row.split()[1] == kind
    assert f"GPU 1: {fault.text}: {fault.remedy}" in " ".join(shown.split())
    health = daemon.run_unchecked("health", "--json")
    assert health.code == 1
    assert [gpu["faults"] for gpu in json.loads(health.out)["gpus"]] == [
        [],
        [{"kind": kind, "text": fault.text, "remedy": fault.remedy}],
    ]
    checked = daemon.run("slurm", "healthcheck")
    assert words in checked
    assert "no fault on 1 GPU" in checked
    counters = daemon.run_unchecked("check", "--simulate", "2")
    assert (counters.code, fault.text in " ".join(counters.out.split())) == (1, True)
    # Also without any burn-in, the condition of the node names it.
    npd = daemon.run_unchecked("health", "--npd")
    assert npd.code == 1
    assert "GPU 1 " in npd.out


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize("kind", FaultKind)
def test_no_burn_in_says_no_fault_beside_a_known_one(daemon: Daemon, kind: FaultKind) -> None:
    """By the daemon, and without one when it has ended."""

    def burn_in(name: str) -> tuple[int, str, list[str]]:
        """Run a short burn-in; return its code, its first line and the checks that failed."""
        run = BurninRun(daemon.host, PLAN, gpus=2, name=name, settings=())
        output = daemon.run_unchecked(*run.command()[3:])
        report = json.loads((run.folder / "report.json").read_text())
        failed = [one["id"] for one in report["gpus"][-1]["checks"] if one["status"] == "fail"]
        failed += [one["id"] for one in report["checks"] if one["status"] == "fail"]
        return output.code, report["meaning"], failed

    daemon.start(2)
    daemon.wait_until_read()
    plant_fault(daemon, kind)
    (fault,) = daemon.gpu(1).faults
    code, meaning, failed = burn_in("through")
    assert (code, "no fault was found" in meaning) == (1, False), meaning
    # What the counters show, too, is named by them.
    named = {FaultKind.LOST: "fell off the bus", FaultKind.RECOVERY: "recovery.action gpu_reset"}
    assert named.get(kind, fault.text) in meaning
    assert failed
    daemon.run("stop")
    if kind is FaultKind.XID:
        code, meaning, failed = burn_in("alone")
        assert (code, failed, fault.text in meaning) == (1, ["daemon.findings"], True)
        daemon.run("health", "--simulated", "--acknowledge", "1", "--reason", "reset by hand")
        code, meaning, failed = burn_in("acknowledged")
        assert (code, failed, "no fault was found" in meaning) == (0, [], True)


@pytest.mark.long
def test_a_gpu_that_was_gone_before_the_start_is_named(daemon: Daemon) -> None:
    gone = "GPU-eeeeeeee-0000-0000-0000-000000000000"
    daemon.start(1, "--paused")
    daemon.wait_until_read()
    work = StoredWork(index=1, name="H200", since=100.0, last=200.0)
    save(daemon.places.shared / NAME, {gone: work}, {})
    checked = daemon.run("slurm", "healthcheck")
    assert checked.endswith(f"; here before, and not now: {gone}\n")
    whole = daemon.run("slurm", "healthcheck", "--expect-gpus", "1")
    assert gone not in whole, "there are as many as expected"


@pytest.mark.long
def test_xids_of_applications_alone_are_no_fault(daemon: Daemon) -> None:
    daemon.start(1, "--paused")
    daemon.wait_until_read()
    daemon.host.registry.throw_xids(daemon.host.uuid(0), 13, 31, 43, 45)
    log = Path(daemon.client.status().daemon.log or "")
    eventually(lambda: log.read_text().count("gpu.xid") >= 4)
    assert daemon.gpu().faults == ()
    assert (
        daemon.run("slurm", "healthcheck")
        == f"{PREFIX} no fault on 1 GPU; the number of GPUs was not checked\n"
    )


@pytest.mark.long
def test_a_fault_without_wrong_results_can_be_acknowledged(daemon: Daemon) -> None:
    daemon.start(1, "--paused")
    daemon.wait_until_read()
    daemon.host.registry.throw_xids(daemon.host.uuid(0), 48)
    eventually(lambda: daemon.gpu().faults)
    done = daemon.run("health", "--acknowledge", "0", "--reason", "reset by hand")
    assert "acknowledged faults of GPU 0" in done
    eventually(lambda: daemon.gpu().faults == ())
    again = daemon.run_unchecked("health", "--acknowledge", "0", "--reason", "again")
    assert again.code != 0


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_restart_forgets_no_fault(daemon: Daemon, kind: FaultKind) -> None:
    daemon.start(2, "--paused")
    daemon.wait_until_read()
    plant_fault(daemon, kind)
    before = daemon.gpu(1).faults
    daemon.run("stop")
    # A daemon finds the others out again.
    is_stored = kind in {FaultKind.LOST, FaultKind.XID, FaultKind.UNREAD}
    if is_stored:
        stopped = daemon.run_unchecked("health", "--simulated")
        assert stopped.code == 1
        assert before[0].remedy in stopped.out
        assert daemon.run_unchecked("health", "--simulated", "--npd").code == 1
        counters = daemon.run_unchecked("check", "--simulate", "2")
        named = "gpu.lost" if kind is FaultKind.LOST else before[0].text
        assert (counters.code, named in " ".join(counters.out.split())) == (1, True)
    daemon.start(2, "--paused")
    daemon.wait_until_read()
    if not is_stored:
        eventually(lambda: daemon.gpu(1).faults)
    assert daemon.gpu(1).faults == before
    assert daemon.run_unchecked("health").code == 1


@pytest.mark.long
def test_a_daemon_of_other_gpus_forgets_no_fault(daemon: Daemon) -> None:
    daemon.start(2, "--paused")
    daemon.wait_until_read()
    plant_fault(daemon, FaultKind.XID)
    daemon.run("stop")
    daemon.start(2, "--paused", "--gpus", "0")
    for again in ("while it runs", "after its end"):
        for words in (["health"], ["health", "--npd"], ["check", "--simulate", "2"]):
            simulated = ["--simulated"] if words[0] == "health" else []
            found = daemon.run_unchecked(*words, *simulated)
            assert (found.code, "XID 48" in found.out) == (1, True), (again, words, found)
        daemon.run_unchecked("stop")


@pytest.mark.long
def test_a_daemon_of_other_gpus_takes_an_acknowledgement(daemon: Daemon) -> None:
    daemon.start(2, "--paused")
    daemon.wait_until_read()
    plant_fault(daemon, FaultKind.XID)
    daemon.run("stop")
    daemon.start(2, "--paused", "--gpus", "0")
    uuid = daemon.host.uuid(1)
    done = daemon.run("health", "--acknowledge", uuid, "--reason", "reset by hand")
    assert "acknowledged faults of GPU 1" in done
    eventually(lambda: "XID 48" not in daemon.run_unchecked("health").out)
    daemon.run("stop")
    assert "XID 48" not in daemon.run_unchecked("health", "--simulated").out


@pytest.mark.parametrize("text", ["{", '{"schema_version": 9}'])
def test_a_file_of_faults_that_cannot_be_read_is_not_taken_for_none(
    daemon: Daemon, text: str
) -> None:
    daemon.places.state.mkdir(parents=True, exist_ok=True)
    (daemon.places.state / FAULTS.name).write_text(text)
    assert daemon.run_unchecked("health", "--simulated", "--npd").code == 2
    found = daemon.run_unchecked("health", "--simulated")
    assert found.code == 2
    assert "no file of known faults" in found.err
