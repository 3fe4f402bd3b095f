"""Reservations outlive a daemon, a boot and an invalid file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.model import Config
from sentinel.core.decide import first_state
from sentinel.core.node.reservation_commands import expire
from sentinel.core.observation import Observation
from sentinel.host.stores.reservation_store import RESERVATIONS, StoredReservation
from sentinel.host.stores.timed_file import Clocks
from sentinel.protocol.caller import Caller
from sentinel.protocol.views import Reservation
from tests.harness.world.gpus import fake_gpu

RESERVATION = Reservation(
    id="1a2b3c4d",
    gpus=("GPU-1", "GPU-2"),
    reason="größer",
    by=Caller(via="unix", uid=1000, pid=4711, started=99),
    since=50.0,
    until=150.0,
    bound=False,
    confirmed=True,
)


def in_force(stored: Iterable[StoredReservation], clocks: Clocks) -> tuple[Reservation, ...]:
    """List the restored reservations that the supervisor will not end at once."""
    found = RESERVATIONS.restore(stored, clocks)
    return tuple(one for one in found if one.until is None or one.until > clocks.monotonic)


ON_DISK = RESERVATIONS.to_stored(
    [RESERVATION], Clocks(wall=1_000_100.0, monotonic=100.0, boot="this")
)


def test_setting_the_clock_back_does_not_extend_a_reservation() -> None:
    (restored,) = RESERVATIONS.restore(
        ON_DISK, Clocks(wall=900_000.0, monotonic=110.0, boot="next")
    )
    assert restored.until == 110.0 + 100.0


@pytest.mark.parametrize("wall", [0.0, 900_000.0, 1_000_110.0, 1_000_160.0, 4e9])
def test_changes_of_the_clock_within_a_boot_have_no_effect(wall: float) -> None:
    endless = replace(RESERVATION, id="x", until=None)
    stored = RESERVATIONS.to_stored(
        [RESERVATION, endless], Clocks(wall=1_000_100.0, monotonic=100.0, boot="this")
    )
    assert RESERVATIONS.restore(stored, Clocks(wall=wall, monotonic=149.9, boot="this")) == (
        RESERVATION,
        endless,
    )
    assert in_force(stored, Clocks(wall=wall, monotonic=150.0, boot="this")) == (endless,)


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
    stored = RESERVATIONS.to_stored(
        [reservation], Clocks(wall=before, monotonic=since, boot="this")
    )
    found = in_force(stored, Clocks(wall=after, monotonic=since + outage, boot="this"))
    assert found == ((reservation,) if since + outage < since + duration else ())


@pytest.mark.parametrize(
    ("monotonic", "stored_boot", "boot"),
    [(110.0, "this", "next"), (110.0, "", ""), (40.0, "this", "this")],
)
def test_with_another_monotonic_clock_the_wall_clock_is_used(
    monotonic: float, stored_boot: str, boot: str
) -> None:
    stored = RESERVATIONS.to_stored(
        [RESERVATION], Clocks(wall=1_000_100.0, monotonic=100.0, boot=stored_boot)
    )
    (restored,) = RESERVATIONS.restore(
        stored, Clocks(wall=1_000_120.0, monotonic=monotonic, boot=boot)
    )
    assert restored.until == monotonic + 30.0
    assert in_force(stored, Clocks(wall=1_000_150.0, monotonic=monotonic, boot=boot)) == ()


def test_times_are_stored_by_the_wall_clock_and_by_the_monotonic_clock() -> None:
    (record,) = ON_DISK
    assert (record.since, record.until) == (1_000_050.0, 1_000_150.0)
    assert (record.since_monotonic, record.until_monotonic) == (50.0, 150.0)


def test_a_reservation_is_unchanged_after_a_restart_of_the_daemon() -> None:
    assert RESERVATIONS.restore(
        ON_DISK, Clocks(wall=1_000_110.0, monotonic=110.0, boot="this")
    ) == (RESERVATION,)


def test_after_a_boot_the_time_continues_and_the_process_is_unbound() -> None:
    (reservation,) = RESERVATIONS.restore(
        ON_DISK, Clocks(wall=1_000_140.0, monotonic=5.0, boot="next")
    )
    assert reservation.until == 15.0
    assert reservation.by == Caller(via="unix", uid=1000)


@pytest.mark.parametrize(
    ("wall", "monotonic", "boot"), [(1_000_150.0, 150.0, "this"), (4e9, 5.0, "next")]
)
def test_the_end_of_a_reservation_without_a_daemon_is_reported(
    wall: float, monotonic: float, boot: str
) -> None:
    """Also if a clock that is wrong after a boot ends it too early."""
    held = RESERVATIONS.restore(ON_DISK, Clocks(wall=wall, monotonic=monotonic, boot=boot))
    gpu = fake_gpu(0)
    state = first_state((gpu,), monotonic, Config())
    kept = {one.id: replace(one, gpus=(gpu.uuid,)) for one in held}
    step = expire(replace(state, reservations=kept), Observation(now=monotonic))
    assert not step.state.reservations
    assert [(one.name, one.fields["id"]) for one in step.events] == [("gpu.unreserved", "1a2b3c4d")]


def test_a_bound_reservation_ends_with_the_boot() -> None:
    bound = RESERVATIONS.to_stored(
        [replace(RESERVATION, bound=True)], Clocks(wall=100.0, monotonic=100.0, boot="this")
    )
    assert len(RESERVATIONS.restore(bound, Clocks(wall=110.0, monotonic=110.0, boot="this"))) == 1
    assert in_force(bound, Clocks(wall=110.0, monotonic=10.0, boot="next")) == ()


def test_a_file_returns_the_stored_reservations(tmp_path: Path) -> None:
    path = tmp_path / "reservations.json"
    endless = replace(
        ON_DISK[0], id="x", until=None, until_monotonic=None, uid=None, pid=None, started=None
    )
    RESERVATIONS.save(path, [*ON_DISK, endless])
    assert RESERVATIONS.load(path) == ((*ON_DISK, endless), None)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_missing_file_is_empty_and_no_problem(tmp_path: Path) -> None:
    assert RESERVATIONS.load(tmp_path / "none.json") == ((), None)


def bodies() -> list[str]:
    good = vars(ON_DISK[0])
    wrong: list[object] = [
        {**good, "gpus": "GPU-1"},
        {**good, "gpus": [1]},
        {**good, "since": "now"},
        {**good, "until": True},
        {**good, "until": 10**400},
        {**good, "until": None},
        {**good, "since_monotonic": "now"},
        {**good, "since_monotonic": None},
        {**good, "until_monotonic": None},
        {**good, "until_monotonic": True},
        {**good, "pid": 1.5},
        {**good, "bound": 1},
        {**good, "boot": 1},
        *({name: good[name] for name in good if name != missing} for missing in good),
        [],
        None,
    ]
    bodies = [{"schema_version": 1, "reservations": [record]} for record in wrong]
    rest = [{"schema_version": 0, "reservations": []}, {}, [], 7, {"schema_version": 1}]
    texts = [json.dumps(body) for body in (*bodies, *rest)]
    nan = '{"schema_version": 1, "reservations": [' + json.dumps({**good, "since": 0}) + "]}"
    return [*texts, nan.replace('"since": 0', '"since": NaN'), "", "{", "\x00", "[" * 100_000]


@pytest.mark.parametrize("text", bodies())
def test_an_invalid_file_is_renamed_and_reported(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"^(reservations|schema_version|the value|not JSON)"):
        RESERVATIONS.parse(text)
    path = tmp_path / "reservations.json"
    path.write_text(text)
    found, error = RESERVATIONS.load(path)
    assert found == ()
    assert error is not None
    assert str(path) in error
    assert (tmp_path / "reservations.json.bad").read_text() == text
    assert RESERVATIONS.load(path) == ((), None)


def test_a_file_that_is_not_text_is_renamed(tmp_path: Path) -> None:
    path = tmp_path / "reservations.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert RESERVATIONS.load(path)[1]
    assert not path.exists()


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "reservations.json"
    RESERVATIONS.save(path, ON_DISK)
    (tmp_path / "reservations.json.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        RESERVATIONS.save(path, [])
    assert RESERVATIONS.load(path) == (ON_DISK, None)


def test_an_unreadable_file_is_reported_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "reservations.json"
    path.mkdir()
    found, error = RESERVATIONS.load(path)
    assert found == ()
    assert "cannot be read" in (error or "")
    assert path.exists()


def test_a_record_has_every_field_of_a_reservation() -> None:
    assert set(vars(ON_DISK[0])) == set(StoredReservation.__dataclass_fields__)
