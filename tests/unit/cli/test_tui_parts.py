"""The parts of `sentinel top` that need no terminal: columns, filter, sort, details, processes."""

from __future__ import annotations

import os
from typing import Any

import pytest

from sentinel.cli.display.gpu_table import GpuJob
from sentinel.cli.display.output import cell_width
from sentinel.cli.tui.content import (
    COLUMNS,
    SORTS,
    cells,
    columns_at,
    detail_lines,
    fit,
    history_width,
    matches,
    process_lines,
    share_rows,
    shown_panels,
    sort_key,
)
from sentinel.cli.tui.feed import HostUsage, ProcessMeter, SampleHistory
from sentinel.client import GpuStatus, Handover, Process
from sentinel.protocol.api_types import GpuTelemetry
from sentinel.protocol.views import FaultKind, GpuFault
from tests.harness.gpu_views import gpu_status


def gpu(**fields: Any) -> GpuStatus:
    usual: dict[str, Any] = {
        "uuid": "GPU-1",
        "index": 127,
        "name": "NVIDIA H200 NVL",
        "memory_total": 141 * 2**30,
        "memory_used": 139 * 2**30,
        "occupancy": "BUSY",
        "stressor": "STOPPED",
        "rule": "busy",
        "reason": "in use by others",
        "since_s": 5000.0,
        "utilization": 1.0,
        "temperature_c": 104,
        "power_w": 1000.4,
        "flops_per_s": 656.2e12,
        "processes": (Process(pid=4_000_000, name="python", user="someone_with_a_name"),) * 2,
        "handover": Handover(ago_s=86000.0, evidence="memory", exit=0.193, memory_back=0.196),
        "telemetry": GpuTelemetry(
            slowdown_c=87,
            shutdown_c=92,
            power_limit_w=700.0,
            memory_temperature_c=61,
            reasons=("sw_power_cap",),
            pcie_generation=5,
            pcie_width=16,
            ecc_corrected_total=1,
            ecc_uncorrected_total=0,
            remap_pending=True,
        ),
    }
    return gpu_status(**(usual | fields))


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200])
def test_the_table_fits_the_screen_and_cuts_only_the_holder(width: int) -> None:
    columns = columns_at(width)
    history = "█" * history_width(width)
    full = [cells(gpu(), columns, (), history, with_limits=width >= 110)]
    (row,) = fit(full, columns, width - 2)
    widths = [
        max(cell_width(column.name), cell_width(cell))
        for column, cell in zip(columns, row, strict=True)
    ]
    assert sum(widths) + len(columns) - 1 <= width - 2
    for column, cell, whole in zip(columns, row, full[0], strict=True):
        assert column.name == "HELD BY" or cell == whole


def test_a_wide_screen_has_all_columns_and_the_limits() -> None:
    assert columns_at(200) == COLUMNS
    row = cells(gpu(), COLUMNS, (), "", with_limits=True)
    assert "104/87C" in row
    assert "1000/700W" in row
    assert "NVIDIA H200 NVL" in row


def test_unknown_limits_and_values_are_left_out() -> None:
    bare = gpu(telemetry=None, temperature_c=None)
    row = cells(bare, COLUMNS, (), "", with_limits=True)
    assert "1000W" in row
    assert not any("None" in cell or "/C" in cell for cell in row)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", True),
        ("busy", True),
        ("BUSY h200", True),
        ("idle", False),
        ("busy idle", False),
        ("127", True),
        ("12", False),
        ("someone", True),
        ("train.py", True),
        ("GPU-1", True),
    ],
)
def test_a_filter_has_words_that_must_all_match(words: str, found: bool) -> None:  # noqa: FBT001
    assert matches(gpu(), words, ["python train.py"]) is found


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("index", [0, 1, 2]),
        ("state", [2, 1, 0]),
        ("load", [1, 0, 2]),
        ("memory", [0, 1, 2]),
        ("temperature", [1, 2, 0]),
        ("power", [2, 0, 1]),
    ],
)
def test_the_highest_is_first_and_the_unknown_last(sort: str, order: list[int]) -> None:
    gpus = [
        gpu(index=0, utilization=0.5, temperature_c=None, power_w=5.0, occupancy="IDLE"),
        gpu(index=1, utilization=0.9, temperature_c=80, power_w=None),
        gpu(index=2, utilization=None, temperature_c=70, power_w=9.0, occupancy="UNKNOWN"),
    ]
    assert [one.index for one in sorted(gpus, key=sort_key(sort))] == order
    assert sort in SORTS


@pytest.mark.parametrize("width", [30, 58, 78, 100])
def test_details_have_sensors_against_their_limits_and_fit(width: int) -> None:
    samples = SampleHistory()
    for _ in range(300):
        samples.add(gpu())
    lines = detail_lines(gpu(), samples, width)
    assert all(cell_width(line) <= width for line in lines)
    text = "\n".join(lines)
    assert "1000 of 700 W" in text
    assert "104 of 87 C" in text
    assert "139.0 of 141.0 GiB" in text
    if width >= 100:
        assert "a row waits for a reset" in text
        assert "memory free after 196ms" in text
        assert max(line.count("█") for line in lines) > 60


@pytest.mark.parametrize("width", [30, 58, 78, 100])
def test_a_known_fault_is_in_the_first_details_with_its_whole_remedy(width: int) -> None:
    remedy = "reboot the node; if it comes back, have the GPU replaced"
    fault = GpuFault(kind=FaultKind.XID, text="XID 79: GPU has fallen off the bus", remedy=remedy)
    lines = detail_lines(gpu(faults=(fault,)), SampleHistory(), width)
    assert f"{fault.text}: {remedy}" in " ".join(lines[:8])
    assert all(cell_width(line) <= width for line in lines)


def job(pid: int, **fields: Any) -> GpuJob:
    usual: dict[str, Any] = {
        "index": 0,
        "pid": pid,
        "kind": "compute",
        "user": "someone_with_a_name",
        "memory_bytes": 90 * 2**30,
        "command": "python -m train --config a_long_path/to/a/file.toml",
        "is_local": True,
    }
    return GpuJob(**(usual | fields))


@pytest.mark.parametrize("width", [58, 78, 120])
def test_processes_take_one_line_each_and_fit(width: int) -> None:
    lines = process_lines([job(4_000_000), job(1)], {1: HostUsage(3.5, 2**30)}, width)
    assert len(lines) == 3
    assert all(cell_width(line) <= width for line in lines)
    assert "350%" in lines[2]
    assert "1024MiB" in lines[2]
    assert "python" in lines[1]
    assert process_lines([], {}, width) == ["no process uses these GPUs"]


def test_the_processor_share_is_of_the_time_between_two_looks() -> None:
    meter, mine = ProcessMeter(), os.getpid()
    jobs = [job(mine), job(2, is_local=False), job(2**22 - 1)]
    first = meter.measure(jobs, 10.0)
    assert first[mine].processor_share is None
    assert first[mine].resident_bytes > 2**20
    assert set(first) == {mine}
    share = meter.measure(jobs, 20.0)[mine].processor_share
    assert share is not None
    assert 0.0 <= share < 2.0
    meter.measure([], 30.0)
    assert meter.measure(jobs, 40.0)[mine].processor_share is None


@pytest.mark.parametrize(
    ("width", "rows", "first", "panels"),
    [
        (110, 5, "details", ("processes", "details", "events")),
        (109, 13, "details", ("details",)),
        (80, 14, "processes", ("processes", "details")),
        (80, 23, "events", ("events", "processes")),
        (80, 24, "events", ("events", "processes", "details")),
    ],
)
def test_as_many_panels_are_shown_as_there_is_room_for(
    width: int, rows: int, first: str, panels: tuple[str, ...]
) -> None:
    assert shown_panels(width, rows, first) == panels


@pytest.mark.parametrize(
    ("rows", "lines", "panels"),
    [
        (12, (8, 12, 30), ("processes", "details")),
        (12, (9, 12, 30), ("processes",)),
        (12, (1, 4, 30), ("processes", "details", "events")),
        (19, (1, 12, 30), ("processes", "details", "events")),
    ],
)
def test_rows_that_a_panel_does_not_need_show_another_one(
    rows: int, lines: tuple[int, ...], panels: tuple[str, ...]
) -> None:
    needs = dict(zip(("processes", "details", "events"), lines, strict=True))
    assert shown_panels(80, rows, "processes", needs) == panels


@pytest.mark.parametrize(
    ("needs", "rows", "given"),
    [
        ([14, 3, 200], 34, [14, 3, 17]),
        ([14, 3, 2], 34, [14, 3, 17]),
        ([14, 20, 200], 30, [14, 10, 6]),
        ([40, 3, 200], 24, [15, 3, 6]),
        ([9], 12, [12]),
        ([], 18, []),
    ],
)
def test_the_lowest_panel_has_the_rows_that_the_others_do_not_need(
    needs: list[int], rows: int, given: list[int]
) -> None:
    assert share_rows(needs, rows) == given
