"""What is shown of GPUs, processes, daemons and proofs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli.daemon import health, known_cards
from sentinel.cli.daemon.status import page_address
from sentinel.cli.display import gpu_table
from sentinel.client import (
    DaemonInfo,
    GpuStatus,
    Handover,
    Holder,
    Process,
    ReservationInfo,
    Status,
)
from sentinel.errors import AccessDeniedError, ConfigError
from sentinel.host.last_verdicts import LastVerdict
from sentinel.protocol.api_types import BurninProgress, GpuProof
from sentinel.protocol.rules import gpu_state
from sentinel.units import format_brief
from tests.harness.burnin_report import PROGRESS
from tests.harness.gpu_views import gpu_status

NOW = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)
SEVEN_S_AGO = f"{(NOW - timedelta(seconds=7)).astimezone():%H:%M:%S}"


def gpu(**fields: Any) -> GpuStatus:
    usual: dict[str, Any] = {
        "uuid": "GPU-1",
        "name": "Fake",
        "stressor": "STOPPED",
        "rule": "idle",
        "reason": "idle",
    }
    return gpu_status(**(usual | fields))


def reservation(**fields: Any) -> ReservationInfo:
    usual: dict[str, Any] = {"id": "1a2b3c4d", "gpus": ("GPU-1",), "reason": "", "since": NOW}
    return ReservationInfo(**(usual | fields))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "idle"),
        ({"stressor": "RUNNING"}, "occupied"),
        ({"stressor": "STARTING"}, "starting"),
        ({"stressor": "STOPPING", "admin": "PAUSED"}, "stopping"),
        ({"stressor": "BACKOFF"}, "backoff"),
        ({"stressor": "FATAL"}, "failed"),
        ({"stressor": "FATAL", "occupancy": "BUSY"}, "busy"),
        ({"occupancy": "BUSY"}, "busy"),
        ({"occupancy": "UNKNOWN"}, "unknown"),
        ({"occupancy": "BUSY", "admin": "PAUSED"}, "paused"),
        ({"admin": "RESERVED"}, "reserved"),
        ({"occupancy": "OF TOMORROW"}, "unknown"),
    ],
)
def test_each_state_of_a_gpu_is_one_word(fields: dict[str, str], expected: str) -> None:
    assert gpu_state(gpu(**fields)) == expected


ANA = Process(pid=7, name="python", user="ana")


@pytest.mark.parametrize(
    ("fields", "holder"),
    [
        ({}, ""),
        ({"stressor": "RUNNING", "workload": "gemm", "processes": (ANA,)}, "sentinel gemm"),
        ({"stressor": "STARTING"}, "sentinel"),
        ({"processes": (ANA,)}, "ana 7 python"),
        ({"processes": (Process(pid=7), ANA, ANA)}, "pid 7 +2"),
        ({"reservation": "1a2b3c4d"}, "ben demo"),
        ({"reservation": "1a2b3c4d", "processes": (ANA,)}, "ana 7 python"),
        ({"reservation": "of another"}, ""),
    ],
)
def test_the_holder_is_sentinel_a_foreign_process_or_a_reservation(
    fields: dict[str, Any], holder: str
) -> None:
    held = reservation(reason="demo", holder=Holder(uid=1001, user="ben"))
    assert gpu_table.row(gpu(**fields), [held])[3] == holder


def test_an_unknown_value_is_an_empty_cell_and_not_zero() -> None:
    row = ("0", "idle", "", "", "?/140G", "", "", "", "", "")
    assert gpu_table.row(gpu()) == row
    known = {"utilization": 0.0, "temperature_c": 0, "power_w": 0.0, "memory_used": 0}
    assert gpu_table.row(gpu(**known))[4:8] == ("0/140G", "0%", "0C", "0W")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"flops_per_s": 656.24e12, "bytes_per_s": 1e12}, "656TF/s"),
        ({"flops_per_s": 1.68e9}, "1.68GF/s"),
        ({"flops_per_s": 999.7e9}, "1TF/s"),
        ({"bytes_per_s": 3.94e12}, "3.94TB/s"),
        ({"flops_per_s": 0.0, "iterations_per_s": 12.34}, "12.3/s"),
        ({"flops_per_s": 0.5}, "0.5F/s"),
    ],
)
def test_the_rate_has_the_best_unit(fields: dict[str, float], text: str) -> None:
    assert gpu_table.rate(gpu(**fields)) == text


@pytest.mark.parametrize(
    ("back", "text"), [(0.196, "196ms, 3m ago"), (None, "193ms, 3m ago"), (2.04, "2.0s, 3m ago")]
)
def test_the_last_hand_over_is_shown_with_duration_and_age(back: float | None, text: str) -> None:
    last = Handover(ago_s=180.0, evidence="memory", exit=0.193, memory_back=back)
    assert gpu_table.row(gpu(handover=last))[-1] == text


FULL = gpu(
    index=127,
    stressor="RUNNING",
    findings=3,
    since_s=5000.0,
    workload="sentinel_workload_fft:a_very_long_name_of_a_workload",
    memory_used=139 * 2**30,
    utilization=1.0,
    temperature_c=104,
    power_w=1000.4,
    flops_per_s=656.2e12,
    handover=Handover(ago_s=86000.0, evidence="memory", exit=0.193, memory_back=0.196),
)


@pytest.mark.parametrize("gpus", [[gpu()], [FULL], [FULL, gpu(processes=(ANA, ANA)), gpu()]])
def test_the_table_fits_80_columns(gpus: list[GpuStatus]) -> None:
    lines = gpu_table.GPUS.lines(map(gpu_table.row, gpus), 80, colour=False)
    assert len(lines) == len(gpus) + 1
    assert all(len(line) <= 80 for line in lines)
    for each, line in zip(gpus, lines[1:], strict=True):
        for number, cell in enumerate(gpu_table.row(each)):
            assert number == gpu_table.GPUS.flexible or cell in line


# --- around the table ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "text"),
    [
        ((), "no GPU"),
        (("H200", "H200"), "2 x H200, 140 GiB"),
        (
            ("H200", "H200", "A2", "H200", "A2"),
            "GPU 0-1,3: H200, 140 GiB; GPU 2,4: A2, 140 GiB",
        ),
    ],
)
def test_the_title_has_the_host_and_the_models(models: tuple[str, ...], text: str) -> None:
    gpus = [gpu(index=number, name=name) for number, name in enumerate(models)]
    assert gpu_table.title(status(*gpus, host="node7")) == f"node7  {text}"


def test_the_short_list_is_that_of_nvidia_smi_with_the_state() -> None:
    line = gpu_table.list_line(gpu(index=3, occupancy="BUSY"))
    assert line == "GPU 3: Fake (UUID: GPU-1) busy"


def status(*gpus: GpuStatus, **daemon: Any) -> Status:
    usual: dict[str, Any] = {
        "pid": 4242,
        "version": "0.1.0",
        "phase": "occupying",
        "since": NOW - timedelta(minutes=90),
        "driver": "580.1",
        "simulated": False,
        "workload": "gemm",
        "socket": "/s",
    }
    kept = reservation(reason="demo", indices=(0, 1), until=NOW, holder=Holder(uid=1))
    return Status(daemon=DaemonInfo(**(usual | daemon)), gpus=gpus, reservations=(kept,))


@pytest.mark.parametrize(
    ("health", "cause", "multiplier", "lines"),
    [
        ("normal", "temperature", 0.8, []),
        (
            "throttled",
            "temperature",
            0.5,
            ["GPU 0: throttled because of its temperature, 50% of its speed permitted"],
        ),
        ("critical", "memory", 1.0, ["GPU 0: critical because of its memory"]),
        ("critical", "hardware", 1.0, ["GPU 0: critical because of its hardware"]),
        (None, None, 0.0, []),
    ],
)
def test_a_gpu_in_bad_health_has_its_own_line(
    health: str | None, cause: str | None, multiplier: float, lines: list[str]
) -> None:
    hot = gpu(health=health, health_cause=cause, multiplier=multiplier)
    assert [line for line in gpu_table.notes(status(hot)) if "because" in line] == lines


def test_an_end_on_another_day_has_its_date() -> None:
    """Without it, the clock of tomorrow reads as a moment that is over."""
    end = (datetime.now().astimezone() + timedelta(days=2)).replace(microsecond=0)
    text = gpu_table.describe_reserved(reservation(until=end))
    assert text.endswith(f" until {end:%m-%d %H:%M:%S}")


@pytest.mark.parametrize("bound", [False, True])
def test_a_reservation_names_its_user_and_the_process_that_it_ends_with(*, bound: bool) -> None:
    holder = Holder(uid=1001, user="ben", pid=77, name="python")
    text = gpu_table.describe_reserved(reservation(reason="demo", bound=bound, holder=holder))
    by = "ben (python 77)" if bound else "ben"
    assert f"reserved as 1a2b3c4d by {by} for demo" in text


def test_details_that_do_not_fit_into_a_row_are_below_the_table() -> None:
    lines = gpu_table.notes(
        status(
            gpu(findings=2, last_finding="a bit of an input"),
            gpu(index=1, occupancy="UNKNOWN", reason="lost from the bus", read_s=9.0),
            gpu(index=2, admin="PAUSED", reason="paused", rule_until_s=89.2),
            gpu(index=3),
            gpu(index=4, stressor="RUNNING", reason="running"),
            gpu(index=5, processes=(ANA,), reason="used by foreign processes"),
        )
    )
    assert [line.partition(" until ")[0] for line in lines] == [
        "GPU 0,3: idle",
        "GPU 0: 2 findings, it cannot be trusted; last: a bit of an input",
        "GPU 0, 1: reserved as 1a2b3c4d by uid 1 for demo",
        "GPU 1: lost from the bus",
        "GPU 1: last read 9 s ago",
        "GPU 2: paused; may change in 1 min 30 s",
    ]


@pytest.mark.parametrize(
    ("daemon", "line"),
    [
        ({}, "occupying  gemm, driver 580.1"),
        ({"simulated": True}, "occupying  gemm, SIMULATED GPUs"),
        ({"phase": "stopping", "ending": "SIGTERM"}, "stopping (SIGTERM)  gemm, driver 580.1"),
        ({}, "pid 4242 for 1 h 30 min, version 0.1.0"),
        ({}, "log on the standard output of the daemon"),
        ({"log": "/l"}, "log /l"),
        (
            {"forgotten": "/v.bad is damaged"},
            "earlier wrong results are not known: /v.bad is damaged",
        ),
        ({"age_s": 7.0}, f"STALE: the supervisor has not answered since {SEVEN_S_AGO}, for 7 s"),
    ],
)
def test_the_daemon_is_shown_in_a_few_lines(daemon: dict[str, Any], line: str) -> None:
    assert line in list(gpu_table.facts(status(**daemon), NOW))


def test_a_stale_status_shows_no_old_value_as_a_current_one() -> None:
    shown = gpu(
        stressor="RUNNING", workload="gemm", temperature_c=60, findings=1, health="critical"
    )
    old = status(shown, age_s=30.0)
    assert gpu_table.is_stale(old)
    assert not gpu_table.is_stale(status(shown, age_s=4.0))
    row = gpu_table.row(shown, old.reservations, stale=True)
    assert len(row) == len(gpu_table.GPUS.header)
    assert row == ("0!", "unknown", "", "last: occupied", *[""] * 6)
    assert gpu_table.list_line(shown, stale=True).endswith(" unknown")
    lines = list(gpu_table.notes(old))
    assert any("findings" in line for line in lines)
    assert not any("critical" in line for line in lines)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0ms"),
        (0.1964, "196ms"),
        (0.9996, "1.0s"),
        (2.04, "2.0s"),
        (9.96, "10s"),
        (99.4, "99s"),
        (99.6, "2m"),
        (754.0, "13m"),
        (5999.0, "2h"),
        (86000.0, "24h"),
        (400000.0, "5d"),
    ],
)
def test_a_brief_duration_has_five_characters_at_most(seconds: float, text: str) -> None:
    assert format_brief(seconds) == text
    assert len(text) <= 5


def test_a_graph_has_a_bar_for_each_value_and_a_dot_for_what_is_unknown() -> None:
    assert gpu_table.graph([0.0, 0.5, 1.0, None, 2.0, -1.0], 1.0) == " ▄█·█ "
    assert gpu_table.graph([350.0, 700.0], 700.0) == "▄█"
    assert gpu_table.graph([0.0], 0.0) == " "


def test_a_burn_in_is_a_note_until_all_gpus_are_done() -> None:
    one = BurninProgress(**vars(PROGRESS))
    waits = replace(one, waiting="the GPU is busy")
    over = replace(one, over=True)
    ended = replace(over, ended="cancelled by user 0")
    for progress, text in (
        (one, "standard, 3 of 12: fp16, at least 3 min 20 s of work left"),
        (waits, "standard, 3 of 12: fp16, at least 3 min 20 s of work left, the GPU is busy"),
        (replace(one, left_s=0.4), "standard, 3 of 12: fp16"),  # it ends by passes
        (over, "standard: all phases are done"),
        (ended, "standard: cancelled by user 0"),
    ):
        assert f"GPU 0: burn-in {text}" in list(gpu_table.notes(status(gpu(burnin=progress))))


@pytest.mark.parametrize(
    ("tcp", "host"),
    [
        ("127.0.0.1:8765", "127.0.0.1:8765"),
        ("0.0.0.0:1", "127.0.0.1:1"),
        ("[::]:8765", "[::1]:8765"),
        ("[fd00::7]:80", "[fd00::7]:80"),
        ("node-17:8765", "node-17:8765"),
    ],
)
def test_a_browser_can_open_the_address(tmp_path: Path, tcp: str, host: str) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    assert page_address(tcp, str(token)) == f"http://{host}/#token=secret"


def test_without_tcp_the_error_names_the_setting() -> None:
    with pytest.raises(ConfigError, match="--tcp"):
        page_address(None, None)


@pytest.mark.parametrize("content", [None, "schlüssel"])
def test_an_unreadable_token_is_an_error_with_its_path(tmp_path: Path, content: str | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)
    with pytest.raises(AccessDeniedError, match=str(token)):
        page_address("127.0.0.1:1", str(token))


PROOF = GpuProof(
    seconds=4_445_000.0,
    checks=123_456_789,
    errors=12_345,
    findings=1_234,
    since=datetime(2026, 1, 1, tzinfo=UTC),
    last=datetime(2026, 11, 23, 8, 30, tzinfo=UTC),
    workload="memtest",
)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_number_is_cut(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    verdict = LastVerdict(
        index=7,
        model="NVIDIA H200 NVL",
        verdict="FAIL",
        plan="standard",
        ended=datetime(2026, 11, 20, 10, tzinfo=UTC),
        run="/runs/1",
    )
    card = known_cards.Card(
        uuid="GPU-1",
        serial=None,
        present=False,
        index=7,
        name="NVIDIA H200 NVL",
        verified=PROOF,
        burnin=verdict,
    )
    out = "\n".join(health._lines([card]))
    assert all(len(line) <= width for line in out.splitlines())
    for number in ("1,234.7 h", "123,456,789", "12,345", "1,234", "2026-11-23 08:30", "memtest"):
        assert number in out
    assert "FAIL standard 2026-11-20" in out


def test_a_gpu_that_is_reserved_for_a_selftest_is_held_by_that_and_not_by_its_stressor() -> None:
    own = Process(pid=9, name="sentinel-stress", user="root")
    held = [reservation(reason="selftest")]
    column = gpu_table.GPUS.header.index("HELD BY")
    cells = [
        gpu_table.row(gpu(admin="RESERVED", reservation="1a2b3c4d", processes=found), held)[column]
        for found in ((own,), (own, ANA))
    ]
    assert cells[0] == "selftest"
    assert cells[1] != "selftest"
