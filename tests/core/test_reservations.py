"""Reservations outlive a daemon, a boot and a bad file as far as they make sense."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.control import Asker, Reservation
from sentinel.reservations import Stored, boot_id, load, parse, revive, store, stored

MADE = Reservation(
    id="1a2b3c4d",
    gpus=("GPU-1", "GPU-2"),
    reason="größer",
    by=Asker(via="unix", uid=1000, pid=4711, started=99),
    since=50.0,
    until=150.0,
    bound=False,
    confirmed=True,
)
ON_DISK = stored([MADE], wall=1_000_100.0, monotonic=100.0, boot="this")


def test_a_clock_that_was_set_back_makes_no_reservation_longer() -> None:
    (one,) = revive(ON_DISK, wall=900_000.0, monotonic=110.0, boot="this")
    assert one.until == 110.0 + 100.0


def test_times_are_those_of_the_calendar() -> None:
    (one,) = ON_DISK
    assert (one.since, one.until) == (1_000_050.0, 1_000_150.0)


def test_what_was_stored_is_the_same_after_a_restart_of_the_daemon() -> None:
    assert revive(ON_DISK, wall=1_000_110.0, monotonic=110.0, boot="this") == (MADE,)


def test_after_a_boot_the_time_goes_on_and_no_process_is_named() -> None:
    (held,) = revive(ON_DISK, wall=1_000_140.0, monotonic=5.0, boot="next")
    assert held.until == 15.0
    assert held.by == Asker(via="unix", uid=1000)


def test_what_is_over_is_left_out() -> None:
    assert revive(ON_DISK, wall=1_000_150.0, monotonic=150.0, boot="this") == ()


def test_what_was_bound_to_a_process_ends_with_the_boot() -> None:
    bound = stored([replace(MADE, bound=True)], wall=100.0, monotonic=100.0, boot="this")
    assert len(revive(bound, wall=110.0, monotonic=110.0, boot="this")) == 1
    assert revive(bound, wall=110.0, monotonic=10.0, boot="next") == ()


def test_a_file_gives_back_what_was_stored(tmp_path: Path) -> None:
    path = tmp_path / "reservations.json"
    endless = replace(ON_DISK[0], id="x", until=None, uid=None, pid=None, started=None)
    store(path, [*ON_DISK, endless])
    assert load(path) == ((*ON_DISK, endless), None)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_missing_file_has_nothing_and_is_no_trouble(tmp_path: Path) -> None:
    assert load(tmp_path / "none.json") == ((), None)


def bodies() -> list[str]:
    good = vars(ON_DISK[0])
    wrong: list[object] = [
        {**good, "gpus": "GPU-1"},
        {**good, "gpus": [1]},
        {**good, "since": "now"},
        {**good, "until": True},
        {**good, "until": 10**400},
        {**good, "pid": 1.5},
        {**good, "bound": 1},
        {name: value for name, value in good.items() if name != "boot"},
        [],
        None,
    ]
    bodies = [{"schema_version": 1, "reservations": [one]} for one in wrong]
    rest = [{"schema_version": 2, "reservations": []}, {}, [], 7, {"schema_version": 1}]
    texts = [json.dumps(body) for body in (*bodies, *rest)]
    nan = '{"schema_version": 1, "reservations": [' + json.dumps({**good, "since": 0}) + "]}"
    return [*texts, nan.replace('"since": 0', '"since": NaN'), "", "{", "\x00", "[" * 100_000]


@pytest.mark.parametrize("text", bodies())
def test_a_bad_file_is_set_aside_and_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"^\w+: "):
        parse(text)
    path = tmp_path / "reservations.json"
    path.write_text(text)
    found, why = load(path)
    assert found == ()
    assert why is not None
    assert str(path) in why
    assert (tmp_path / "reservations.json.bad").read_text() == text
    assert load(path) == ((), None)


def test_a_file_that_is_no_text_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "reservations.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert load(path)[1]
    assert not path.exists()


def test_a_file_that_cannot_be_written_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "reservations.json"
    store(path, ON_DISK)
    (tmp_path / "reservations.json.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        store(path, [])
    assert load(path) == (ON_DISK, None)


def test_a_file_that_cannot_be_read_is_said_and_left(tmp_path: Path) -> None:
    path = tmp_path / "reservations.json"
    path.mkdir()
    found, why = load(path)
    assert found == ()
    assert "cannot be read" in (why or "")
    assert path.exists()


def test_each_boot_has_a_name() -> None:
    assert boot_id() == boot_id() != ""


def test_a_record_has_every_field_that_a_reservation_needs() -> None:
    assert set(vars(ON_DISK[0])) == set(Stored.__dataclass_fields__)
