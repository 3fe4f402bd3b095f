"""Sessions: settings of some GPUs under a name, laid over the daemon's until they end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.config.model import Config
from sentinel.config.plan import parse_plan
from sentinel.core.gpu_state import Fatal, Running
from sentinel.core.node.gpu_settings import chooser_of_workload
from sentinel.core.node.sessions import (
    MAX_TEXT_LENGTH,
    name_for,
    restore,
)
from sentinel.protocol.commands import (
    Caller,
    CancelBurnin,
    Configure,
    EndSession,
    Level,
    Refusal,
    StartBurnin,
    StartSession,
    StopDaemon,
)
from sentinel.protocol.views import Session
from tests.harness.core_scenarios import reply_to, send, served
from tests.harness.given_settings import given
from tests.harness.parameters import mostly_long
from tests.harness.world import World

HOLD = {"workload": "hold"}
ALICE = Caller(via="unix", uid=1001, pid=4711, started=99, level=Level.ADMINISTER)
PLAN = {
    "spec": "sentinel-plan-v1",
    "name": "short",
    "phase": [{"name": "first", "workload": "mixed", "seconds": 5}],
}


def checking(config: Config | None = None) -> World:
    """Build a daemon with a stressor on each of three GPUs, which check results."""
    return served(3, config or Config(rearm=1.0, rearm_longest=1.0), checks=10)


def start(world: World, **arguments: object) -> tuple[Refusal | None, str]:
    given = {"name": "a", "gpus": ("GPU-0",), "settings": HOLD, "by": ALICE, **arguments}
    reply = reply_to(world, StartSession, **given)
    return reply.refused, reply.text


def workloads(world: World) -> list[str]:
    """List the workload of each GPU's settings, by index."""
    return [world.state.config.of(uuid).workload for uuid in world.state.gpu_states]


def running(world: World) -> list[str | None]:
    """List the workload of each GPU's running stressor, or None if none runs."""
    return [
        gpu_state.launch.spec.workload
        if isinstance(gpu_state.stressor, Running) and gpu_state.launch.spec is not None
        else None
        for gpu_state in world.state.gpu_states.values()
    ]


def test_a_session_gives_its_gpus_other_settings_and_its_end_gives_them_back() -> None:
    world = checking()
    pids = [view.pid for view in world.api.views.values()]
    assert start(world)[0] is None
    world.run(lambda: running(world) == ["hold", "gemm", "gemm"])
    assert [view.session for view in world.api.views.values()] == ["a", None, None]
    assert [session.name for session in world.api.sessions] == ["a"]
    assert [view.pid for view in world.api.views.values()][1:] == pids[1:], "not of the session"
    assert send(world, EndSession, name="a") is None
    world.run(lambda: running(world) == ["gemm"] * 3)
    assert world.api.sessions == ()
    (started,), (ended,) = world.events("session.started"), world.events("session.ended")
    assert started.fields["settings"] == {"workload": "hold"}
    assert "GPU-0" in str(started.fields["gpus"])
    assert ended.fields["session"] == "a"


def test_a_session_ends_after_its_time() -> None:
    world = checking()
    begun = world.now
    assert start(world, seconds=60.0)[0] is None
    world.run(lambda: not world.state.sessions)
    assert 60.0 <= world.now - begun < 61.0
    assert workloads(world) == ["gemm"] * 3
    (ended,) = world.events("session.ended")
    assert ended.fields["by"] is None


def test_two_sessions_have_no_gpu_in_common() -> None:
    world = checking()
    assert start(world, gpus=("GPU-0", "GPU-1"))[0] is None
    refused, why = start(world, name="b", gpus=("GPU-1", "GPU-2"))
    assert refused is Refusal.CONFLICT
    assert "GPU 1" in why
    assert "'a'" in why
    assert start(world, name="b", gpus=("GPU-2",))[0] is None
    assert workloads(world) == ["hold"] * 3


def test_a_name_is_used_once_and_the_same_request_again_changes_nothing() -> None:
    world = checking()
    assert start(world)[0] is None
    before = world.state.sessions
    assert start(world)[0] is None
    assert world.state.sessions is before
    assert start(world, gpus=("GPU-1",))[0] is Refusal.CONFLICT
    assert start(world, by=replace(ALICE, uid=1002))[0] is Refusal.CONFLICT
    assert send(world, EndSession, name="b") is Refusal.NOT_FOUND


@pytest.mark.parametrize(
    ("arguments", "refusal", "why"),
    [
        ({"name": "a b"}, Refusal.INVALID, "name"),
        ({"gpus": ()}, Refusal.INVALID, "GPUs"),
        ({"gpus": ("GPU-0", "GPU-0")}, Refusal.INVALID, "once"),
        ({"gpus": ("GPU-9",)}, Refusal.NO_SUCH_GPU, "GPU-9"),
        ({"seconds": 0.0}, Refusal.INVALID, "seconds"),
        (
            {"settings": {"poll": "1s"}},
            Refusal.INVALID,
            "poll cannot be set for a single GPU",
        ),
        (
            {"settings": {"util.target": "1%"}},
            Refusal.INVALID,
            "session a: util.target: '1%' is out of range",
        ),
        ({"settings": {"workload": "x" * 200_000}}, Refusal.CONFLICT, "characters"),
    ],
)
def test_a_session_that_cannot_be_is_refused_as_a_whole(
    arguments: dict[str, object], refusal: Refusal, why: str
) -> None:
    world = checking()
    before = world.state.config
    refused, text = start(world, **arguments)
    assert refused is refusal
    assert why in text
    assert world.state.config is before
    assert world.state.sessions == {}


def test_a_session_is_over_the_settings_of_the_daemon_and_of_its_gpu() -> None:
    world = checking()
    keys = {"power": "100W", "workload": "elementwise"}
    settings = (*given({"util.target": "50%"}), *given(keys, "0"))
    assert start(world)[0] is None
    assert send(world, Configure, given=settings) is None
    own = world.state.config.of("GPU-0")
    assert (own.util, own.power, own.workload) == (0.5, 100.0, "hold")
    assert send(world, EndSession, name="a") is None
    own = world.state.config.of("GPU-0")
    assert (own.util, own.power, own.workload) == (0.5, 100.0, "elementwise")


def test_settings_that_a_session_contradicts_are_refused() -> None:
    world = checking()
    low = {"throttle.temp_critical_from": "80"}
    assert start(world, settings=low)[0] is None
    high = given({"throttle.temp_throttled_from": "82"})
    before = world.state.config
    reply = reply_to(world, Configure, given=high)
    assert reply.refused is Refusal.INVALID
    assert "session a" in reply.text
    assert world.state.config is before


def test_a_failed_stressor_is_started_again_with_the_settings_of_a_session() -> None:
    world = checking()
    failed = replace(world.gpu_state(), stressor=Fatal(reason="no such workload"))
    state = world.state
    world.state = state.with_gpu_states({**state.gpu_states, "GPU-0": failed})
    assert start(world)[0] is None
    assert not isinstance(world.gpu_state().stressor, Fatal)


def test_a_burn_in_and_a_session_that_ends_meanwhile() -> None:
    world = checking()
    assert start(world, seconds=3.0)[0] is None
    burnin = {"id": "one", "plan": PLAN, "gpus": ("GPU-0", "GPU-1"), "by": ALICE}
    assert send(world, StartBurnin, **burnin) is None
    assert workloads(world) == ["mixed", "mixed", "gemm"]
    refused, why = start(world, name="b", gpus=("GPU-2",))
    assert refused is Refusal.CONFLICT
    assert "burn-in" in why
    world.run(lambda: not world.state.sessions)
    assert workloads(world) == ["mixed", "mixed", "gemm"], "the phase goes on"
    assert send(world, CancelBurnin, by=ALICE) is None
    world.run(lambda: world.state.burnin_run is None)
    assert workloads(world) == ["gemm"] * 3


def test_a_gpu_has_the_settings_of_its_session_after_a_burn_in() -> None:
    world = checking()
    assert start(world)[0] is None
    burnin = {"id": "one", "plan": PLAN, "gpus": ("GPU-0", "GPU-1"), "by": ALICE}
    assert send(world, StartBurnin, **burnin) is None
    assert send(world, CancelBurnin, by=ALICE) is None
    world.run(lambda: world.state.burnin_run is None)
    assert workloads(world) == ["hold", "gemm", "gemm"]


def test_what_chose_a_workload_is_the_phase_of_a_plan_or_a_session() -> None:
    def choosers() -> list[str | None]:
        return [chooser_of_workload(world.state, f"GPU-{index}") for index in range(3)]

    world = checking()
    assert start(world)[0] is None
    assert start(world, name="b", gpus=("GPU-1",), settings={"memory.target": "50%"})[0] is None
    assert choosers() == ["session a", None, None]
    burnin = {"id": "one", "plan": PLAN, "gpus": ("GPU-0", "GPU-1"), "by": ALICE}
    assert send(world, StartBurnin, **burnin) is None
    assert choosers() == ["phase first of plan short", "phase first of plan short", None]


def test_a_session_with_a_workload_is_instead_of_the_plan_of_a_daemon() -> None:
    plan = parse_plan(PLAN, "test")
    world = checking(Config(plan=plan, workload="mixed"))
    assert start(world)[0] is None
    world.run(lambda: running(world)[0] == "hold")
    assert workloads(world) == ["hold", "mixed", "mixed"]
    assert send(world, EndSession, name="a") is None
    world.run(lambda: running(world)[0] == "mixed")


@mostly_long("gpu", ["GPU-0", "GPU-2"])
def test_a_gpu_that_a_session_takes_out_of_the_plan_leaves_its_group(gpu: str) -> None:
    links = {"name": "links", "workload": "links", "seconds": 10, "together": True}
    plan = parse_plan({**PLAN, "phase": [links]}, "test")
    config = Config(plan=plan, workload="links", rearm=1.0, rearm_longest=1.0)
    world = checking(config)
    before = world.state.gpu_states[gpu].burnin
    assert before is not None
    assert before.group is not None
    assert start(world, gpus=(gpu,))[0] is None
    world.run(lambda: len(world.events("burnin.phase_ended")) == 2, within=100)
    assert gpu not in {event.gpu for event in world.events("burnin.phase_ended")}
    assert (gpu, None) in world.spawner.groups, "the workload of the session is in no group"
    assert send(world, EndSession, name="a") is None
    done = [*world.events("burnin.phase_ended")]
    world.run(
        lambda: gpu in {event.gpu for event in world.events("burnin.phase_ended")[len(done) :]},
        within=100,
    )


def test_a_daemon_that_only_watches_or_ends_has_no_new_session() -> None:
    world = checking()
    assert send(world, StopDaemon) is None
    assert start(world)[0] is Refusal.ENDING
    world = World(gpus=1, config=Config(dry_run=True), with_api=True)
    world.supervisor.turn()
    assert start(world)[0] is Refusal.CONFLICT


def test_a_stored_session_that_contradicts_new_settings_is_suspended_and_said() -> None:
    world = checking(Config(temp_throttled_from=82.0))
    low = {"throttle.temp_critical_from": "80"}
    stored = [
        Session(name="a", gpus=("GPU-0",), settings=HOLD, by=ALICE, since=0.0),
        Session(name="b", gpus=("GPU-1",), settings=low, by=ALICE, since=0.0),
        Session(name="c", gpus=("GPU-2", "GPU-lost"), settings=HOLD, by=ALICE, since=0.0),
        Session(name="d", gpus=("GPU-1",), settings={"api.tcp": "0"}, by=ALICE, since=0.0),
        Session(name="e", gpus=("GPU-2",), settings={"power": "9W"}, by=ALICE, since=0.0),
    ]
    state, said = restore(world.state, stored)
    assert list(state.sessions) == ["a", "b", "c", "d", "e"]
    assert [name for name, session in state.sessions.items() if session.suspended is None] == [
        "a",
        "c",
    ]
    assert [state.config.of(f"GPU-{index}").workload for index in range(3)] == [
        "hold",
        "gemm",
        "hold",
    ]
    contradicts, foreign, taken = said
    assert "session b: throttle.temp_critical_from" in contradicts
    assert contradicts.endswith("it is suspended, and ends with `sentinel session stop b`")
    assert "session d: api.tcp cannot be set for a single GPU" in foreign
    assert "session e: session c has a GPU of it" in taken
    assert state.sessions["e"].suspended == "session c has a GPU of it"
    assert name_for(state, "GPU-1") is None

    # It is there until a client ends it, and keeps neither its GPU nor its settings.
    world.state = state
    same = {"name": "b", "gpus": ("GPU-1",), "settings": low}
    assert start(world, **same)[0] is Refusal.CONFLICT
    assert start(world, name="f", gpus=("GPU-1",))[0] is None
    assert world.state.config.of("GPU-1").workload == "hold"
    assert send(world, EndSession, name="b") is None
    assert world.state.config.of("GPU-1").workload == "hold"
    assert list(world.state.sessions) == ["a", "c", "d", "e", "f"]


def test_the_texts_of_all_sessions_are_bounded() -> None:
    world = checking()
    text = "hold:x=" + "x" * MAX_TEXT_LENGTH
    refused, why = start(world, settings={"workload": text})
    assert refused is Refusal.CONFLICT
    assert f"{MAX_TEXT_LENGTH} characters" in why
