"""The file of the history: its rows, their retention, and recovery from faults."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.api import history_tables
from sentinel.api.event_streams import LoggedEvent
from sentinel.api.history import MEMORY_BYTES, Database, History
from sentinel.api.history_queries import iso
from sentinel.api.history_recorder import SAMPLE_COLUMNS, Batch
from sentinel.api.history_tables import MINUTES_RETENTION, SECONDS_RETENTION, THIN_INTERVAL, VERSION
from sentinel.host.regular_file import MAX_SET_ASIDE
from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.views import GpuView
from tests.harness.gpu_environment import ROOT
from tests.harness.history_harness import (
    BEGIN,
    OTHER,
    SIZE,
    UUID,
    WALL,
    HistoryHarness,
    busy_view,
    event_rows,
    is_intact,
    make_view,
    process,
)
from tests.harness.narrowing import not_none
from tests.harness.programs import piped_program


def batch_of(seconds: range, wall: float, power: float = 100.0, uuid: str = UUID) -> Batch:
    """Build one reading per second since BEGIN; second 0 is at ``wall``."""
    values = dict.fromkeys(SAMPLE_COLUMNS, 0.1) | {"temperature_c": 50, "power_w": power, "busy": 0}
    row = tuple(values[name] for name in SAMPLE_COLUMNS)
    return Batch(
        gpus={uuid: (0, "NVIDIA H200")},
        samples={
            (int(BEGIN) + second, uuid): (int(wall + second - seconds.start), row)
            for second in seconds
        },
    )


# --- what is kept ----------------------------------------------------------------------------


def test_readings_are_stored_per_second_and_gpu(past: HistoryHarness) -> None:
    for second in range(5):
        past.write_views(
            make_view(past.now, temperature_c=40 + second),
            make_view(past.now + 0.25, temperature_c=40 + second, occupancy="BUSY"),
            make_view(past.now, OTHER, temperature_c=90),
        )
        past.advance(1)
    rows = past.readings()
    assert [row["temperature_c"] for row in rows] == [40, 41, 42, 43, 44]
    assert [row["at"] for row in rows] == [int(WALL) + second for second in range(5)]
    assert [row["busy"] for row in rows] == [1] * 5, "what was shown last in a second"
    assert past.readings(uuid=OTHER)[0]["temperature_c"] == 90
    assert len(past.rows("seconds")) == 10


def test_a_longer_step_has_minimum_mean_and_maximum(past: HistoryHarness) -> None:
    for second in range(60):
        known: dict[str, Any] = (
            {} if second < 50 else {"read": None}
        )  # the last ten values are unknown
        past.write_views(make_view(past.now, temperature_c=30 + second, power_w=200.0, **known))
        past.advance(1)
    past.wall -= 1
    (row,) = past.readings(60, 60)
    assert row["seconds"] == 60
    assert (row["temperature_min_c"], row["temperature_max_c"]) == (30, 79)
    assert row["temperature_c"] == pytest.approx(54.5)
    assert row["energy_j"] == 50 * 200.0
    assert (row["busy"], row["utilization"]) == (0, None)


@pytest.mark.parametrize(
    "every", [2.0, *(pytest.param(one, marks=pytest.mark.long) for one in (1.0, 1.1, 1.5))]
)
def test_energy_follows_from_time_and_not_from_the_number_of_readings(
    past: HistoryHarness, every: float
) -> None:
    for _ in range(round(2 * 3600 / every)):
        past.write_views(make_view(past.now, power_w=100.0))
        past.advance(every)
    assert len(past.rows("minutes")) > 50
    (whole_time,) = past.readings(3 * 3600, 3 * 3600)
    assert whole_time["energy_j"] == pytest.approx(100.0 * 2 * 3600, abs=200)
    assert whole_time["power_w"] == pytest.approx(100.0)
    inner = past.readings(5 * 60, 60)[1:-1]
    assert [row["energy_j"] for row in inner] == pytest.approx([6000.0] * len(inner), abs=200)


def test_energy_during_a_gap_of_readings_is_not_estimated(past: HistoryHarness) -> None:
    for pause in (1, 6, 600):
        past.write_views(make_view(past.now, power_w=100.0))
        past.advance(1)
        past.write_views(make_view(past.now, read=None))
        past.advance(pause)
    past.write_views(make_view(past.now, power_w=100.0))
    assert past.readings(3600, 3600)[0]["energy_j"] == 4 * 100


def test_seconds_become_minutes_after_an_hour_without_loss(past: HistoryHarness) -> None:
    past.database.open(past.now, past.wall)
    for hour in range(3):
        seconds = range(hour * 3600, (hour + 1) * 3600)
        past.database.write(
            batch_of(seconds, past.wall, power=100.0 * (hour + 1)), past.now + hour * 3600
        )
        past.wall += 3600
    past.now += 3 * 3600
    past.database.write(Batch(), past.now)
    assert len(past.rows("seconds")) <= SECONDS_RETENTION + THIN_INTERVAL
    assert 100 < len(past.rows("minutes")) < 140
    whole_time = past.readings(3 * 3600 + 60, 3 * 3600 + 60)[0]
    assert whole_time["seconds"] == 3 * 3600
    assert whole_time["energy_j"] == 3600 * (100 + 200 + 300)
    assert (whole_time["power_min_w"], whole_time["power_max_w"]) == (100, 300)
    assert whole_time["power_w"] == pytest.approx(200.0)


#: None, or a pause too long to derive the energy used.
_pauses = st.just(0) | st.integers(6, 3000)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(1, 1500), _pauses, st.integers(-(10**9), 10**9)),
        min_size=3,
        max_size=12,
    )
)
def test_a_jump_of_the_clock_neither_loses_rows_nor_keeps_expired_ones(
    story: list[tuple[int, int, int]],
) -> None:
    """Each part is a number of seconds with readings, a pause and a jump of the wall clock."""
    database, second, wall, written = Database(None, SIZE), 0, WALL, 0
    execute = database._memory.execute
    for length, pause, jump in story:
        database.write(batch_of(range(second, second + length), wall), BEGIN + second + length - 1)
        written += length
        second += length + pause
        wall += length + pause + jump
        (newest, oldest) = execute("SELECT max(tick), min(tick) FROM seconds").fetchone()
        assert newest - oldest < SECONDS_RETENTION + THIN_INTERVAL + length + 1
    (seconds, power) = execute("SELECT count(*), total(power_w) FROM seconds").fetchone()
    (minutes, energy) = execute("SELECT total(n), total(energy_j) FROM minutes").fetchone()
    assert seconds + minutes == written
    assert power + energy == written * 100.0
    database.close()


def test_minutes_are_removed_after_a_month(past: HistoryHarness) -> None:
    past.database.open(past.now, past.wall)
    past.database.write(batch_of(range(60), past.wall), past.now)
    later = range(7200, 7260)
    past.database.write(batch_of(later, past.wall + 7200), past.now + 7260)
    assert len(past.rows("minutes")) in {1, 2}
    last = MINUTES_RETENTION + 3600
    past.database.write(batch_of(range(last, last + 2), past.wall + last), past.now + last)
    ticks = [row[1] for row in past.rows("minutes")]
    assert ticks
    assert min(ticks) > last - MINUTES_RETENTION


def test_events_are_found_by_gpu_name_and_time(past: HistoryHarness) -> None:
    for number in range(5):
        past.write_event("gpu.busy", gpu=UUID, index=0, number=number)
        past.write_event("gpu.idle", gpu=OTHER, index=1)
        past.advance(60)
    past.write_event("sentinel.stopping")
    assert len(past.events()) == 11
    assert past.events(uuid=OTHER) == ["gpu.idle"] * 5
    assert past.events(names=["gpu.busy"], limit=2) == ["gpu.busy"] * 2
    assert past.events(since=past.wall - 90) == ["gpu.busy", "gpu.idle", "sentinel.stopping"]
    assert past.events(limit=1) == ["sentinel.stopping"], "the last ones"


# --- allocated and unused --------------------------------------------------------------------


def use_for(past: HistoryHarness, seconds: int, load: float, *by: GpuProcess, **more: Any) -> None:
    """Write a view a second in which these processes are on a GPU with this load."""
    for _ in range(seconds):
        past.write_views(busy_view(past.now, *by, utilization=load, **more))
        past.advance(1)


def test_allocated_and_unused_time_is_by_user_and_most_unused_first(past: HistoryHarness) -> None:
    anna, ben, again = process(1), process(2, user="ben"), process(3)
    use_for(past, 100, 0.9, anna)  # she works
    use_for(past, 50, 0.0, anna)  # she has left
    use_for(past, 30, 0.0, anna, again)  # two of hers at once count once
    use_for(past, 40, 0.3, ben)
    use_for(past, 20, 0.005, ben)
    for _ in range(25):
        past.write_views(make_view(past.now, stressor="RUNNING", pid=9, utilization=1.0))
        past.write_views(make_view(past.now, OTHER, utilization=0.0))
        past.advance(1)
    found = past.hours()
    assert [row["user"] for row in found["users"]] == ["anna", "ben"]
    hers, his = found["users"]
    assert hers["allocated_s"] == pytest.approx(180, abs=3)
    assert hers["unused_s"] == pytest.approx(80, abs=3)
    assert his["allocated_s"] == pytest.approx(60, abs=3)
    assert his["unused_s"] == pytest.approx(20, abs=3)
    assert (found["stressors_s"], found["idle_s"]) == (25, 25)
    assert past.hours(OTHER)["users"] == []
    late = past.hours(since=past.wall - 85)["users"]
    assert [row["user"] for row in late] == ["ben"]


@pytest.mark.long
def test_the_same_follows_from_the_minutes(past: HistoryHarness) -> None:
    anna = process(1)
    past.advance(60 - past.wall % 60)
    for minute in range(90):
        use_for(past, 60, 0.0 if minute % 3 else 0.9, anna)
    assert past.rows("minutes")
    (row,) = past.hours()["users"]
    assert row["allocated_s"] == pytest.approx(90 * 60, abs=3)
    assert row["unused_s"] == pytest.approx(60 * 60, abs=90)


# --- who used it -----------------------------------------------------------------------------


def test_a_use_continues_over_a_restart_of_the_api_and_ends_once(past: HistoryHarness) -> None:
    job = process(7)
    for _ in range(3):
        past.write_views(busy_view(past.now, job))
        past.advance(1)
    past.restart()  # without a notice to the previous process
    past.advance(5)
    past.write_views(busy_view(past.now, job))
    (use,) = past.uses()
    assert [use[name] for name in ("who", "pid", "user", "going_on")] == ["python", 7, "anna", True]
    past.advance(1)
    past.write_views(make_view(past.now))
    (use,) = past.uses()
    assert (use["from"], use["until"], use["going_on"]) == (iso(WALL), iso(WALL + 9), False)


def test_a_use_without_further_views_ends_at_its_last_view(past: HistoryHarness) -> None:
    past.write_views(busy_view(past.now, process(7)))
    past.advance(4)
    past.write_views(busy_view(past.now, process(7)))
    past.restart()
    past.advance(3600)
    past.write_views(make_view(past.now))
    (use,) = past.uses()
    assert (use["until"], use["going_on"]) == (iso(WALL + 4), False)


def test_a_renamed_use_is_stored_once(past: HistoryHarness) -> None:
    past.write_views(busy_view(past.now))
    past.advance(1)
    assert [use["who"] for use in past.uses()] == [None]
    past.write_views(busy_view(past.now, process(7)))
    assert [(use["who"], use["from"]) for use in past.uses()] == [("python", iso(WALL))]


# --- what it survives ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (b"this is not a database, it only has its name" * 100, "not a database"),
        (None, "malformed|damaged"),
    ],
)
def test_a_corrupt_file_is_set_aside_reported_and_recreated(
    past: HistoryHarness, damage: bytes | None, says: str
) -> None:
    for _ in range(300):
        past.write_event(text="x" * 500)
    past.database.close()
    assert past.path is not None
    content = bytearray(past.path.read_bytes())
    if damage is None:  # the middle of the file
        middle = len(content) // 2
        content[middle : middle + 4096] = random.Random(7).randbytes(4096)
    past.path.write_bytes(damage or bytes(content))
    past.restart()
    (trouble,) = past.write_event("gpu.busy")
    assert past.path.with_name("history.db.bad").read_bytes() == (damage or bytes(content))
    assert "renamed to" in trouble
    assert str(past.path) in trouble
    assert any(word in trouble for word in says.split("|")), trouble
    past.advance(6)
    assert past.write_event("gpu.idle") == []
    assert past.events() == ["gpu.busy", "gpu.idle"]
    assert len(past.rows("events")) == 2
    assert is_intact(past.path)


def test_a_file_that_becomes_corrupt_while_open_is_set_aside(past: HistoryHarness) -> None:
    for _ in range(300):
        past.write_event(text="x" * 500)
    assert past.path is not None
    execute = not_none(past.database._file).execute
    execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    execute("PRAGMA shrink_memory").fetchall()
    execute("PRAGMA cache_size = 1")
    size = past.path.stat().st_size
    with past.path.open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(7).randbytes(size - 4096))
    past.events()  # a query returns the available rows
    troubles = past.write_event("gpu.busy")
    assert any("renamed to" in trouble for trouble in troubles), troubles
    past.advance(6)
    past.write_event("gpu.idle")
    assert is_intact(past.path)
    assert past.events()[-1] == "gpu.idle"


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs (name)")
    connection.commit()
    connection.close()


def newer(path: Path) -> None:
    HistoryHarness(path).write_event()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()


@pytest.mark.parametrize(
    ("made", "says"),
    [(foreign, "of another application"), (newer, f"its version is {VERSION + 1}")],
)
def test_a_file_of_another_kind_or_version_is_set_aside_whole(
    tmp_path: Path, made: object, says: str
) -> None:
    path = tmp_path / "history.db"
    assert callable(made)
    made(path)
    past = HistoryHarness(path)
    (trouble,) = past.write_event()
    assert says in trouble
    assert is_intact(path.with_name("history.db.bad"))
    past.advance(6)
    past.write_event()
    assert len(past.rows("events")) == 2
    past.database.close()


def test_the_file_is_private_to_its_owner(past: HistoryHarness) -> None:
    past.write_event()
    files = list(not_none(past.path).parent.glob("history.db*"))
    assert len(files) == 3
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def remove(path: Path) -> None:
    for file in path.parent.glob("history.db*"):
        file.unlink()


@pytest.mark.parametrize(
    ("harm", "warns", "kept", "is_set_aside"),
    [
        (remove, "another program removed or replaced it", [], False),
        (lambda path: path.write_bytes(b""), "another program truncated it", [], True),
        (
            lambda path: path.with_name("history.db-wal").unlink(),
            *("another program removed or replaced it", ["gpu.busy"] * 3, False),
        ),
    ],
    ids=["removed", "truncated", "without its write-ahead log"],
)
def test_a_file_that_is_harmed_while_open_is_reported_and_used_or_recreated(
    past: HistoryHarness,
    harm: Callable[[Path], object],
    warns: str,
    kept: list[str],
    *,
    is_set_aside: bool,
) -> None:
    for _ in range(3):
        past.write_event("gpu.busy")
    assert past.path is not None
    harm(past.path)
    (warning,) = past.write_event("gpu.idle")
    assert warns in warning
    assert past.path.with_name("history.db.bad").exists() is is_set_aside
    past.advance(6)
    assert past.write_event("gpu.unknown") == []
    assert [row[2] for row in past.rows("events")] == [*kept, "gpu.idle", "gpu.unknown"]
    assert is_intact(past.path)


def test_invalid_files_are_kept_under_names_of_their_own_and_bounded_in_number(
    past: HistoryHarness,
) -> None:
    assert past.path is not None
    for number in range(MAX_SET_ASIDE + 2):
        past.database.close()
        for file in past.path.parent.glob("history.db-*"):
            file.unlink()
        past.path.write_bytes(b"invalid file number %d" % number * 300)
        past.restart()
        assert any("renamed" in warning for warning in past.write_event())
    kept = {file.read_bytes()[:22] for file in past.path.parent.glob("history.db.bad*")}
    last = range(2, MAX_SET_ASIDE + 2)
    assert kept == {b"invalid file number %d" % number + b"i" for number in last}


def remount(folder: Path, size: str) -> None:
    command = ["mount", "-o", f"remount,size={size}", str(folder)]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.long
def test_a_file_that_another_program_locks_gets_its_rows_later(past: HistoryHarness) -> None:
    """As a backup does, or a shell that began to write."""
    assert past.path is not None
    past.write_views(make_view(past.now))
    other = sqlite3.connect(past.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    past.advance(1)
    (warning,) = past.write_views(make_view(past.now))
    assert "locked" in warning
    assert len(past.readings()) == 1, "the row that waits"
    other.close()
    past.advance(6)
    assert past.write_event() == []
    assert len(past.readings()) == 2


@pytest.mark.long
def test_a_temporarily_full_disk_loses_no_row(tiny_disk: Path) -> None:
    remount(tiny_disk, "4m")
    past = HistoryHarness(tiny_disk / "history.db")
    past.write_event("first")
    past.write_views(busy_view(past.now, process(7)), busy_view(past.now, process(8), uuid=OTHER))
    filler = tiny_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    warnings = []
    for number in range(400):  # more than an hour and ten minutes
        past.advance(11)
        warnings += past.write_event(f"full.{number}", text="x" * 2000)
        past.write_views(make_view(past.now), busy_view(past.now, process(8), uuid=OTHER))
    assert len(warnings) == 1, "once, and not each time"
    assert "full" in warnings[0]
    full = [f"full.{number}" for number in range(400)]
    assert past.events()[-399:] == full[1:]
    assert len(past.readings()) > 300
    filler.unlink()
    past.advance(6)
    assert past.write_event("last") == []
    past.write_views(make_view(past.now))
    assert past.events() == ["first", *full, "last"]
    ticks = {row[1] for row in past.rows("minutes")}
    assert ticks < set(range(min(row[0] for row in past.rows("seconds")))), "they are older"
    (all_readings,) = past.readings(7200, 7200)
    assert all_readings["seconds"] == 402
    uses = [(use["pid"], use["from"], use["until"], use["going_on"]) for use in past.uses()]
    assert uses == [
        (7, iso(WALL), iso(WALL), False),
        (8, iso(WALL), iso(WALL + 4400), True),
    ]
    assert is_intact(tiny_disk / "history.db")
    past.database.close()


WRITES = """
import sys
from pathlib import Path
from tests.harness.history_harness import HistoryHarness, make_view, busy_view, process
past = HistoryHarness(Path(sys.argv[1]))
for number in range(10**6):
    past.write_views(make_view(past.now), busy_view(past.now, process(number)))
    past.write_event("gpu.idle", number=number, text="x" * 300)
    print(number, flush=True)
    past.advance(30)
"""


@pytest.mark.long
def test_after_a_kill_at_any_moment_the_file_is_intact_and_has_all_written_rows(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.db"
    written = 0
    for turn in range(8):
        with piped_program(
            sys.executable,
            "-c",
            WRITES,
            str(path),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline()
            time.sleep(random.Random(turn).uniform(0.0, 0.3))  # the kill comes at any moment
            os.kill(writer.pid, signal.SIGKILL)
            written += 1 + sum(line.endswith("\n") for line in writer.stdout)
        assert is_intact(path)
        past = HistoryHarness(path)
        past.write_event("gpu.busy")
        found = len(past.rows("events"))
        past.database.close()
        assert found > written
        written = found


# --- how large it gets -----------------------------------------------------------------------


def test_above_the_size_limit_the_oldest_events_are_removed_if_they_are_largest(
    tmp_path: Path,
) -> None:
    size = 16 * 2**20
    past = HistoryHarness(tmp_path / "history.db", size)
    past.database.open(past.now, past.wall)
    past.database.write(batch_of(range(600), past.wall), past.now)
    most = 0
    for number in range(40):
        past.database.write(Batch(events=event_rows(100, 4000, first=number * 100)), past.now)
        most = max(most, sum(file.stat().st_size for file in tmp_path.glob("history.db*")))
    assert most <= size
    names = [row[2] for row in past.rows("events")]
    assert names[-1] == "event.3999"
    assert names == [f"event.{n}" for n in range(4000 - len(names), 4000)], "the oldest went"
    assert len(names) > 1000
    assert len(past.rows("seconds")) == 600, "readings stay"
    assert is_intact(tmp_path / "history.db")
    past.database.close()


@pytest.mark.long
def test_readings_of_many_gpus_do_not_displace_the_events(tmp_path: Path) -> None:
    past = HistoryHarness(tmp_path / "history.db", 16 * 2**20)
    past.database.open(past.now, past.wall)
    past.database.write(Batch(events=event_rows(1000, 1000)), past.now)
    for uuid in (f"GPU-{n}" for n in range(32)):
        past.database.write(batch_of(range(1800), past.wall, uuid=uuid), past.now + 1800)
    assert len(past.rows("events")) == 1000
    assert 0 < len(past.rows("seconds")) < 32 * 1800
    past.database.close()


def test_a_lower_size_limit_shrinks_the_file(tmp_path: Path) -> None:
    past = HistoryHarness(tmp_path / "history.db", 64 * 2**20)
    past.database.open(past.now, past.wall)
    for _ in range(30):
        past.database.write(Batch(events=event_rows(100, 8000)), past.now)
    past.database.close()
    assert (tmp_path / "history.db").stat().st_size > 16 * 2**20
    past.size = 16 * 2**20
    past.restart()
    past.write_event()
    past.database.close()
    assert (tmp_path / "history.db").stat().st_size < 16 * 2**20


def test_rows_that_wait_for_their_file_are_bounded_and_the_oldest_are_lost(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    past = HistoryHarness(folder / "history.db")
    views = [busy_view(past.now, process(7))] * 5
    (warning,) = [warning for view in views for warning in past.write_views(view)]
    assert warning.endswith("No such file or directory; the last hour is kept in memory")
    for _ in range(30):
        past.database.write(Batch(events=event_rows(100, 10_000)), past.now)
    past.write_event("gpu.busy")
    assert history_tables.used_bytes(past.database._memory) <= MEMORY_BYTES
    folder.mkdir(mode=0o700)
    past.advance(6)
    assert past.write_views(busy_view(past.now, process(7))) == []
    assert past.rows("events")[-1][2] == "gpu.busy"
    assert [(use["pid"], use["from"]) for use in past.uses()] == [(7, iso(WALL))], "the use goes on"
    past.database.close()


def test_rows_that_wait_after_a_boot_follow_those_in_the_file(tmp_path: Path) -> None:
    folder, away = tmp_path / "state", tmp_path / "away"
    folder.mkdir(mode=0o700)
    past = HistoryHarness(folder / "history.db")
    for _ in range(200):
        past.write_views(make_view(past.now))
        past.advance(1)
    past.database.close()
    folder.rename(away)
    past.restart()
    past.now = 50.0  # the monotonic clock begins again
    for _ in range(200):
        past.write_views(make_view(past.now))
        past.advance(1)
    away.rename(folder)
    past.advance(6)
    past.write_event()
    times = [row[2] for row in past.rows("seconds")]
    assert len(times) == 400
    assert times == sorted(times)
    past.database.close()


def test_rows_that_wait_for_an_unwritable_disk_are_bounded(tmp_path: Path) -> None:
    history = History(tmp_path / "history.db", SIZE, pytest.fail)
    for number in range(20_000):
        history.add(make_view(BEGIN + number))
    assert len(history._queue) < 10_000
    newest = history._queue[-1].record
    assert isinstance(newest, GpuView)
    assert newest.at == BEGIN + 19_999, "the oldest are lost first"
    for number in range(1000):
        history.add(LoggedEvent(number=number, fields={}, text="x" * 60_000))
    waiting = [one.record for one in history._queue]
    assert sum(len(one.text) for one in waiting if isinstance(one, LoggedEvent)) <= 4 * 2**20
