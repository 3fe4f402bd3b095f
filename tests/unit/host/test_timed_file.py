"""Reservations and sessions outlive a daemon, a boot and an invalid file, by two clocks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.model import Config
from sentinel.core.decide import first_state
from sentinel.core.node.grants import expire
from sentinel.core.observation import Observation
from sentinel.host.timed_file import RESERVATIONS, SESSIONS, Clocks
from sentinel.protocol.commands import Caller, Level
from sentinel.protocol.views import Reservation, Session
from tests.harness.world.gpus import fake_gpu

BY = Caller(via="unix", uid=1000, pid=4711, started=99, level=Level.OPERATE, user="anna")
RESERVATION = Reservation(
    id="1a2b3c4d",
    gpus=("GPU-1", "GPU-2"),
    named=("GPU-1", "GPU-2"),
    count=2,
    reason="größer",
    by=replace(BY, level=Level.NONE),
    since=50.0,
    seconds=100.0,
    until=150.0,
)
ENDLESS = replace(RESERVATION, id="x", seconds=None, until=None)
SESSION = Session(
    name="train", gpus=("GPU-0",), settings={"workload": "hold"}, by=BY, since=50.0, until=150.0
)
WRITTEN = Clocks(wall=1_000_100.0, monotonic=100.0, boot="this")


def text(*items: Reservation, written: Clocks = WRITTEN) -> str:
    """Build the text of a file."""
    body = {"schema_version": 1, "written": written, "reservations": list(items)}
    return json.dumps(body, default=vars)


def restored(clocks: Clocks, *items: Reservation, written: Clocks = WRITTEN) -> list[Reservation]:
    """List the restored reservations that the supervisor will not end at once."""
    found = RESERVATIONS.parse(text(*items, written=written), clocks)
    return [one for one in found if one.until is None or one.until > clocks.monotonic]


@pytest.mark.parametrize("wall", [0.0, 900_000.0, 1_000_110.0, 1_000_160.0, 4e9])
def test_changes_of_the_clock_within_a_boot_have_no_effect(wall: float) -> None:
    both = (RESERVATION, ENDLESS)
    assert restored(Clocks(wall=wall, monotonic=149.9, boot="this"), *both) == [*both]
    assert restored(Clocks(wall=wall, monotonic=150.0, boot="this"), *both) == [ENDLESS]


@given(
    since=st.floats(0, 1e6),
    duration=st.floats(0.001, 1e6),
    outage=st.floats(0, 2e6),
    before=st.floats(0, 4e9),
    after=st.floats(0, 4e9),
)
def test_a_restart_of_the_daemon_does_not_change_the_end_of_a_reservation(
    since: float, duration: float, outage: float, before: float, after: float
) -> None:
    reservation = replace(RESERVATION, since=since, until=since + duration)
    written = Clocks(wall=before, monotonic=since, boot="this")
    now = Clocks(wall=after, monotonic=since + outage, boot="this")
    found = restored(now, reservation, written=written)
    assert found == ([reservation] if since + outage < since + duration else [])


@pytest.mark.parametrize(
    ("monotonic", "stored_boot", "boot"),
    [(110.0, "this", "next"), (110.0, "", ""), (40.0, "this", "this")],
)
def test_with_another_monotonic_clock_the_wall_clock_is_used(
    monotonic: float, stored_boot: str, boot: str
) -> None:
    written = replace(WRITTEN, boot=stored_boot)
    now = Clocks(wall=1_000_120.0, monotonic=monotonic, boot=boot)
    (found,) = restored(now, RESERVATION, written=written)
    assert found.until == monotonic + 30.0
    assert found.by == Caller(via="unix", uid=1000), "the PID is another process's"
    later = replace(now, wall=1_000_150.0)
    assert restored(later, RESERVATION, written=written) == []


def test_setting_the_clock_back_does_not_extend_a_reservation() -> None:
    (found,) = restored(Clocks(wall=900_000.0, monotonic=110.0, boot="next"), RESERVATION)
    assert found.until == 110.0 + 100.0


@pytest.mark.parametrize(
    ("wall", "monotonic", "boot"), [(1_000_150.0, 150.0, "this"), (4e9, 5.0, "next")]
)
def test_the_end_of_a_reservation_without_a_daemon_is_reported(
    wall: float, monotonic: float, boot: str
) -> None:
    """Also if a clock that is wrong after a boot ends it too early."""
    clocks = Clocks(wall=wall, monotonic=monotonic, boot=boot)
    gpu = fake_gpu(0)
    state = first_state((gpu,), monotonic, Config())
    (found,) = RESERVATIONS.parse(text(RESERVATION), clocks)
    kept = {found.id: replace(found, gpus=(gpu.uuid,))}
    step = expire(replace(state, reservations=kept), Observation(now=monotonic))
    assert not step.state.reservations
    assert [(event.name, event.fields["id"]) for event in step.events] == [
        ("gpu.unreserved", "1a2b3c4d")
    ]


def test_what_is_written_is_restored(tmp_path: Path) -> None:
    now = Clocks(wall=5.0, monotonic=120.0, boot="this")
    path, other = tmp_path / RESERVATIONS.name, tmp_path / SESSIONS.name
    RESERVATIONS.write(path, [replace(RESERVATION, by=BY), ENDLESS], WRITTEN)
    SESSIONS.write(other, [SESSION], WRITTEN)
    assert RESERVATIONS.load(path, now) == ((RESERVATION, ENDLESS), None)
    (session,) = SESSIONS.load(other, now)[0]
    assert session == replace(SESSION, by=replace(BY, level=Level.NONE)), "levels are not kept"
    assert path.stat().st_mode & 0o777 == 0o600
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name, other.name}
    assert RESERVATIONS.load(tmp_path / "none.json", now) == ((), None)


def invalid_files() -> list[str]:
    body = json.loads(text(RESERVATION))
    (good,) = body["reservations"]
    required = ("id", "count", "reason", "by", "since")
    wrong: list[object] = [
        {**good, "gpus": "GPU-1"},
        {**good, "gpus": [1]},
        {**good, "since": "now"},
        {**good, "since": -1e18},
        {**good, "until": True},
        {**good, "until": 1e18},
        {**good, "until": 10**400},
        {**good, "by": {**good["by"], "pid": 1.5}},
        {**good, "bound": 1},
        *({name: good[name] for name in good if name != missing} for missing in required),
        [],
        None,
    ]
    changes: list[dict[str, Any]] = [{"reservations": [entry]} for entry in wrong]
    changes += [{"reservations": 7}, {"schema_version": 2}, {"written": None}]
    changes += [{"written": {**body["written"], "boot": 1}}]
    texts = [json.dumps(body | change) for change in changes]
    texts += ["{}", "[]", "7"]
    nan = text(RESERVATION).replace('"since": 50.0', '"since": NaN')
    return [*texts, nan, "", "{", "\x00", "[" * 100_000]


@pytest.mark.parametrize("body", invalid_files())
def test_an_invalid_file_is_renamed_and_reported(tmp_path: Path, body: str) -> None:
    with pytest.raises(
        ValueError, match=r"^(reservations|schema_version|\.?written|the value|not)"
    ):
        RESERVATIONS.parse(body, WRITTEN)
    path = tmp_path / RESERVATIONS.name
    path.write_text(body)
    found, error = RESERVATIONS.load(path, WRITTEN)
    assert found == ()
    assert error is not None
    assert f"{path}.bad" in error
    assert "its reservations are ignored" in error
    assert path.with_name(f"{path.name}.bad").read_text() == body
    assert RESERVATIONS.load(path, WRITTEN) == ((), None)


def test_a_file_that_is_not_text_is_renamed(tmp_path: Path) -> None:
    path = tmp_path / RESERVATIONS.name
    path.write_bytes(b"\xff\xfe\x00")
    assert RESERVATIONS.load(path, WRITTEN)[1]
    assert not path.exists()


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / RESERVATIONS.name
    RESERVATIONS.write(path, [RESERVATION], WRITTEN)
    (tmp_path / f"{path.name}.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        RESERVATIONS.write(path, [], WRITTEN)
    assert RESERVATIONS.load(path, WRITTEN) == ((RESERVATION,), None)


def test_an_unreadable_file_is_reported_and_kept(tmp_path: Path) -> None:
    path = tmp_path / RESERVATIONS.name
    path.mkdir()
    found, error = RESERVATIONS.load(path, WRITTEN)
    assert found == ()
    assert "cannot be read" in (error or "")
    assert path.exists()
