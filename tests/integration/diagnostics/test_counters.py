"""The counters are read from a fake driver that works, fails, lies, hangs or crashes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.checks import growth_checks, node_formats
from sentinel.burnin.checks.check import CheckResult, Status, Thresholds
from sentinel.burnin.checks.evidence import GpuEvidence, MomentEvidence
from sentinel.burnin.checks.load_evidence import LoadEvidence
from sentinel.burnin.checks.node_report import judge_node
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.record import GpuRecord
from sentinel.diagnostics import one_shot
from sentinel.diagnostics.counters import CountersResult, read_counters
from sentinel.diagnostics.one_shot import Failure, OneShotResult, Timeouts
from sentinel.host.simulation import Registry
from sentinel.probe.one_shot import FUNCTIONS
from sentinel.protocol.counters import READ_FIELDS, Counters, CountersSpec
from tests.harness import fake_nvml
from tests.harness.fake_nvml import FIRST, NEEDS_COMPILER, SECOND
from tests.harness.timing import TIMEOUT_S

Ask = Callable[..., CountersResult]

#: The fields of a GPU that does not throttle, as an H200 has them.
FIELDS = [
    *(f"{number}:0" for number in (74, 75, 230, 269, 270, 271)),
    "82:50",
    "83:5000000",
    f"194:{2**32 - 2}",
    "161.0:4",
    "162.1:5",
    f"220:{1 << 8 | 12}",
    "164:26562",
]


@pytest.fixture
def ask(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Ask:
    """Return a function that reads the counters of a driver with the given lines."""
    library = fake_nvml.build(fake_nvml.shared_folder(tmp_path_factory), "-DCOUNTERS")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "driver"))
    spec = CountersSpec(sysfs=str(tmp_path), procfs=str(tmp_path), devices=str(tmp_path))

    def read(*lines: str, call: float = 30.0, opening: float = 30.0, **more: Any) -> CountersResult:
        given = [f"memory_max=@{FIRST} 95", *(f"field@{FIRST} {one}" for one in FIELDS)]
        (tmp_path / "driver").write_text("\n".join([*given, *lines, ""]))
        limits = Timeouts(opening=opening, call=call)
        return read_counters(None, timeouts=limits, spec=spec, **more)

    return read


#: The checks of two readings.
GROWTHS = {
    *growth_checks.TABLE.ids,
    *("pcie.replay_rate", "pcie.replays"),
    *("nvlink.lost", "nvlink.recoveries", "nvlink.replays", "nvlink.crc_rate"),
}


def judged(gpu: Counters, before: Counters | None = None) -> dict[str, CheckResult]:
    """Run all checks of one moment, or of a difference."""
    if before is None:
        moment = MomentEvidence(counters=gpu, node=(gpu,))
        return {check.id: check.run(moment, Thresholds()) for check in CHECKS.of(GpuEvidence)}
    later = replace(gpu, at=before.at + 100.0)
    record = GpuRecord(uuid=gpu.uuid, index=0, phases=[], before=before, after=later)
    run = LoadEvidence(record=record)
    return {name: CHECKS[name].run(run, Thresholds()) for name in GROWTHS}


@NEEDS_COMPILER
def test_every_counter_of_a_healthy_gpu_is_read(ask: Ask) -> None:
    found = ask(f"fields@{SECOND} 3")
    assert (found.driver_error, found.stuck, found.pci_devices) == (None, False, ())
    first, second = found.counters
    assert [name for name in READ_FIELDS if getattr(first, name) is None] == []
    assert (first.uuid, first.index, first.name) == (FIRST, 0, "NVIDIA H200")
    assert (first.driver, first.serial, first.vbios) == (
        "580.159",
        "1650000000000",
        "96.00.9F.00.00",
    )
    assert (first.inforom, first.pci_bus_id) == ("G520.0280.00.00", "00000000:0A:00.0")
    assert (first.ecc, first.ecc_pending, first.mig, first.persistence) == (True, True, False, True)
    assert (first.remapped_corrected_total, first.remap_failed) == (1, False)
    assert (first.temperature_c, first.memory_temperature_c, first.slowdown_c) == (41, 50, 89)
    assert (first.temperature_margin_c, first.slowdown_margin_c) == (46, -2)
    assert (first.power_limit_w, first.power_limit_default_w) == (700.0, 700.0)
    assert (first.energy_j, first.recovery_action) == (5000.0, "none")
    assert (first.pcie_generation, first.pcie_width, first.pcie_replays_total) == (5, 16, 12)
    assert (first.fabric_state, first.fabric_health) == ("completed", "healthy")
    assert first.hardware_thermal_throttled_s == 0.0
    assert first.nvlinks is not None
    assert [
        (nvlink.active, nvlink.replays_total, nvlink.recoveries_total) for nvlink in first.nvlinks
    ] == [(True, 4, None), (True, None, 5), *[(True, None, None)] * 16]
    assert {nvlink.effective_ber for nvlink in first.nvlinks} == {1e-12}
    assert first.failed == {}
    assert second.nvlinks is not None
    assert [(nvlink.active, nvlink.replays_total) for nvlink in second.nvlinks] == [
        (True, None)
    ] * 2
    # The second GPU has no fields: an older call has the throttled times.
    assert (second.thermal_throttled_s, second.power_throttled_s) == (3.0, 3.0)
    assert (second.recovery_action, second.software_thermal_throttled_s) == (None, None)
    assert second.mig is True
    statuses = {one.status for one in judged(first).values()}
    assert statuses <= {Status.PASS, Status.NOT_APPLICABLE}, judged(first)


@pytest.mark.long
@NEEDS_COMPILER
def test_a_driver_without_any_counter_has_none_and_no_fault(
    ask: Ask, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_nvml.build(fake_nvml.shared_folder(tmp_path_factory), "-DOLD")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old))
    gpu = ask().counters[0]
    assert (gpu.ecc, gpu.nvlinks, gpu.sram_threshold_exceeded, gpu.failed) == (None, None, None, {})
    bad = [one for one in judged(gpu).values() if one.status in {Status.FAIL, Status.WARN}]
    assert bad == []


#: A line of the driver, the check and its status.
FAULTS = [
    ("ecc=@{} 0", "ecc.mode", "warn"),
    ("uncorrected=@{} 2", "ecc.uncorrected", "warn"),
    ("sram_exceeded=@{} 1", "memory.sram_threshold", "fail"),
    ("remap_failed=@{} 1", "memory.remap_failed", "fail"),
    ("remap_pending=@{} 1", "memory.repair_pending", "warn"),
    ("retiring=@{} 1", "memory.repair_pending", "warn"),
    ("channel=@{} 1", "memory.repair_pending", "warn"),
    ("tpc=@{} 1", "memory.repair_pending", "warn"),
    ("unrepairable=@{} 1", "memory.unrepairable", "fail"),
    ("banks_none=@{} 1", "memory.bank_headroom", "warn"),
    ("retired_single=@{} 70", "memory.retired_pages", "fail"),
    ("retired_double=@{} 20", "memory.retired_pages", "warn"),
    ("valid@{} 14", "inforom.valid", "warn"),
    ("field@{} 230:1", "recovery.action", "fail"),
    ("margin=@{} 1", "temperature.limit", "warn"),
    ("field@{} 82:91", "temperature.memory", "warn"),
    ("field@{} 82:95", "temperature.memory", "fail"),
    ("memory_max=@{} 0", "temperature.memory", "n/a"),
    ("pcie_max=@{} 6", "pcie.generation", "fail"),
    ("width_max=@{} 32", "pcie.width", "fail"),
    ("fabric_state=@{} 1", "fabric.state", "fail"),
    ("fabric_status=@{} 999", "fabric.state", "fail"),
    ("fabric_health=@{} 2", "fabric.health", "fail"),
    ("field@{} 220:1800", "nvlink.bit_error_rate", "fail"),
    ("ecc@{} 15", "gpu.lost", "fail"),
    ("handle@{} 16", "gpu.lost", "fail"),
    ("rows@{} 4", "memory.remap_failed", "not tested"),
    ("valid@{} 4", "inforom.valid", "not tested"),
    ("sram@{} 999", "memory.sram_threshold", "not tested"),
    ("fields@{} 999", "recovery.action", "not tested"),
    ("handle@{} 4", "gpu.lost", "not tested"),
    ("uncorrected=@{} 18446744073709551615", "ecc.uncorrected", "not tested"),
    ("remap_failed=@{} 4294967295", "memory.remap_failed", "not tested"),
    ("sram_exceeded=@{} 77", "memory.sram_threshold", "not tested"),
    ("retired_single=@{} 4294967295", "memory.retired_pages", "not tested"),
    ("errors@{} 3", "ecc.uncorrected", "n/a"),
    ("fabric@{} 3", "fabric.state", "n/a"),
    ("link_count=@{} 0", "nvlink.bit_error_rate", "n/a"),
]


@pytest.mark.long
@NEEDS_COMPILER
def test_each_fault_of_the_driver_is_found_by_its_check_on_its_gpu_alone(ask: Ask) -> None:
    """All in one test: a process for each of 36 drivers takes longer than 36 checks."""
    uuids = [f"GPU-{index:08}" for index in range(len(FAULTS) // 3 + 1)]
    for start in range(0, len(FAULTS), len(uuids) - 1):
        faults = FAULTS[start : start + len(uuids) - 1]
        lines = [f"gpu {uuid}" for uuid in uuids[: len(faults) + 1]]
        lines += [
            f"field@{uuid} {one}"
            for (line, _, _), uuid in zip([*faults, ("", "", "")], uuids, strict=False)
            for one in FIELDS
            if not line.startswith(f"field@{{}} {one.partition(':')[0]}:")
        ]
        lines += [line.format(uuid) for (line, _, _), uuid in zip(faults, uuids, strict=False)]
        lines += [f"memory_max=@{uuid} 95" for uuid in uuids]  # after the fault: the first counts
        found = ask(*lines).counters
        assert len(found) == len(faults) + 1
        for gpu, (line, check, status) in zip(found, faults, strict=False):
            results = judged(gpu)
            assert results[check].status == status, (line, results[check])
            others = {result.id for result in results.values() if result.status in {"fail", "warn"}}
            assert others <= {check}, (line, others)
        healthy = judged(found[-1]).values()
        assert {one.status for one in healthy} <= {"pass", "n/a", "not tested"}


@pytest.mark.long
@NEEDS_COMPILER
def test_growth_is_found_between_two_readings(ask: Ask) -> None:
    before = ask().counters[0]
    grown = [f"field@{FIRST} {number}:50000000000" for number in (269, 270, 271)]
    lines = [
        f"uncorrected=@{FIRST} 1",
        f"uncorrected_ever=@{FIRST} 1",
        f"corrected=@{FIRST} 11",
        f"sram_parity=@{FIRST} 1",
        f"remapped=@{FIRST} 2",
        f"remapped_uncorrected=@{FIRST} 1",
        f"remap_pending=@{FIRST} 1",
        f"retired_single=@{FIRST} 1",
        f"retired_double=@{FIRST} 1",
        f"replays=@{FIRST} 99999",
        f"link1=@{FIRST} 0",
        f"field@{FIRST} 161.0:5",
        f"field@{FIRST} 162.1:6",
        *grown,
    ]
    after = ask(*lines).counters[0]
    found = judged(after, before)
    bad = {one.id for one in found.values() if one.status in {Status.FAIL, Status.WARN}}
    assert bad == GROWTHS - {
        "nvlink.crc_rate",  # not supported by this driver
        "throttle.thermal",
        "throttle.power_cap",
        "gpu.reset",  # no counter went back
        "ecc.corrected_lifetime_new",  # the aggregate counts stay
    }
    assert judged(before, after)["ecc.uncorrected_new"].status is Status.NOT_TESTED


@pytest.mark.long
@NEEDS_COMPILER
def test_a_call_that_hangs_on_each_gpu_costs_its_bound_once(ask: Ask) -> None:
    uuids = ["GPU-a", "GPU-b", "GPU-c"]
    found = ask(
        *(f"gpu {uuid}" for uuid in uuids), *(f"sram@{uuid} hang" for uuid in uuids), call=4.0
    )
    assert [gpu.lost for gpu in found.counters] == [
        f"nvmlDeviceGetSramEccErrorStatus did not return within {limit} s" for limit in (4, 2, 2)
    ]


def test_gpus_are_read_at_the_same_time_once_a_call_has_hung_on_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = threading.Barrier(6, timeout=TIMEOUT_S)

    def hang(
        _: object,
        skipped: tuple[int, ...],
        __: object,
        *,
        timeout_s: Callable[[str], float],
        **___: object,
    ) -> OneShotResult:
        if len(skipped) > 1:
            together.wait()
        gpu = next(one for one in range(8) if one not in skipped)
        what = f"did not return within {timeout_s('handle'):g} s"
        failure = Failure(call="handle", gpu=gpu, what=what, has_hung=True)
        return OneShotResult(failure=failure, stuck=gpu == 7)

    monkeypatch.setattr(one_shot, "run_one_shot", hang)
    faults, stuck = one_shot.run_past_faults(
        print,
        lambda skipped: skipped,
        kinds=[Counters],
        take=lambda _: True,
        seen=lambda: (),
        listed=lambda: range(8),
        timeout_s=lambda _, again: 10.0 if again else 60.0,
    )
    assert [faults[gpu].what.split()[-2] for gpu in range(8)] == ["60", *["10"] * 7]
    assert stuck


#: The calls that `sentinel check` makes for each GPU, by the name of the fake driver.
CALLS = (
    *("handle", "uuid", "name", "bus", "serial", "vbios", "inforom", "mig", "persistence"),
    *("ecc", "corrected", "corrected_ever", "uncorrected", "uncorrected_ever", "sram", "rows"),
    *("banks", "pages", "retiring", "repair", "unrepairable", "valid", "memory", "reasons"),
    *("temperature", "threshold", "margin", "clock", "max_clock", "limit", "default_limit"),
    *("pcie", "pcie_max", "pcie_own_max", "width_max", "replays", "fields", "links", "fabric"),
    "violation",
)
#: And those that it makes once.
NODE_CALLS = ("init", "version", "cuda", "count")


@pytest.mark.long
@NEEDS_COMPILER
@pytest.mark.parametrize("call", [*CALLS, *NODE_CALLS])
def test_each_call_that_hangs_costs_its_bound_and_is_named(ask: Ask, call: str) -> None:
    uuids = [f"GPU-{index}" for index in range(8)]
    where = call if call in NODE_CALLS else f"{call}@{uuids[3]}"
    began = time.monotonic()
    found = ask(*(f"gpu {uuid}" for uuid in uuids), f"{where} hang", call=2.0, opening=10.0)
    passed_s = time.monotonic() - began
    report = judge_node(found.counters, Thresholds(), driver_error=found.driver_error)
    texts = {index: gpu.why_unread for index, gpu in enumerate(report.gpus) if gpu.why_unread}
    (gpu, why) = (None, found.driver_error) if call in NODE_CALLS else texts.popitem()
    assert why is not None
    assert re.fullmatch(r"nvml\w+ did not return within (2|10) s", why)
    assert (gpu, texts) == (None if call in NODE_CALLS else 3, {})
    assert passed_s < TIMEOUT_S, "each call that hangs has a bound"
    assert node_formats.exit_code(report) in {2, 3}
    assert node_formats.nagios(report)[0] == node_formats.NAGIOS_UNKNOWN
    assert node_formats.npd(report)[0] == node_formats.NPD_UNKNOWN
    assert all(why[:40] in form(report)[1] for form in (node_formats.nagios, node_formats.npd))


@pytest.mark.long
@NEEDS_COMPILER
def test_gpus_on_which_calls_hang_or_crash_cost_no_other_its_result(ask: Ask) -> None:
    uuids = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
    lines = [
        *(f"gpu {uuid}" for uuid in uuids),
        f"sram@{uuids[0]} hang",
        f"handle@{uuids[1]} segfault",
        f"fields@{uuids[3]} crash",
    ]
    found = ask(*lines, call=2.0)
    assert (found.driver_error, found.stuck) == (None, False)
    first, second, third, fourth = found.counters
    assert (first.uuid, first.lost) == (
        "GPU-a",
        "nvmlDeviceGetSramEccErrorStatus did not return within 2 s",
    )
    assert (second.uuid, second.lost) == (
        "",
        "nvmlDeviceGetHandleByIndex did not return: its process was ended by SIGSEGV",
    )
    assert (third.uuid, third.lost, third.ecc) == ("GPU-c", None, True)
    assert (
        fourth.lost == "nvmlDeviceGetFieldValues did not return: its process was ended by SIGABRT"
    )
    assert found.pci_devices is None  # its nodes must not be opened after that
    report = judge_node(found.counters, Thresholds())
    # What did not answer is not known; only the driver's own word is a loss.
    unknown = "not tested"
    assert [gpu.status for gpu in report.gpus] == [unknown, unknown, "pass", unknown]


@pytest.mark.long
@NEEDS_COMPILER
def test_only_the_named_gpus_are_read(ask: Ask) -> None:
    found = ask(f"ecc@{FIRST} crash", uuids=[SECOND])
    assert [gpu.uuid for gpu in found.counters] == [SECOND]
    assert found.counters[0].lost is None


@pytest.mark.long
@NEEDS_COMPILER
@pytest.mark.parametrize(
    ("line", "words"),
    [("init 9", "modprobe nvidia"), ("count 999", "unknown error"), ("init crash", "SIGABRT")],
)
def test_a_driver_that_fails_as_a_whole_has_a_reason(ask: Ask, line: str, words: str) -> None:
    found = ask(line)
    assert found.counters == ()
    assert words in (found.driver_error or "")


@NEEDS_COMPILER
def test_a_driver_that_is_gone_meanwhile_is_no_fault_of_a_gpu(ask: Ask) -> None:
    found = ask(f"ecc@{SECOND} 18")
    assert "different versions" in (found.driver_error or "")
    assert [gpu.lost for gpu in found.counters] == [None, None]
    report = judge_node(found.counters, Thresholds(), driver_error=found.driver_error)
    assert report.failure == found.driver_error
    assert [gpu.status for gpu in report.gpus] == [Status.PASS, Status.NOT_TESTED]


def test_every_call_has_a_name_that_fits_on_the_board() -> None:
    assert max(map(len, FUNCTIONS)) <= 31
    assert {field.name for field in fields(Counters)} >= set(READ_FIELDS)


def test_simulated_gpus_are_healthy_but_for_injected_figures_and_faults(tmp_path: Path) -> None:
    registry = Registry.create(tmp_path / "gpus", 5)
    healthy, altered, wrong, lost, broken = [gpu.uuid for gpu in registry.gpus()]
    registry.inject_figures(
        altered, {"ecc_uncorrected_total": 3, "nvlinks": [{"link": 0, "active": False}]}
    )
    registry.inject_figures(wrong, {"no_counter": 1})
    registry.inject(lost, "lost")
    registry.inject(broken, "error")
    found = {gpu.uuid: gpu for gpu in read_counters(registry.folder).counters}
    assert not [one for one in judged(found[healthy]).values() if one.status in {"fail", "warn"}]
    assert found[altered].ecc_uncorrected_total == 3
    assert judged(found[altered])["ecc.uncorrected"].status is Status.WARN
    assert "no_counter" in found[wrong].failed["ecc"]
    assert found[lost].lost == "the simulated GPU fell off the bus"
    assert found[broken].failed["ecc"] == "a simulated error"
    not_read = {"gpu.expected", "daemon.findings"}
    unread = {one.status for one in judged(found[broken]).values() if one.id not in not_read}
    assert unread == {Status.NOT_TESTED}
    registry.inject_figures(altered, None)
    again = read_counters(registry.folder, [altered])
    assert [gpu.ecc_uncorrected_total for gpu in again.counters] == [0]
