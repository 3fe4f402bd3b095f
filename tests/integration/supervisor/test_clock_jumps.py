"""The wall clock is set while a daemon runs: durations stay, and only hours of the day follow."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.harness.daemon_harness import Daemon
from tests.harness.fake_nvml import NEEDS_COMPILER, shared_folder
from tests.harness.narrowing import not_none
from tests.harness.preloaded import JumpingClock
from tests.harness.sentinel_process import eventually

#: No clock before these begins a quiet hour by itself within a test.
NOON = datetime(2026, 6, 3, 12)  # noqa: DTZ001 - quiet hours are in local time
#: Days forward and back, the ends of 31 and 32 bits, a clock that has never been set.
JUMPS = (
    NOON + timedelta(days=400),
    NOON - timedelta(days=400),
    datetime(2038, 1, 19, 3, 14, 6),  # noqa: DTZ001
    datetime(2106, 2, 7, 6, 28, 14),  # noqa: DTZ001
    datetime(1970, 1, 2),  # noqa: DTZ001
)

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch"), NEEDS_COMPILER]


@pytest.fixture
def clock(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> JumpingClock:
    clock = JumpingClock(tmp_path, shared_folder(tmp_path_factory))
    clock.jump(NOON)
    return clock


@pytest.fixture
def daemon(daemon: Daemon, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    return daemon


def test_durations_do_not_follow_the_wall_clock(daemon: Daemon, clock: JumpingClock) -> None:
    daemon.start(3)
    daemon.wait_until_occupied(0, 1, 2)
    daemon.run("reserve", "--gpus", "1", "--for", "20m", "--reason", "kept")
    daemon.client.pause([2], seconds=1200)
    for number, to in enumerate(JUMPS):
        clock.jump(to)
        (held,) = daemon.client.reservations()
        assert held.until is not None
        left = held.until.replace(tzinfo=None) - to.astimezone(held.until.tzinfo).replace(
            tzinfo=None
        )
        assert timedelta(0) < left <= timedelta(minutes=20)
        assert [gpu.admin for gpu in daemon.client.status().gpus] == [
            "ENABLED",
            "RESERVED",
            "PAUSED",
        ]
        assert daemon.run("status")
        with daemon.host.job(0, stay=0.1) as newcomer:
            assert newcomer.got_memory()
        daemon.wait_until_occupied(0)
        if number == 1:  # its replacement begins at a later time than it ends at
            api = daemon.child("api, answers")
            api.kill()
            eventually(lambda: events_of(daemon)["service.ready"] == 2)
        eventually(lambda: "gpu.handed_over" in recorded(daemon))
        eventually(lambda: uses_of_stressors(daemon) == [daemon.host.uuid(0)])
    assert quiet(daemon)

    clock.jump(JUMPS[0])  # a new daemon in the same boot of the host
    daemon.run("stop")
    daemon.wait_until_gone()
    daemon.start(3)
    assert [reservation.reason for reservation in daemon.client.reservations()] == ["kept"]
    daemon.wait_until_occupied(0)


def test_quiet_hours_follow_the_wall_clock(daemon: Daemon, clock: JumpingClock) -> None:
    daemon.start(1, "--quiet", "03:00-04:00")
    daemon.wait_until_occupied(0)
    for day in (JUMPS[0], JUMPS[1], datetime(2040, 1, 1)):  # noqa: DTZ001
        clock.jump(day.replace(hour=3, minute=10, second=30))
        eventually(lambda: daemon.host.empty(0) and "quiet hours" in str(daemon.gpu().reason))
        clock.jump(day.replace(hour=12))
        daemon.wait_until_occupied(0)
    assert quiet(daemon)


#: The rule of Berlin's clocks, when they go forward and back, and half an hour that begins in this
#: moment; that of the second was over before it, and comes again.
BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"
CHANGES = {
    "forward": (datetime(2026, 3, 29, 1, tzinfo=UTC), "03:00-03:30"),
    "back": (datetime(2026, 10, 25, 1, tzinfo=UTC), "02:00-02:30"),
}
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(("moment", "hours"), CHANGES.values(), ids=CHANGES)
def test_quiet_hours_follow_a_change_to_or_from_summer_time_and_durations_do_not(
    daemon: Daemon,
    clock: JumpingClock,
    monkeypatch: pytest.MonkeyPatch,
    moment: datetime,
    hours: str,
) -> None:
    monkeypatch.setenv("TZ", BERLIN)
    clock.jump(moment - timedelta(minutes=10))
    daemon.start(2, "--quiet", hours)
    daemon.wait_until_occupied(0, 1)
    daemon.run("reserve", "--gpus", "1", "--for", "2h")
    clock.jump(moment - timedelta(seconds=10))  # which a busy host needs for one look
    daemon.wait_until_occupied(0)
    # The clock changes by itself.
    eventually(lambda: daemon.host.empty(0) and "quiet hours" in str(daemon.gpu().reason))
    left_s = not_none(daemon.gpu().rule_until_s)
    assert 1500 < left_s <= 1800
    for away in (-HOUR, HOUR):  # set by hand, and back again
        clock.jump(moment + timedelta(minutes=5) + away)
        if (hours, away) != ("02:00-02:30", -HOUR):  # the first time of this half hour
            daemon.wait_until_occupied(0)
        clock.jump(moment + timedelta(minutes=5))
        eventually(lambda: daemon.host.empty(0))
        (held,) = daemon.client.reservations()
        left = not_none(held.until) - (moment + timedelta(minutes=5))
        assert timedelta(hours=2, minutes=-2) < left <= timedelta(hours=2)
    clock.jump(moment + timedelta(minutes=30))
    daemon.wait_until_occupied(0)
    assert quiet(daemon)


def test_the_end_of_a_daemon_follows_the_wall_clock(daemon: Daemon, clock: JumpingClock) -> None:
    end = NOON + timedelta(minutes=30)
    daemon.start(1, "--until", f"{end:%H:%M}")
    daemon.wait_until_occupied(0)
    clock.jump(NOON - HOUR)
    with daemon.host.job(0, stay=0.1) as newcomer:
        assert newcomer.got_memory()
    daemon.wait_until_occupied(0)
    clock.jump(NOON + HOUR)
    daemon.wait_until_gone()
    assert quiet(daemon)


#: When a daemon is started, and its end at 02:30, which never comes or comes again.
ENDS = {
    "forward": (datetime(2026, 3, 29, 0, 30, tzinfo=UTC), datetime(2026, 3, 29, 1, tzinfo=UTC)),
    "back": (datetime(2026, 10, 25, 0, 45, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
}


@pytest.mark.parametrize(("begun", "end"), ENDS.values(), ids=ENDS)
def test_the_end_of_a_daemon_follows_a_change_to_or_from_summer_time(
    daemon: Daemon,
    clock: JumpingClock,
    monkeypatch: pytest.MonkeyPatch,
    begun: datetime,
    end: datetime,
) -> None:
    monkeypatch.setenv("TZ", BERLIN)
    clock.jump(begun)
    daemon.start(1, "--until", "02:30")
    daemon.wait_until_occupied(0)
    daemon.client.set({"grace": "7s"})  # which reads the end again
    clock.jump(end - timedelta(minutes=5))
    with daemon.host.job(0, stay=0.1) as newcomer:
        assert newcomer.got_memory()
    daemon.wait_until_occupied(0)
    clock.jump(end - timedelta(seconds=2))
    daemon.wait_until_gone()
    assert quiet(daemon)


@pytest.mark.parametrize("to", [NOON + timedelta(days=400), NOON - timedelta(days=400)], ids=str)
def test_the_time_of_a_daemon_does_not_follow_the_wall_clock(
    daemon: Daemon, clock: JumpingClock, to: datetime
) -> None:
    daemon.start(1, "--for", "1h")
    daemon.wait_until_occupied(0)
    daemon.client.set({"for": "8s"})  # from now on
    began = time.monotonic()
    clock.jump(to)
    daemon.wait_until_gone()
    assert time.monotonic() - began > 3
    assert quiet(daemon)


def recorded(daemon: Daemon) -> set[str]:
    """List the names of the events of the last hour in the history."""
    return {event.name for event in daemon.client.recorded_events(since="1h")}


def uses_of_stressors(daemon: Daemon) -> list[str]:
    """List the GPUs that a stressor uses by the history."""
    uses = daemon.client.usage(since="1h")
    return [use.gpu for use in uses if use.going_on and use.ours]


def quiet(daemon: Daemon) -> bool:
    """Check that nothing was reported as wrong, and that no event is repeated without end."""
    assert daemon.places.stderr.read_text() == ""
    counts = events_of(daemon)
    assert not {"service.warning", "log.dropped"} & set(counts)
    assert max(count for name, count in counts.items() if name != "gpu.status") < 50
    return True


def events_of(daemon: Daemon) -> Counter[str]:
    """Count the events in the log by name."""
    lines = daemon.places.log.read_text().splitlines(keepends=True)
    return Counter(json.loads(line)["event"] for line in lines if line.endswith("\n"))
