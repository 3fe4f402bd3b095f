"""What was recorded of a run: its phases, its stretches, and what disturbed them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.burnin.checks.recorded_run import read_run
from sentinel.burnin.loading import load
from sentinel.burnin.record import GpuRecord, Stretches
from sentinel.burnin.run_folder import RunFolder, lines, plan_object
from sentinel.config.plan import Phase, Plan
from sentinel.errors import ConfigError

PLAN = Plan(
    name="test",
    phases=(
        Phase(name="one", workload="gemm", seconds=2),
        Phase(name="two", workload="gemm", seconds=2),
        Phase(name="three", workload="gemm:dtype=fp64", seconds=2),
    ),
)
STARTED = {"event": "burnin.run_started", "at": 0.0, "gpus": [{"uuid": "G", "index": 3}]}


def event(name: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"event": name, "at": at, "gpu": "G", "index": 3, **fields}


def record(*events: dict[str, Any], samples: tuple[dict[str, Any], ...] = ()) -> GpuRecord:
    return load(PLAN, [STARTED, *events], samples)["G"]


BEGUN = (
    event("burnin.phase_started", 1.0, phase="one"),
    event("stressor.ready", 2.0),
    event("burnin.phase_ended", 4.0, phase="one", seconds=2.0),
    event("burnin.phase_started", 4.0, phase="two"),
    event("burnin.phase_ended", 6.0, phase="two", seconds=2.0),
    event("burnin.phase_started", 6.0, phase="three"),
)


@pytest.mark.parametrize(
    ("fields", "passes"),
    [
        ({"passes": 2}, 2),
        ({"passes": 2, "covered": {}, "patterns": 4}, 2),
        ({"passes": 1, "covered": {"0": 2}, "patterns": 1}, 1),
        ({"covered": {"0": 2}, "patterns": 1}, 2),
        ({}, 0),
    ],
)
def test_the_passes_of_a_phase_are_those_of_its_record(fields: dict[str, Any], passes: int) -> None:
    """What a record says is judged, and not what it would say if it were recorded now."""
    memory = Phase(name="memory", workload="memtest", seconds=2, passes=2)
    begun = event("burnin.phase_started", 1.0, phase="memory")
    ended = event("burnin.phase_ended", 4.0, phase="memory", seconds=2.0, **fields)
    found = load(Plan(name="test", phases=(memory,)), [STARTED, begun, ended], ())["G"]
    assert found.phases[0].passes == passes
    assert found.phases[0].complete is (found.unfinished is None) is (passes == 2)


def test_a_gpu_without_events_is_in_the_record() -> None:
    found = record()
    assert (found.index, found.ended) == (3, "")
    assert not any(phase.complete for phase in found.phases)


def test_a_phase_with_the_same_workload_goes_on_with_the_stretch() -> None:
    one, two, three = record(*BEGUN).phases
    assert one.stretches == [(2.0, 4.0)]
    assert two.stretches == [(4.0, 6.0)]
    assert three.stretches == []


def test_the_last_work_of_a_stressor_is_of_its_own_phase() -> None:
    """It is recorded at the exit, when the next phase has begun; its rate is that of its work."""
    work = {"event": "work", "gpu": "G", "seconds": 1.0, "flops": 1.0}
    samples = tuple({**work, "at": at} for at in (3.0, 5.0, 6.5, 8.0))
    ready = event("stressor.ready", 7.0)
    one, two, three = record(*BEGUN, ready, samples=samples).phases
    assert [s.at for s in one.reports] == [3.0]
    assert [s.at for s in two.reports] == [5.0, 6.5]
    assert [s.at for s in three.reports] == [8.0]


def test_the_last_rates_of_links_are_of_the_phase_that_measured_them() -> None:
    link = {"event": "link", "gpu": "G", "part": "host_to_device", "peer": None, "size": 4}
    samples = tuple({**link, "at": at, "rate": at} for at in (5.0, 6.5))
    phases = record(*BEGUN, event("stressor.ready", 7.0), samples=samples).phases
    assert [[s.at for s in phase.links] for phase in phases] == [[], [5.0, 6.5], []]


@pytest.mark.parametrize("first", ["burnin.phase_started", "stressor.starting"])
@pytest.mark.parametrize("resumed", [False, True])
def test_what_a_daemon_does_with_a_gpu_that_is_done_is_not_of_the_run(
    first: str, *, resumed: bool
) -> None:
    """It may have a plan of its own, with phases of the same names, and any workload."""
    wrong = event("stressor.mismatch", 21.0, errors=1)
    selftest = {"event": "selftest", "gpu": "G", "dtype": "bf16"}
    more = (
        ({**STARTED, "at": 30.0}, event("burnin.phase_started", 30.0, phase="two"))
        if resumed
        else ()
    )
    found = record(
        *BEGUN[:3],
        event("burnin.ended", 5.0, reason="an error was found" if resumed else None),
        event("stressor.stopped", 6.0),
        event(first, 20.0, phase="one"),
        wrong,
        event("stressor.starting", 21.5),
        event("burnin.phase_ended", 22.0, phase="one", seconds=1.0),
        event("gpu.xid", 23.0, xid=79, reported_at=23.0, repeats=0, last_at=None),
        *more,
        samples=tuple({**selftest, "at": at} for at in (3.0, 21.0, 31.0)),
    )
    assert found.phases[0].done == 2.0
    assert len(found.phases[1].spans) == resumed
    assert found.named("stressor.stopped")
    assert not found.named("stressor.mismatch")
    assert [one.at for one in found.selftests] == ([3.0, 31.0] if resumed else [3.0])
    assert [xid.number for xid in found.nvml_xids] == [79], "it is of the GPU"


def test_an_open_phase_of_a_killed_run_ends_with_its_last_event() -> None:
    sample = {"event": "work", "gpu": "G", "at": 25.0, "seconds": 1.0, "flops": 1.0}
    found = record(
        *BEGUN[:2],
        STARTED,
        event("burnin.phase_started", 20.0, phase="one"),
        event("burnin.phase_ended", 22.0, phase="one", seconds=2.0),
        event("burnin.phase_started", 22.0, phase="two"),
        samples=(sample,),
    )
    one, two, _ = found.phases
    assert one.spans == [(1.0, 2.0), (20.0, 22.0)]
    assert len(two.reports) == 1
    assert not one.reports
    assert found.sampled_s == 1.0, "of the whole run"


@pytest.mark.parametrize(
    ("before", "phase", "why"),
    [
        (BEGUN[:2], "one", "its record ends before its plan"),
        (BEGUN[:3], "two", "its record ends before its plan"),
        ((*BEGUN[:3], event("burnin.ended", 4.0, reason="SIGINT")), "two", "SIGINT"),
        ((), None, None),
    ],
)
def test_a_cut_is_an_interruption_wherever_it_was(
    before: tuple[dict[str, Any], ...], phase: str | None, why: str | None
) -> None:
    """The mode of a run and its interruptions never contradict each other."""
    found = record(*before, STARTED, event("burnin.phase_started", 20.0, phase=phase or "one"))
    wanted = [] if phase is None else [(phase, f"the run was cut short: {why}")]
    assert [(one.phase, one.cause) for one in found.interruptions] == wanted
    assert found.ended == "", "the reason is that of the former part"


INTERRUPTED = event("burnin.interrupted", 3.0, phase="one", stretch_s=1.0)
UNGROUPED = event("burnin.ungrouped", 2.9, phase="one", reason="GPU 0 left its group")
RELEASED = event("gpu.released", 3.0, reason="its health is critical", temperature_c=88)
NEWCOMER = event("gpu.busy", 3.1, processes=[{"pid": 7, "name": "train.py"}])


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        # The memory of the newcomer was seen first.
        (
            [event("gpu.yielding", 3.0, processes=[]), INTERRUPTED, NEWCOMER],
            "a foreign process (train.py)",
        ),
        ([UNGROUPED, INTERRUPTED], "another GPU left its group"),
        ([RELEASED, INTERRUPTED], "its health is critical"),
        (
            [event("gpu.released", 2.5, reason="a rule"), RELEASED, INTERRUPTED],
            "its health is critical",
        ),
        ([event("gpu.paused", 2.9), RELEASED, INTERRUPTED], "a pause"),
    ],
)
def test_an_interruption_names_its_cause(events: list[dict[str, Any]], cause: str) -> None:
    found = record(*BEGUN[:2], *events)
    assert [interruption.cause for interruption in found.interruptions] == [cause]


def test_a_newcomer_before_any_work_disturbs_the_run_and_is_listed() -> None:
    found = record(BEGUN[0], event("gpu.yielding", 1.5, processes=[{"pid": 7, "name": "train"}]))
    (one,) = found.interruptions
    assert (one.phase, one.cause, one.stretch_s) == ("one", "a foreign process (train)", 0.0)
    assert not record(*BEGUN).interruptions


def test_two_newcomers_in_a_row_are_two_interruptions() -> None:
    found = record(
        *BEGUN[:2],
        event("gpu.yielding", 3.0, processes=[]),
        event("burnin.interrupted", 3.1, phase="one", stretch_s=1.0),
        event("stressor.ready", 5.0),
        event("gpu.yielding", 6.0, processes=[]),
        event("burnin.interrupted", 6.1, phase="one", stretch_s=0.9),
    )
    assert [(one.at, one.stretch_s) for one in found.interruptions] == [(3.0, 1.0), (6.0, 0.9)]
    assert found.phases[0].stretches == [(2.0, 3.0), (5.0, 6.0)]


def test_a_cause_before_the_start_of_a_stressor_did_not_end_its_stretch() -> None:
    """Its failure is reported once it has ended: after the end of the stretch."""
    found = record(
        *BEGUN[:2],
        event("gpu.unknown", 3.0, reason="lost"),
        event("burnin.interrupted", 3.0, phase="one", stretch_s=0.0),
        event("stressor.starting", 6.0),
        event("stressor.ready", 8.0),
        event("burnin.interrupted", 9.0, phase="one", stretch_s=0.0),
        event("stressor.failed", 9.2, reason="it broke"),
    )
    causes = ["the GPU could not be read", "the stressor failed"]
    assert [one.cause for one in found.interruptions] == causes


@pytest.mark.parametrize("last", ["last", "work"])
def test_samples_that_were_cut_off_are_not_complete(last: str) -> None:
    samples = ({"event": last, "at": 1.0, "gpu": None},)
    assert record(samples=samples).closed == (last == "last")


def test_lost_events_and_samples_are_counted() -> None:
    lost = {"event": "log.dropped", "at": 1.0, "events": 2}
    assert record(lost, samples=(lost,)).dropped == 4


@pytest.mark.parametrize("line", [b"3", b'{"event": "gpu.busy", "gpu": "G"}', b"\xff"])
def test_an_invalid_event_is_an_error_that_names_the_run(line: bytes, tmp_path: Path) -> None:
    folder = RunFolder(path=tmp_path)
    folder.header.write_text(json.dumps({"plan": plan_object(PLAN)}))
    folder.samples.write_text("")
    folder.events.write_bytes(json.dumps(STARTED).encode() + b"\n" + line + b"\n")
    with pytest.raises(ConfigError, match=str(tmp_path)):
        read_run(folder)


def test_a_line_that_is_too_long_hides_nothing_that_comes_after_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    long = json.dumps({**STARTED, "detail": "x" * 2**20})
    path.write_text(f"{long}\n{json.dumps(event('stressor.mismatch', 1.0, errors=1))}\n")
    with pytest.raises(ConfigError, match="line 1"):
        list(lines(path))


def test_a_probe_that_was_replaced_names_no_gpu() -> None:
    replaced = {"event": "probe.ready", "at": 1.0, "driver": "580", "gpus": 1}
    assert list(load(PLAN, [STARTED, replaced], [])) == ["G"]


def test_samples_of_links_are_in_the_record_of_their_phase() -> None:
    whole, rest = ({"part": "all_reduce", "size": size, "rate": 9e9 / size} for size in (4, 3))
    values = ({"part": "host_to_device", "size": 4, "rate": 55.3e9}, whole, rest)
    samples = ({"event": "link", "gpu": "G", "at": 5.0, "peer": None, **one} for one in values)
    found = record(*BEGUN, samples=tuple(samples))
    assert [len(phase.links) for phase in found.phases] == [0, 3, 0]
    assert found.phases[1].link_rates() == {
        "host_to_device_bytes_per_s": [55.3e9],
        "all_reduce_bytes_per_s": [2.25e9],  # that of fewer GPUs is another one
    }


def test_the_last_readings_of_a_stressor_are_of_its_load() -> None:
    """Its end is when its exit was seen; that it may have been killed before is for XIDs."""
    reading = {"event": "telemetry", "gpu": "G", "temperature_c": 70}
    samples = (*({**reading, "at": 30.0 + at} for at in range(12)), {**reading, "at": 45.0})
    end = {"event": "end", "gpu": "G", "pid": 7, "at": 41.5}
    found = record(*BEGUN, event("stressor.starting", 43.0), samples=(*samples, end))
    pairs = [(first.at, last.at) for _, first, last in found.under_load()]
    assert pairs == [(30.0 + at, 31.0 + at) for at in range(11)]


def test_the_samples_of_a_run_become_checksums() -> None:
    row = {"key": "bf16", "checksum": "0xa", "stored": None}
    sample = {"event": "checksum", "at": 1.0, "gpu": "G", **row}
    assert [vars(checksum) for checksum in record(samples=(sample,)).checksums] == [row]


TIMES = st.integers(0, 30)


@given(st.lists(st.tuples(TIMES, TIMES)), TIMES)
def test_a_moment_is_within_if_any_stretch_has_it(
    pairs: list[tuple[int, int]], moment: int
) -> None:
    stretches = [(float(min(pair)), float(max(pair))) for pair in pairs]
    expected = any(first <= moment <= last for first, last in stretches)
    assert (moment in Stretches(stretches)) == expected
