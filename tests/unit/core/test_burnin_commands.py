"""The burn-in of a daemon: asked for by a client, beside GPUs that go on as before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.config.model import Config
from sentinel.config.plan import parse_plan
from sentinel.core.gpu_state import Fatal, Running
from sentinel.core.state import Orders
from sentinel.protocol.commands import (
    Caller,
    CancelBurnin,
    Configure,
    EarlierWork,
    Level,
    PauseGpus,
    PhaseWork,
    Refusal,
    StartBurnin,
    StopDaemon,
)
from sentinel.protocol.probe import WatchedGpu, XidsWatched
from tests.harness.core_scenarios import send, served
from tests.harness.narrowing import not_none
from tests.harness.parameters import mostly_long
from tests.harness.world import World

PLAN: dict[str, Any] = {
    "spec": "sentinel-plan-v1",
    "name": "short",
    "phase": [
        {"name": "first", "workload": "mixed", "seconds": 5},
        {"name": "second", "workload": "gemm:dtype=fp64", "seconds": 5},
    ],
}
UUID = "GPU-0"
ALICE = Caller(via="unix", uid=1001, level=Level.OPERATE)
BOB = Caller(via="unix", uid=1002, level=Level.OPERATE)


def checking(config: Config | None = None) -> World:
    """Build a daemon with a stressor on each of two GPUs, which check results."""
    own = config or Config(rearm=1.0, rearm_longest=1.0, workload="hold", util=0.5)
    return served(2, own, checks=10)


def one_at_a_time() -> World:
    """Build a daemon that holds one of its two GPUs at a time."""
    config = Config(rearm=1.0, rearm_longest=1.0, workload="hold", max_gpus=1)
    world = World(gpus=2, config=config, with_api=True)
    for fake in world.gpus.values():
        fake.checks = 10
    world.run(lambda: bool(world.events("stressor.ready")))
    return world


def start(world: World, **arguments: object) -> Refusal | None:
    given = {"id": "one", "plan": PLAN, "by": ALICE, **arguments}
    return send(world, StartBurnin, **given)


def plan_of(world: World) -> str | None:
    """Return the plan of the burn-in that clients see, or None."""
    host = world.api.host
    return host.burnin.plan if host is not None and host.burnin is not None else None


def workloads(world: World) -> list[tuple[str | None, object]]:
    """List the GPU and the workload of every start."""
    return [(event.gpu, event.fields["workload"]) for event in world.events("stressor.starting")]


def test_selected_gpus_do_the_plan_and_have_their_settings_again() -> None:
    world = checking()
    assert start(world, gpus=("GPU-1",)) is None
    world.run(lambda: bool(world.events("burnin.run_ended")))
    (begun,) = world.events("burnin.run_started")
    assert [one["uuid"] for one in begun.fields["gpus"]] == ["GPU-1"]  # type: ignore[attr-defined]
    assert world.state.burnin_run is None
    assert world.state.config.each == {}
    world.run(lambda: len(workloads(world)) == 5)
    assert workloads(world)[2:] == [
        ("GPU-1", "mixed"),
        ("GPU-1", "gemm:dtype=fp64"),
        ("GPU-1", "hold"),
    ]
    untouched = world.gpu_state()
    assert isinstance(untouched.stressor, Running)
    assert untouched.generation == 1
    assert not world.state.finished, "the daemon goes on"


def test_a_plan_runs_at_full_speed_and_is_shown() -> None:
    world = checking()
    assert start(world) is None
    world.run(lambda: bool(world.events("burnin.phase_started")))
    assert all(world.state.config.of(uuid).util is None for uuid in ("GPU-0", "GPU-1"))
    world.run(lambda: len(world.events("stressor.ready")) > 2)
    world.run_for(3)
    assert plan_of(world) == "short"
    view = not_none(world.api.views[UUID].burnin)
    assert (view.phase, view.number, view.phases, view.quota_s) == ("first", 1, 2, 5.0)
    assert 0 < view.done_s < 5
    assert view.left_s == pytest.approx(10 - view.done_s)
    assert view.checks > 0
    world.run(lambda: bool(world.events("burnin.run_ended")))
    world.run_for(2)
    assert plan_of(world) is None
    assert world.api.views[UUID].burnin is None


def test_a_gpu_that_is_done_does_not_wait_for_the_others() -> None:
    world = checking()
    assert start(world) is None
    world.run(lambda: len(world.events("stressor.ready")) > 2)
    world.gpus["GPU-1"].checks = 0  # nothing of its work counts
    world.run(lambda: bool(world.events("burnin.ended")))
    world.run_for(10)
    assert workloads(world)[-1] == ("GPU-0", "hold")
    assert world.state.burnin_run is not None
    view = not_none(world.api.views[UUID].burnin)
    assert view.over


def test_one_burn_in_runs_at_a_time_and_the_settings_stay() -> None:
    world = checking()
    assert start(world) is None
    assert start(world) is Refusal.CONFLICT
    assert send(world, Configure, given=()) is Refusal.CONFLICT
    assert len(world.events("burnin.run_started")) == 1


def test_a_cancel_of_a_run_that_is_over_ends_no_other() -> None:
    world = checking()
    assert start(world) is None
    assert send(world, CancelBurnin, by=ALICE, id="former") is Refusal.NOT_FOUND
    world.run_for(3)
    assert not world.events("burnin.run_ended")
    why = "the process of its command died"
    assert send(world, CancelBurnin, by=ALICE, id="one", reason=why) is None
    assert {event.fields["reason"] for event in world.events("burnin.ended")} == {why}


@pytest.mark.parametrize(
    ("by", "refused"),
    [
        (ALICE, None),
        (BOB, Refusal.FORBIDDEN),
        (Caller(via="unix", uid=0, user="root", level=Level.OWN), None),
    ],
)
def test_its_owner_and_administrators_cancel_it(by: Caller, refused: Refusal | None) -> None:
    world = checking()
    assert send(world, CancelBurnin, by=by) is Refusal.NOT_FOUND
    assert start(world) is None
    world.run(lambda: len(world.events("stressor.ready")) > 2)
    assert send(world, CancelBurnin, by=by) is refused
    world.run_for(3)
    assert bool(world.events("burnin.run_ended")) == (refused is None)
    reasons = [event.fields["reason"] for event in world.events("burnin.ended")]
    assert reasons == ([] if refused else [f"cancelled by {by.user or 'user 1001'}"] * 2)


@mostly_long(
    "arguments, refused",
    [
        ({"gpus": ("GPU-7",)}, Refusal.NO_SUCH_GPU),
        ({"plan": {**PLAN, "phase": []}}, Refusal.INVALID),
        ({"plan": {**PLAN, "colour": "red"}}, Refusal.INVALID),
        ({"done": {UUID: EarlierWork(phase=3)}}, Refusal.INVALID),
        ({"done": {UUID: EarlierWork(phase=-1)}}, Refusal.INVALID),
        ({"gpus": ("GPU-1",), "done": {UUID: EarlierWork(phase=1)}}, Refusal.INVALID),
        *(
            ({"done": {UUID: EarlierWork(phase=0, work=work)}}, Refusal.INVALID)
            for work in (
                PhaseWork(patterns=-1),  # the smallest number of no patterns
                PhaseWork(seconds=1e308, uncounted=1e308),  # a view with an infinite sum
                PhaseWork(iterations=10**4000),
                PhaseWork(checks=-1),
                PhaseWork(covered={"zeros": -5}, patterns=1),
                PhaseWork(share=1.5),
                PhaseWork(retained=-0.5),
            )
        ),
    ],
    quick=5,
)
def test_a_wrong_order_changes_nothing(arguments: dict[str, object], refused: Refusal) -> None:
    world = checking()
    assert start(world, **arguments) is refused
    assert world.state.burnin_run is None
    assert world.state.config.each == {}


def test_each_gpu_goes_on_where_it_was() -> None:
    world = checking()
    half = PhaseWork(seconds=4.0, longest=4.0, checks=7, stretch=4.0)
    done = {UUID: EarlierWork(phase=1, work=half), "GPU-1": EarlierWork(phase=2)}
    assert start(world, done=done) is None
    world.run(lambda: world.state.burnin_run is None)
    phases = [
        (event.gpu, event.fields["phase"], event.fields["left_s"])
        for event in world.events("burnin.phase_started")
    ]
    assert phases == [(UUID, "second", 1.0)], "the other GPU has done everything"
    (ended,) = world.events("burnin.phase_ended")
    fields: dict[str, Any] = dict(ended.fields)
    assert 5.0 <= fields["seconds"] < 7.0, "the earlier seconds count"
    assert fields["checks"] > 7
    assert fields["longest"] == 4.0, "an earlier stretch is over"


def test_a_monitor_refuses() -> None:
    world = World(config=Config(dry_run=True), with_api=True)
    world.run_for(2)
    assert start(world) is Refusal.CONFLICT


def test_a_shutdown_ends_it_with_the_reason() -> None:
    world = checking()
    assert start(world) is None
    world.run(lambda: len(world.events("stressor.ready")) > 2)
    assert send(world, StopDaemon, by=ALICE) is None
    world.run(lambda: world.state.finished)
    assert [event.fields["reason"] for event in world.events("burnin.ended")] == [
        "requested by user 1001"
    ] * 2
    assert len(world.events("burnin.run_ended")) == 1


def planned(phases: int, **phase: object) -> Config:
    """Build the settings of a daemon that goes through a plan of its own again and again."""
    table = {
        **PLAN,
        "name": "own",
        "phase": [
            {"name": f"own-{number}", "workload": "mixed", "seconds": 5, **phase}
            for number in range(phases)
        ],
    }
    plan = parse_plan(table, "the plan")
    return Config(rearm=1.0, rearm_longest=1.0, workload="mixed", plan=plan)


@mostly_long("phases", [1, 5])
def test_a_gpu_that_is_done_goes_on_with_the_plan_of_the_daemon(phases: int) -> None:
    world = checking(planned(phases))
    assert start(world) is None
    world.gpus["GPU-1"].checks = 0  # nothing of its work counts
    world.run(lambda: bool(world.events("burnin.ended")))
    world.run_for(20)
    begun = [event.fields["phase"] for event in world.events("burnin.phase_started")]
    assert begun.count("own-0") > 2, "the plan of the daemon goes on, on the GPU that is done"
    view = not_none(world.api.views[UUID].burnin)
    assert (view.plan, view.over) == ("short", True)
    world.gpus["GPU-1"].checks = 10
    world.run(lambda: bool(world.events("burnin.run_ended")))
    assert world.state.burnin_run is None
    assert all(world.state.config.of(uuid).plan == world.state.config.plan for uuid in world.gpus)


def test_a_cancellation_leaves_the_plans_of_other_gpus() -> None:
    world = checking(planned(3))
    assert start(world, gpus=("GPU-1",)) is None
    world.run_for(1)
    assert send(world, CancelBurnin, by=ALICE) is None
    assert [event.gpu for event in world.events("burnin.ended")] == ["GPU-1"]


def test_a_shutdown_ends_a_repeated_plan_once() -> None:
    world = checking(planned(3))
    assert send(world, StopDaemon, by=ALICE) is None
    world.run(lambda: world.state.finished)
    assert sorted(str(event.gpu) for event in world.events("burnin.ended")) == ["GPU-0", "GPU-1"]


def test_a_burn_in_forms_no_group_with_the_plan_of_the_daemon() -> None:
    config = planned(1, together=True)
    world = checking(config)
    table = {
        **PLAN,
        "name": "own",
        "phase": [{"name": "own-0", "workload": "mixed", "seconds": 5, "together": True}],
    }
    assert start(world, plan=table, gpus=("GPU-1",)) is None
    world.run(lambda: bool(world.events("burnin.run_ended")))
    last = [event for event in world.events("burnin.grouped") if event.gpu == "GPU-1"][-1]
    assert last.fields["members"] == (1,)


def put(world: World, **changes: Any) -> None:
    """Change the state of GPU 0."""
    gpu_states = dict(world.state.gpu_states)
    gpu_states[UUID] = replace(gpu_states[UUID], **changes)
    world.state = world.state.with_gpu_states(gpu_states)


def test_a_failure_of_the_former_workload_gives_no_phase_up() -> None:
    world = checking()
    world.gpus[UUID].child = None
    failed = world.state.gpu_states[UUID].launch.at + 1
    put(world, stressor=Fatal(reason="the former workload is broken"), failures=(failed,))
    assert start(world) is None
    world.run(lambda: bool(world.events("burnin.run_ended")))
    ended = [(event.gpu, event.fields["given_up"]) for event in world.events("burnin.phase_ended")]
    assert sorted(ended) == [("GPU-0", None)] * 2 + [("GPU-1", None)] * 2


@pytest.mark.parametrize("during", [False, True])
def test_only_an_error_of_the_burn_in_ends_it_at_once(during: bool) -> None:  # noqa: FBT001
    world = checking()
    findings = replace(world.state.gpu_states[UUID].findings, total=1)
    put(world, findings=findings)
    assert start(world, fail_fast=True) is None
    if during:
        world.run(lambda: bool(world.events("burnin.phase_started")))
        put(world, findings=replace(findings, total=2))
    world.run(lambda: bool(world.events("burnin.run_ended")))
    reasons = {event.gpu: event.fields["reason"] for event in world.events("burnin.ended")}
    assert reasons == {
        "GPU-0": "an error was found (--fail-fast)" if during else None,
        "GPU-1": None,
    }


def test_it_waits_for_a_driver_that_was_released() -> None:
    world = checking()
    assert start(world) is None
    world.run(lambda: len(world.events("stressor.ready")) > 2)
    root = Caller(via="unix", uid=0, level=Level.OWN)
    assert send(world, PauseGpus, by=root, release=True, seconds=90.0) is None
    world.run(lambda: bool(world.events("burnin.run_ended")), within=200)
    assert [event.fields["reason"] for event in world.events("burnin.ended")] == [None, None]


def test_no_group_is_formed_and_broken_up_while_nothing_may_start() -> None:
    world = World(gpus=2, config=Config(rearm=1.0, rearm_longest=1.0, leave_idle=2), with_api=True)
    world.run_for(5)
    table = {
        **PLAN,
        "phase": [{"name": "all", "workload": "mixed", "seconds": 5, "together": True}],
    }
    assert start(world, plan=table) is None
    for _ in range(4):
        world.run_for(5)
        world.newcomer(1)
        world.run_for(5)
        world.at(1).foreign.clear()
    world.run_for(5)
    assert world.events("stressor.starting") == []
    assert world.events("burnin.phase_ended") == []


def test_its_gpus_come_first_where_few_may_be_held() -> None:
    world = one_at_a_time()
    assert start(world, gpus=("GPU-1",)) is None
    world.run(lambda: bool(world.events("burnin.run_ended")), within=120)
    assert [event.fields["reason"] for event in world.events("burnin.ended")] == [None]
    world.run(lambda: workloads(world)[-1][1] == "hold")


def test_a_burnin_leaves_the_other_places_under_the_limit_to_other_gpus() -> None:
    config = Config(rearm=1.0, rearm_longest=1.0, workload="hold", max_gpus=2)
    world = World(gpus=3, config=config, with_api=True)
    for fake in world.gpus.values():
        fake.checks = 10
    world.run(lambda: len(world.events("stressor.ready")) == 2)
    first, second = (event.gpu for event in world.events("stressor.ready"))
    (third,) = set(world.gpus) - {first, second}
    assert start(world, gpus=(third,)) is None
    world.run(lambda: bool(world.events("burnin.run_ended")), within=120)
    assert {event.gpu for event in world.events("gpu.released")} == {second, third}


def test_a_phase_together_has_groups_of_as_many_gpus_as_may_be_held() -> None:
    world = one_at_a_time()
    phase = {"name": "links", "workload": "links", "seconds": 5, "together": True}
    assert start(world, plan={**PLAN, "phase": [phase]}) is None
    world.run(lambda: bool(world.events("burnin.run_ended")), within=120)
    assert [event.fields["reason"] for event in world.events("burnin.ended")] == [None, None]
    assert [event.fields["members"] for event in world.events("burnin.grouped")] == [(0,), (1,)]


def test_a_paused_daemon_says_why_nothing_happens() -> None:
    world = checking()
    assert send(world, PauseGpus) is None
    world.run_for(5)
    assert start(world) is None
    world.run_for(5)
    view = not_none(world.api.views[UUID].burnin)
    assert view.waiting == "paused until sentinel resume"


def test_a_run_ends_once_its_stressors_have_ended_and_reports_each_exit() -> None:
    world = checking()
    assert start(world) is None
    world.run(lambda: len(world.events("stressor.ready")) > 2)
    for fake in world.gpus.values():
        assert fake.child is not None
        fake.child.unresponsive = True
    pids = {uuid: fake.child.pid for uuid, fake in world.gpus.items() if fake.child is not None}
    assert send(world, CancelBurnin, by=ALICE) is None
    world.run_for(0.3)
    assert world.events("burnin.ended")
    assert not world.events("burnin.run_ended"), "their last results are of the run"
    world.run(lambda: bool(world.events("burnin.run_ended")))
    exits = {
        event.gpu: event.fields["values"]
        for event in world.events("burnin.measured")
        if event.fields["kind"] == "StressorExit"
    }
    assert {uuid: one["pid"] for uuid, one in exits.items()} == pids  # type: ignore[index]


def watched(world: World) -> list[tuple[str | None, object]]:
    """List the windows of XIDs that were reported."""
    found = world.events("burnin.measured")
    return [(one.gpu, one.fields["values"]) for one in found if one.fields["kind"] == "XidsWatched"]


def test_the_windows_of_xids_are_reported_at_a_break_and_at_the_end() -> None:
    world = checking()

    def confirm(since: float) -> None:
        gpus = (WatchedGpu(uuid=UUID, since=since),)
        world.probe.xids_watched = XidsWatched(at=world.now, gpus=gpus)
        world.run_for(0.1)

    confirm(1.0)
    confirm(2.0)
    assert watched(world) == [], "nothing is recorded without a burn-in"
    assert start(world) is None
    at = world.now
    confirm(2.0)
    confirm(3.0)
    ((gpu, values),) = watched(world)
    assert (gpu, values) == (UUID, {"first": 2.0, "last": pytest.approx(at, abs=0.1)})
    at = world.now
    assert send(world, CancelBurnin, by=ALICE) is None
    (_, (gpu, values)) = watched(world)
    assert (gpu, values) == (UUID, {"first": 3.0, "last": pytest.approx(at, abs=0.1)})


def test_a_daemon_for_burn_ins_occupies_nothing_else_and_counts_its_time_from_their_start() -> None:
    config = Config(rearm=1.0, run_for=4.0)
    world = World(gpus=2, config=config, orders=Orders(burnin_only=True), with_api=True)
    world.run_for(10)
    assert not world.events("stressor.starting")
    assert start(world) is None
    world.run(lambda: world.state.finished)
    (stopping,) = world.events("sentinel.stopping")
    assert stopping.fields["reason"] == "its time is over"
    assert len(world.events("burnin.ended")) == 2
    assert workloads(world)
    assert {workload for _, workload in workloads(world)} == {"mixed"}
