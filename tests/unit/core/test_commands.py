"""Commands: each is applied completely or refused, and answered."""

from __future__ import annotations

import itertools

import pytest

from sentinel.config.model import Config
from sentinel.core.gpu_state import Fatal, Stopped
from sentinel.core.node.serving_processes import LOST_AFTER_S
from sentinel.core.state import Orders
from sentinel.errors import ExitCode
from sentinel.protocol.commands import (
    Caller,
    CancelGrant,
    Command,
    Configure,
    EndSession,
    Extend,
    Given,
    GrantKind,
    PauseGpus,
    Refusal,
    Reserve,
    ResumeGpus,
    StopDaemon,
)
from sentinel.protocol.stressor import Failed, FailureKind
from sentinel.protocol.views import Phase
from tests.harness.core_scenarios import held, reply_to, send, served
from tests.harness.world import GIB, World

HOUR = 3600.0
ALICE = Caller(via="unix", uid=1001, pid=4711, started=99)


def free(world: World, index: int) -> bool:
    return isinstance(world.gpu_state(index).stressor, Stopped)


def phase(world: World) -> str:
    assert world.api.host is not None
    return str(world.api.host.phase)


def watches(world: World) -> bool:
    return world.probe.alive


def reply_text(world: World) -> str:
    return world.api.replies[-1].text


# --- the whole daemon ------------------------------------------------------------------------


def test_a_daemon_starts_nothing_before_the_api_process_has_served() -> None:
    world = World(orders=Orders(explain=True), daemon=True)
    world.api.serving = False
    world.run_for(5)
    assert world.spawner.started == []
    assert world.events("gpu.verdict")[-1].fields["rule"] == "api"
    world.api.serving = True
    world.run(lambda: world.events("stressor.ready"))


def test_in_the_foreground_gpus_are_occupied_although_the_api_process_fails() -> None:
    world = World(with_api=True)
    world.api.fails_with = "ModuleNotFoundError: No module named 'uvicorn'"
    world.run(lambda: world.events("stressor.ready"))
    world.run_for(60)
    assert held(world) == [0]
    failed = world.events("service.failed")
    assert {event.fields["reason"] for event in failed} == {world.api.fails_with}
    assert [event.fields["pause_s"] for event in failed[:5]] == [0.0, 1.0, 2.0, 4.0, 8.0]


def test_a_daemon_whose_api_process_cannot_start_ends_with_the_reason() -> None:
    world = World(daemon=True)
    world.api.fails_with = "ModuleNotFoundError: No module named 'uvicorn'"
    world.run(lambda: world.state.finished, within=10)
    assert world.spawner.started == []
    (stopping,) = world.events("sentinel.stopping")
    assert stopping.fields["reason"] == f"the API cannot start: {world.api.fails_with}"
    assert world.supervisor.run() is ExitCode.USAGE


def test_an_ordinary_stop_is_a_success_although_the_api_process_failed() -> None:
    world = World(daemon=True)
    world.api.fails_with = "ModuleNotFoundError: No module named 'uvicorn'"
    world.run(lambda: len(world.events("service.failed")) == 2, within=10)
    world.interrupts.pending = ("SIGTERM", False)
    world.run(lambda: world.state.finished, within=10)
    assert world.supervisor.run() is ExitCode.OK


def test_a_daemon_that_cannot_be_reached_releases_its_gpus_until_it_can() -> None:
    world = World(gpus=2, daemon=True)
    world.run(lambda: held(world) == [0, 1])
    lost = world.now
    world.api.fails_with = "OSError: no space left"
    world.run(lambda: world.events("gpu.released"), within=60)
    (released, _) = world.events("gpu.released")
    assert LOST_AFTER_S <= released.at - lost < LOST_AFTER_S + 2
    assert released.fields["reason"] == (
        "the API has not answered for 30 s: OSError: no space left"
    )
    world.run_for(10)
    assert held(world) == []
    world.api.fails_with = None
    world.run(lambda: held(world) == [0, 1], within=60)


def test_a_pause_of_all_releases_every_gpu_and_resume_occupies_them_again() -> None:
    world = served()
    assert send(world, PauseGpus) is None
    world.run(lambda: free(world, 0) and free(world, 1))
    assert world.spawner.killed == [], "they were requested to stop"
    assert not world.state.finished
    world.run_for(30)
    assert held(world) == []
    assert phase(world) == Phase.PAUSED
    assert {view.admin for view in world.api.views.values()} == {"PAUSED"}
    assert send(world, ResumeGpus) is None
    world.run(lambda: held(world) == [0, 1])
    assert phase(world) == Phase.OCCUPYING


def test_a_client_can_stop_the_daemon_and_later_commands_are_refused() -> None:
    world = served()
    assert send(world, StopDaemon, by=ALICE) is None
    assert send(world, ResumeGpus) is Refusal.ENDING
    assert "user 1001" in reply_text(world)
    assert send(world, StopDaemon, by=ALICE) is None, "it does what this asks for"
    assert send(world, StopDaemon, restart=True) is Refusal.ENDING
    world.run(lambda: world.state.finished)
    assert held(world) == []


def test_a_monitor_refuses_to_occupy() -> None:
    world = World(config=Config(dry_run=True), orders=Orders(paused=True), with_api=True)
    world.run(lambda: world.api.host is not None)
    assert send(world, ResumeGpus) is Refusal.CONFLICT
    assert send(world, PauseGpus) is None


def test_a_command_restarts_a_fatal_stressor() -> None:
    world = served(2)
    child = world.child()
    child.outbox.append(Failed(kind=FailureKind.MALFORMED, reason="no function"))
    child.dies_at = world.now
    world.run(lambda: isinstance(world.gpu_state().stressor, Fatal))
    assert send(world, ResumeGpus) is None
    assert reply_text(world) == "resumed GPU 0; GPU 1 was not paused"
    world.run(lambda: held(world) == [0, 1])


# --- pauses ----------------------------------------------------------------------------------


def test_a_pause_frees_one_gpu_and_expires() -> None:
    world = served()
    assert send(world, PauseGpus, gpus=("GPU-1",), seconds=60.0) is None
    world.run(lambda: free(world, 1))
    assert send(world, ResumeGpus, gpus=("GPU-0",)) is None
    assert reply_text(world) == "GPU 0 was not paused"
    began = world.now
    assert held(world) == [0]
    world.run(lambda: held(world) == [0, 1], within=100)
    assert world.now - began > 50
    assert [event.gpu for event in world.events("gpu.resumed")] == ["GPU-1"]


def test_a_resume_ends_a_pause_early_and_another_pause_replaces_one() -> None:
    world = served()
    assert send(world, PauseGpus) is None
    world.run(lambda: held(world) == [])
    world.pass_time(2 * HOUR)
    world.run_for(30)
    assert held(world) == [], "without a duration a pause lasts"
    assert send(world, PauseGpus, gpus=("GPU-0",), seconds=5.0) is None
    assert send(world, ResumeGpus, gpus=("GPU-1",)) is None
    assert reply_text(world) == "resumed GPU 1"
    world.run(lambda: held(world) == [0, 1])
    assert send(world, ResumeGpus) is None
    assert reply_text(world) == "GPU 0, 1 were not paused"


def test_a_released_driver_is_unused_until_it_is_resumed() -> None:
    world = served()
    assert send(world, PauseGpus, release=True) is None
    assert watches(world), "newcomers must be seen while anything is held"
    world.run(lambda: not world.probe.alive)
    assert [place.child for place in world.gpus.values()] == [None, None]
    assert world.api.host is not None
    world.pass_time(HOUR)
    world.run_for(30)
    assert not world.probe.alive
    assert phase(world) == Phase.RELEASED
    assert send(world, ResumeGpus, gpus=("GPU-0",)) is Refusal.INVALID
    assert send(world, ResumeGpus) is None
    assert reply_text(world) == "resumed GPU 0, 1"
    world.run(lambda: held(world) == [0, 1])
    assert "gpu.yielding" not in world.names()
    assert "probe.hung" not in world.names()


def test_a_release_of_the_driver_expires() -> None:
    world = served(1)
    assert send(world, PauseGpus, release=True, seconds=30.0) is None
    world.run(lambda: not world.probe.alive)
    world.run(lambda: held(world) == [0], within=60)


def test_an_invalid_pause_is_refused_with_a_reason() -> None:
    world = served()
    assert send(world, PauseGpus, gpus=("GPU-7",)) is Refusal.NO_SUCH_GPU
    assert "GPU-7" in reply_text(world)
    assert "0 GPU-0, 1 GPU-1" in reply_text(world)
    assert send(world, PauseGpus, seconds=-1.0) is Refusal.INVALID
    both = {"gpus": ("GPU-0",), "release": True}
    assert send(world, PauseGpus, **both) is Refusal.INVALID
    world.run_for(5)
    assert held(world) == [0, 1]
    commands = [event.fields["command"] for event in world.events("command.rejected")]
    assert commands == ["pause gpus"] * 3


def test_the_driver_is_released_only_when_the_last_probe_is_gone() -> None:
    """A probe that hangs in the driver survives SIGKILL."""
    world = served(1)
    dies = world.probe.gone
    vars(world.probe)["gone"] = lambda: False
    assert send(world, PauseGpus, release=True) is None
    world.run(lambda: not world.probe.alive)
    world.run_for(5)
    assert phase(world) != Phase.RELEASED
    assert world.events("driver.released") == []
    vars(world.probe)["gone"] = dies
    world.run(lambda: world.events("driver.released"))
    world.run(lambda: phase(world) == Phase.RELEASED)


def test_no_leak_is_cleared_on_a_paused_gpu() -> None:
    world = served(1)
    assert send(world, PauseGpus) is None
    world.at(0).leaked = 20 * GIB  # when the stressor ends
    world.run(lambda: world.events("gpu.memory_leaked"))
    world.run_for(120)
    assert world.spawner.cleared == []


# --- reservations ----------------------------------------------------------------------------


def keep(world: World, **fields: object) -> tuple[str, ...]:
    """Reserve GPUs, and end the lease as after a stored answer; return the GPUs."""
    assert send(world, Reserve, **fields) is None
    gpus = world.api.replies[-1].gpus
    assert send(world, Extend, kind=GrantKind.RESERVATION, id=fields["id"], kept=True) is None
    return gpus


def test_a_reservation_prefers_free_gpus_and_lasts_until_it_expires() -> None:
    world = served(3)
    assert send(world, PauseGpus, gpus=("GPU-2",)) is None
    world.run(lambda: free(world, 2))
    fields = {"id": "a1", "reason": "demo", "count": 2, "seconds": 60.0}
    assert keep(world, **fields) == ("GPU-2", "GPU-0")
    world.run(lambda: free(world, 0))
    view = world.api.views["GPU-0"]
    assert (view.admin, view.reservation) == ("RESERVED", "a1")
    world.run_for(30)
    assert held(world) == [1]
    world.run(lambda: held(world) == [0, 1], within=60)
    assert world.api.views["GPU-2"].admin == "PAUSED", "pauses are independent"
    assert [event.gpu for event in world.events("gpu.unreserved")] == ["GPU-2", "GPU-0"]
    assert {event.fields["reason"] for event in world.events("gpu.unreserved")} == {"demo"}


def test_a_gpu_in_bad_health_is_reserved_last() -> None:
    world = served(3)
    world.at(0).temperature = 95
    world.run(lambda: free(world, 0))
    assert send(world, Reserve, id="a1", reason="", count=2) is None
    assert world.api.replies[-1].gpus == ("GPU-1", "GPU-2")


@pytest.mark.parametrize("seconds", [HOUR, None])
def test_no_stressor_starts_on_a_reserved_gpu_until_that_is_ended(seconds: float | None) -> None:
    world = served(1)
    keep(world, id="a1", reason="", count=1, seconds=seconds)
    world.run(lambda: free(world, 0))
    world.newcomer()
    world.run_for(60)
    world.at(0).foreign.clear()
    world.run_for(60)
    assert held(world) == []
    assert send(world, CancelGrant, kind=GrantKind.RESERVATION, id="a1") is None
    world.run(lambda: held(world) == [0])


@pytest.mark.parametrize(
    ("fields", "refusal", "text"),
    [
        ({"gpus": ("GPU-0", "GPU-0")}, Refusal.INVALID, "twice"),
        ({"gpus": ("GPU-9",)}, Refusal.NO_SUCH_GPU, "GPU-9"),
        ({"count": 1, "seconds": float("nan")}, Refusal.INVALID, "not a number of seconds"),
        ({"count": 1, "reason": "a\nb"}, Refusal.INVALID, "one line"),
        ({"count": 1, "reason": 201 * "x"}, Refusal.INVALID, "200 characters"),
        ({"count": 1, "id": "taken"}, Refusal.CONFLICT, "taken"),
        (
            {"count": 1, "bound": True, "by": Caller(via="tcp")},
            Refusal.INVALID,
            "nothing can be bound",
        ),
    ],
)
def test_an_invalid_reservation_is_refused_with_a_reason(
    fields: dict[str, object], refusal: Refusal, text: str
) -> None:
    world = served()
    before = {"id": "taken", "reason": "", "gpus": ("GPU-1",), "seconds": HOUR}
    assert send(world, Reserve, **before) is None
    fields = {"id": "new", "reason": "", "seconds": 60.0, **fields}
    assert send(world, Reserve, **fields) is refusal
    assert text in reply_text(world)
    assert list(world.state.reservations) == ["taken"]


@pytest.mark.parametrize("reason", [200 * "x", 100 * "é", 50 * "😀"])
def test_the_longest_reason_is_accepted(reason: str) -> None:
    world = served()
    assert send(world, Reserve, id="a1", reason=reason, count=1) is None
    assert world.state.reservations["a1"].reason == reason


def test_a_refused_reservation_names_the_processes_in_the_way() -> None:
    world = served()
    newcomer = world.newcomer(0)
    world.run(lambda: free(world, 0))
    fields = {"reason": "", "seconds": 60.0}
    assert send(world, Reserve, id="a", gpus=("GPU-0",), **fields) is Refusal.CONFLICT
    assert f"python (pid {newcomer.pid})" in reply_text(world)
    assert send(world, Reserve, id="b", count=2, **fields) is Refusal.CONFLICT
    assert "1 of 2 GPUs can be reserved" in reply_text(world)
    assert send(world, CancelGrant, kind=GrantKind.RESERVATION, id="c") is Refusal.NOT_FOUND


# --- settings --------------------------------------------------------------------------------


def given(**values: str) -> tuple[Given, ...]:
    return tuple(
        Given(key=key.replace("__", "."), text=text, source="a test")
        for key, text in values.items()
    )


def test_a_lower_limit_releases_the_gpus_that_were_started_last_and_names_them() -> None:
    world = served(4)
    assert held(world) == [0, 1, 2, 3]
    assert send(world, Configure, given=given(limits__gpus="3")) is None
    assert reply_text(world) == "the settings were applied; releasing GPU 3"
    assert send(world, Configure, given=given(limits__gpus="1")) is None
    assert world.api.replies[-1].gpus == ("GPU-1", "GPU-2")
    world.run(lambda: held(world) == [0])
    world.run_for(60)
    assert held(world) == [0]
    released = [(event.gpu, event.fields["reason"]) for event in world.events("gpu.released")]
    assert released == [
        ("GPU-3", "at most 3 GPUs may be held (limits.gpus)"),
        ("GPU-1", "at most 1 GPU may be held (limits.gpus)"),
        ("GPU-2", "at most 1 GPU may be held (limits.gpus)"),
    ]
    assert not world.events("stressor.failed")
    assert send(world, Configure, given=given(limits__gpus="3")) is None
    assert reply_text(world) == "the settings were applied"
    world.run(lambda: len(held(world)) == 3)


def test_a_limit_counts_the_gpus_that_are_left_idle() -> None:
    """No more are released than one of the two limits demands."""
    world = served(4)
    assert send(world, Configure, given=given(limits__gpus="2", limits__leave_idle="1")) is None
    assert reply_text(world) == "the settings were applied; releasing GPU 2, 3"


def test_new_settings_apply_to_running_stressors_and_restart_only_affected_ones() -> None:
    world = served(1)
    (first,) = world.spawner.started
    assert send(world, Configure, given=given(util__target="50%", rearm="7s")) is None
    world.run(lambda: world.spawner.paced)
    assert world.spawner.started == [first], "a pace needs no new stressor"
    assert world.state.config.rearm == 7.0
    assert send(world, Configure, given=given(workload="hold")) is None
    world.run(lambda: len(world.spawner.started) == 2 and held(world) == [0])
    assert world.events("stressor.starting")[-1].fields["workload"] == "hold"
    assert world.spawner.killed == []
    assert world.state.config.util is None, "a setting not given has its default"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"memory__target": "lots"}, "a test: "),
        ({"rearm": "7s", "memory__target": "200%"}, "a test: "),
        ({"rearm": "7s", "nonesuch": "1"}, "there is no setting 'nonesuch'"),
        ({"poll": "2s"}, "poll takes effect only at a start"),
        ({"metrics__address": "8766"}, "metrics.address takes effect only at a start"),
        ({"history__size": "1GiB"}, "history.size takes effect only at a start"),
    ],
)
def test_settings_are_applied_completely_or_not_at_all(values: dict[str, str], text: str) -> None:
    world = served(1)
    before = world.state.config
    assert send(world, Configure, given=given(**values)) is Refusal.INVALID
    assert text in reply_text(world)
    world.run_for(5)
    assert world.state.config == before
    assert len(world.spawner.started) == 1


def test_a_new_run_time_counts_from_its_command() -> None:
    world = served(1)
    world.run_for(60)
    assert send(world, Configure, given=given(**{"for": "30s"})) is None
    world.run_for(20)
    assert world.state.shutdown is None
    world.run(lambda: world.state.finished, within=20)


def test_a_shorter_interval_of_the_status_counts_from_its_command() -> None:
    world = served(1)
    assert send(world, Configure, given=given(status_every="1h")) is None
    world.run_for(90)
    before = len(world.events("gpu.status"))
    assert send(world, Configure, given=given(status_every="2s")) is None
    world.run_for(5)
    assert len(world.events("gpu.status")) == before + 2


def test_no_stressor_starts_on_leaked_memory_after_new_settings() -> None:
    """New settings cause no re-arm time, but the GPU must be idle all the same."""
    world = served(1)
    assert send(world, Configure, given=given(workload="hold")) is None
    world.at(0).unlisted = 50 * GIB
    world.pass_time(7.0)
    world.run_for(10)
    assert len(world.events("stressor.starting")) == 1, "apart from children that clear the leak"
    world.at(0).unlisted = 0
    world.run(lambda: held(world) == [0])


def test_settings_that_prevent_every_stressor_can_be_corrected() -> None:
    """At the start of the daemon they would end it."""
    world = served(1)
    assert send(world, Configure, given=given(workload="gemm:size=7")) is None
    world.run(lambda: len(world.spawner.started) == 2)
    child = world.child()
    child.outbox.append(Failed(kind=FailureKind.UNUSABLE, reason="no such size"))
    child.dies_at = world.now
    world.run(lambda: isinstance(world.gpu_state().stressor, Fatal))
    world.run_for(5)
    assert world.state.shutdown is None
    assert send(world, Configure, given=given(workload="hold")) is None
    world.run(lambda: held(world) == [0])


# --- the API process -------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["exits", "silent", "garbage"])
def test_an_api_process_that_does_not_work_is_replaced_without_other_effects(fault: str) -> None:
    world = served(1)
    match fault:
        case "exits":
            world.api.exits = True
        case "silent":
            world.api.serving = False
        case _:
            world.api.garbage = "it sent garbage"
    world.run(lambda: world.api.generation == 2)
    assert world.events("service.failed")
    world.api.serving = True
    world.run(lambda: len(world.events("service.ready")) == 2)
    assert (len(world.spawner.started), world.spawner.killed) == (1, [])
    assert world.api.host is not None


def test_the_pause_before_the_next_api_process_grows() -> None:
    world = served(1)

    def again() -> bool:
        world.api.exits = True
        return len(world.events("service.failed")) == 7

    world.run(again, within=200)
    pauses = [event.fields["pause_s"] for event in world.events("service.failed")]
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0]


def test_a_reply_comes_after_the_views_of_its_effect() -> None:
    world = served(1)
    send = world.api.send
    shown: list[str] = []

    def note(message: object) -> None:
        shown.append(type(message).__name__)
        send(message)

    vars(world.api)["send"] = note
    world.api.post(PauseGpus)
    world.supervisor.turn()
    assert shown[-1] == "CommandReply"
    assert "GpuView" in shown
    assert world.api.views["GPU-0"].admin == "PAUSED"


def test_a_reload_request_is_passed_to_the_api_process() -> None:
    world = served(1)
    world.interrupts.reload_pending = True
    world.supervisor.turn()
    world.supervisor.turn()
    assert world.api.reloads == 1
    world.api.exits = world.interrupts.reload_pending = True
    world.run(lambda: len(world.events("service.ready")) == 2)
    world.run_for(1)
    assert world.api.reloads == 2, "a replaced API process receives it later"


def test_changed_views_are_sent_soon_and_not_at_every_tick() -> None:
    world = served(1)
    times: list[float] = []
    send = world.api.send

    def note(message: object) -> None:
        times.append(world.now)
        send(message)

    vars(world.api)["send"] = note
    world.newcomer()
    world.run(lambda: world.api.views["GPU-0"].occupancy == "BUSY", within=1.5)
    world.run_for(10)
    moments = sorted(set(times))
    assert all(later - earlier >= 0.24 for earlier, later in itertools.pairwise(moments))


@pytest.mark.parametrize(
    ("command", "named", "text"),
    [
        (
            CancelGrant,
            {"kind": GrantKind.RESERVATION, "id": "nope"},
            "there is no reservation 'nope'; there are no reservations",
        ),
        (
            CancelGrant,
            {"kind": GrantKind.ALLOCATION, "id": "nope"},
            "there is no allocation 'nope'; there are no allocations",
        ),
        (EndSession, {"name": "nope"}, "there is no session 'nope'; there are no sessions"),
    ],
)
def test_an_unknown_name_where_there_is_none_gets_a_sentence(
    command: type[Command], named: dict[str, str], text: str
) -> None:
    world = served()
    assert reply_to(world, command, **named).text == text
