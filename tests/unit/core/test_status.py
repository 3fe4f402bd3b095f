"""What is shown: the deciding rule of each GPU in words, notes, and states before their events."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from sentinel.cli.display.log_lines import describe
from sentinel.config.model import Config
from sentinel.config.plan import Phase, Plan
from sentinel.config.schedule import end_of_hours, parse_hours
from sentinel.core.gpu_state import Running
from sentinel.core.observation import Call
from sentinel.core.state import State
from sentinel.protocol import codec
from sentinel.protocol.commands import Allocate, Caller, PauseGpus, Reserve
from sentinel.protocol.events import Event
from sentinel.protocol.stressor import Failed, FailureKind, MemoryContention, Note
from sentinel.protocol.views import GpuView
from tests.harness.document_programs import documented_rules
from tests.harness.narrowing import not_none
from tests.harness.world import GIB, World

PHASE = Phase(name="first", workload="gemm", seconds=5)
LINKS = Phase(name="links", workload="links", seconds=10, together=True, mandatory=False)
ME = Caller(via="unix", uid=1000, pid=5000, started=70)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A GPU that a rule concerns.

    Attributes:
        words: What its reason matches.
        left_s: The time until that may change; None if it is not known.
        config: The settings.
        begin: Called before the first tick.
        then: Called once all GPUs are held, if it is given.
        gpu: The GPU.
        gpus: How many GPUs there are.
        within: How soon the rule decides, in seconds.
        daemon: Whether only clients control the supervisor.
        hidden: Why processes may be hidden, or None.
    """

    words: str
    left_s: float | None = None
    config: Config = Config(rearm=1.0, rearm_longest=1.0)  # noqa: RUF009 - frozen
    begin: Callable[[World], object] = lambda _: None
    then: Callable[[World], object] | None = None
    gpu: int = 0
    gpus: int = 1
    within: float = 30.0
    daemon: bool = False
    hidden: str | None = None


def _set(name: str, value: object) -> Callable[[World], object]:
    """Give GPU 0 a property."""
    return lambda world: setattr(world.at(0), name, value)


def _fails(kind: FailureKind) -> Callable[[World], object]:
    def fail(world: World) -> None:
        child = world.child()
        child.outbox.append(Failed(kind=kind, reason="no luck"))
        child.dies_at, child.code = world.now + 0.1, 1

    return fail


def _posts(command: Callable[..., Any], **arguments: Any) -> Callable[[World], object]:
    return lambda world: world.api.post(command, **arguments)


def _allocates(size: int) -> Callable[[World], object]:
    return _posts(Allocate, id="llm", gpu="GPU-0", size=size, by=ME)


def _plan(*phases: Phase) -> Config:
    return Config(rearm=1.0, rearm_longest=1.0, plan=Plan(name="soak", phases=phases))


def _checks(world: World) -> None:
    world.at(0).checks = 10


def _set_probe_exit(world: World) -> None:
    world.probe.exits_with = 1


def _yields(world: World) -> None:
    """Make room for a newcomer that never takes memory, and leaves."""
    child = world.child()
    child.outbox.append(MemoryContention(grown=GIB, at=world.now, killed_at=world.now))


def _leaks(world: World) -> None:
    world.at(0).leaked = GIB
    _yields(world)


def _hangs(world: World) -> None:
    world.probe.hung = Call(uuid="GPU-0", name="memory", since=world.now)
    world.at(0).silent = True


#: At least one for each rule.
CASES = {
    "running": Case(words="running"),
    "starting": Case(words="its stressor is starting: importing torch"),
    "starting again": Case(
        words="its stressor is starting: importing torch.*; 1 failure before, the last: no luck",
        then=_fails(FailureKind.WORKLOAD),
    ),
    "shutdown": Case(
        words="the daemon is ending: SIGTERM",
        then=lambda world: setattr(world.interrupts, "pending", ("SIGTERM", False)),
    ),
    "released": Case(
        words=r"the driver is released \(pause --release\)",
        left_s=20.0,
        then=_posts(PauseGpus, release=True, seconds=20.0),
    ),
    "reserved": Case(
        words=r"reserved: demo \(a\)",
        left_s=60.0,
        then=_posts(Reserve, id="a", gpus=("GPU-0",), reason="demo", seconds=60.0),
    ),
    "paused": Case(words="paused", left_s=60.0, then=_posts(PauseGpus, seconds=60.0)),
    "paused without end": Case(words="paused until sentinel resume", then=_posts(PauseGpus)),
    "unknown": Case(words="unknown: Unknown Error", begin=_set("fault", "Unknown Error")),
    "unknown after a hang": Case(
        words="unknown: the driver hung in memory; left out", left_s=10.0, then=_hangs
    ),
    "exclusive": Case(words="its compute mode is exclusive", begin=_set("exclusive", True)),
    "mig": Case(words="MIG is enabled", begin=_set("mig", True)),
    "display": Case(words="a display is active", begin=_set("display", True)),
    "process": Case(words="used by foreign processes", begin=lambda world: world.newcomer()),
    "leak": Case(words="memory is still in use by no process", left_s=5.0, then=_leaks),
    "idle.memory": Case(words="memory is in use that no listed", begin=_set("unlisted", 3 * GIB)),
    "computing": Case(
        words="used by an unlisted process", begin=_set("computing", (7,)), hidden="a container"
    ),
    "idle.utilization": Case(
        words="it is used 50% of the time",
        begin=_set("utilization", 0.5),
        config=Config(idle_utilization=0.05),
    ),
    "stopping": Case(
        words="its stressor has ended, and its memory is not free yet",
        left_s=5.0,
        then=_leaks,
    ),
    "backoff": Case(
        words="its stressor ended, and is started again later: no luck",
        left_s=1.0,
        then=_fails(FailureKind.WORKLOAD),
    ),
    "failed": Case(
        words="its stressor failed, and is not started again: no luck",
        gpus=2,
        then=_fails(FailureKind.UNUSABLE),
    ),
    "confirm": Case(words="idle, seen once"),
    "rearm": Case(
        words=r"idle again for less than \S+ s \(rearm\)",
        left_s=10.0,
        config=Config(rearm=10.0, rearm_longest=10.0),
        begin=lambda world: setattr(world, "random_value", lambda: 0.5),
        then=_yields,
    ),
    "idle.wait": Case(
        words=r"idle for less than 5 min \(idle.wait\)",
        left_s=300.0,
        config=Config(idle_wait=300.0),
    ),
    "memory.keep_free": Case(
        words=r"140.0 GiB are free, and 200.0 GiB are to be kept free",
        config=Config(keep_free=200 * GIB),
    ),
    "burnin": Case(
        words="it has done all phases of soak",
        config=_plan(PHASE),
        gpus=2,
        begin=_checks,
        within=100.0,
    ),
    "burnin.together": Case(
        words="waits to begin links together with the other GPUs",
        config=_plan(PHASE, LINKS),
        gpus=2,
        begin=_checks,
        within=100.0,
    ),
    "throttle.pace": Case(
        words="its health is critical because of its temperature",
        left_s=30.0,
        config=Config(throttle="full", critical_pause=30.0),
        then=_set("temperature", 88),
    ),
    "allocations": Case(
        words="memory was allocated just now",
        left_s=3.0,
        config=Config(rearm=0.1),
        then=_allocates(40 * GIB),
    ),
    "allocations that leave too little": Case(
        words=r"its allocations leave too little memory \(llm\)", then=_allocates(138 * GIB)
    ),
    "probe": Case(
        words="the probe, which reads the GPUs, is start",
        config=Config(max_gpus=1),
        gpu=1,
        gpus=2,
        then=_set_probe_exit,
    ),
    "api": Case(
        words="the API does not answer yet",
        begin=lambda world: setattr(world.api, "serving", False),
        daemon=True,
    ),
    "quiet": Case(
        words="quiet hours until 12:05",
        left_s=300.0,
        config=Config(quiet=parse_hours("Wed 11:00-12:05")),
    ),
    "hours": Case(
        words="occupied only 12:05-13:00, next at 12:05",
        left_s=300.0,
        config=Config(hours=parse_hours("12:05-13:00")),
    ),
    "limits.gpus": Case(
        words=r"1 GPU held already \(limits.gpus\)", config=Config(max_gpus=1), gpu=1, gpus=2
    ),
    "limits.leave_idle": Case(
        words="1 GPU must be left idle", config=Config(leave_idle=1), gpu=1, gpus=2
    ),
    "idle.gate": Case(
        words="not before GPU 1 is idle, too",
        config=Config(idle_gate="all"),
        gpus=2,
        begin=lambda world: world.newcomer(1),
    ),
    "limits.starts_per_second": Case(
        words="another stressor was started just now",
        left_s=4.0,
        config=Config(starts_per_second=0.25),
        gpu=1,
        gpus=2,
    ),
    "idle": Case(words="idle; --dry-run starts no stressor", config=Config(dry_run=True)),
    "idle and next": Case(words="idle; its stressor is started next", gpu=3, gpus=4),
}


def _view_of(world: World, case: Case) -> GpuView | None:
    return world.api.views.get(f"GPU-{case.gpu}")


def _decides(world: World, rule: str, case: Case) -> bool:
    view = _view_of(world, case)
    return view is not None and view.rule == rule and bool(re.match(case.words, view.reason))


@pytest.mark.parametrize("name", CASES)
def test_each_rule_explains_a_gpu_in_words_and_with_its_time(name: str) -> None:
    case, rule = CASES[name], name.partition(" ")[0]
    world = World(
        gpus=case.gpus, hidden=case.hidden, config=case.config, with_api=True, daemon=case.daemon
    )
    case.begin(world)
    if case.then is not None:
        world.run(lambda: world.events("stressor.ready"))
        world.run_for(3.0)
        case.then(world)
    world.run(lambda: _decides(world, rule, case), within=case.within)
    view = not_none(_view_of(world, case))
    assert (view.rule == "running") == (view.stressor == "RUNNING")
    if case.left_s is None:
        assert view.rule_until is None
        return
    assert documented_rules()[rule], "the document has no time for it"
    assert view.rule_until is not None
    assert case.left_s - 2.0 < view.rule_until - world.now <= case.left_s
    before = (view.rule, view.rule_until)
    world.run_for(view.rule_until - world.now + 2.0)
    after = not_none(_view_of(world, case))
    assert (after.rule, after.rule_until) != before


def test_there_is_a_case_for_each_rule_and_for_each_time() -> None:
    assert {name.partition(" ")[0] for name in CASES} == documented_rules().keys()
    timed = {name.partition(" ")[0] for name, case in CASES.items() if case.left_s is not None}
    # Whether the load of the last stressor counts is seen in tests/unit/core/test_starts.py.
    assert timed | {"idle.utilization", "probe"} == {
        rule for rule, time in documented_rules().items() if time
    }


@pytest.mark.parametrize(
    ("hours", "day", "clock", "end"),
    [
        ("08:00-18:00", 7, "17:59", (7, "18:00")),
        ("08:00-18:00", 7, "18:00", None),
        ("22:00-06:00", 7, "23:00", (8, "06:00")),
        ("22:00-06:00", 7, "05:00", (7, "06:00")),
        ("Wed 22:00-06:00", 8, "05:59", (8, "06:00")),
        ("12:00-24:00", 7, "13:00", (8, "00:00")),
        ("12:00-24:00, 00:00-06:00", 7, "13:00", (8, "06:00")),
        ("Wed 00:00-24:00, Thu 00:00-24:00", 7, "13:00", (9, "00:00")),
        ("00:00-24:00", 7, "13:00", None),
    ],
)
def test_the_end_of_quiet_hours(
    hours: str, day: int, clock: str, end: tuple[int, str] | None
) -> None:
    local = datetime.fromisoformat(f"2026-01-{day:02} {clock}")
    expected = None if end is None else datetime.fromisoformat(f"2026-01-{end[0]:02} {end[1]}")
    assert end_of_hours(parse_hours(hours), local) == expected


def _status_says(world: World, note: str) -> bool:
    return any(event.fields.get("note") == note for event in world.events("gpu.status"))


def test_a_note_stays_until_the_next_and_is_cut() -> None:
    world = World(config=Config(rearm=1.0, status_every=1.0))
    world.run(lambda: isinstance(world.gpu_state().stressor, Running))
    child = world.child()
    for sent, shown in (("pass 1", "pass 1"), ("x" * 5000, "x" * 200)):
        child.outbox += (codec.decode(codec.encode(Note(text=sent)), (Note,)),)
        world.run(partial(_status_says, world, shown), within=3)
    before = len(world.events("gpu.status"))
    world.run(lambda: len(world.events("gpu.status")) > before + 2, within=9)
    status = world.events("gpu.status")[-1]
    assert status.fields["note"] == "x" * 200
    assert describe(status.name, status.fields)[1].endswith("; " + "x" * 200)


#: What the state must show once an event is published.
_SHOWN: dict[str, Callable[[GpuView, Event], bool]] = {
    "gpu.idle": lambda view, _: view.occupancy == "IDLE",
    "gpu.busy": lambda view, _: view.occupancy == "BUSY",
    "stressor.ready": lambda view, _: view.stressor == "RUNNING",
    "gpu.health_changed": lambda view, event: view.health == event.fields["health"],
    "gpu.yielding": lambda view, _: view.stressor == "STOPPING",
    "gpu.handed_over": lambda view, _: view.handover is not None and view.yields == 1,
}


def test_the_state_of_an_event_is_published_before_the_event() -> None:
    world = World(config=Config(rearm=1.0), with_api=True)
    checked: list[str] = []
    publish = vars(world.supervisor)["_publish"]

    def check(state: State, events: tuple[Event, ...]) -> None:
        for event in events:
            if event.name in _SHOWN:
                assert _SHOWN[event.name](world.api.views["GPU-0"], event), event
                checked.append(event.name)
            if event.name == "gpu.paused":
                assert not_none(world.api.host).phase == "paused"
                checked.append(event.name)
        publish(state, events)

    vars(world.supervisor)["_publish"] = check
    world.run(lambda: "stressor.ready" in checked)
    for degrees in (70, 80, 88, 50):
        changes = checked.count("gpu.health_changed")
        world.at(0).temperature = degrees
        world.run(lambda: checked.count("gpu.health_changed") > changes, within=200)  # noqa: B023
    world.newcomer()
    world.run(lambda: "gpu.handed_over" in checked)
    world.api.post(PauseGpus)
    world.run(lambda: "gpu.paused" in checked)
    assert {*_SHOWN, "gpu.paused"} == set(checked)
