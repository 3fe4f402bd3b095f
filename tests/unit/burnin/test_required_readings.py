"""What must have been read of a GPU: a group of checks that could not be read is no pass."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from typing import Any

import pytest

from sentinel.burnin.checks.check import Status, Thresholds
from sentinel.burnin.checks.node_report import MOMENT, judge_node
from sentinel.burnin.checks.required_evidence import Required
from sentinel.burnin.checks.required_readings import REQUIRED, ReadingGroup, unread
from sentinel.protocol.counters import READ_FIELDS, Counters
from tests.harness.check_evidence import HEALTHY, PEER
from tests.harness.gpu_environment import ROOT

GROUPS = pytest.mark.parametrize("group", REQUIRED, ids=lambda group: group.name)
IDLE = replace(HEALTHY, reasons=("gpu_idle",), sm_clock_mhz=345)


def without(fields: list[str], *, failed: bool = True) -> Counters:
    """Build a GPU of which calls fail, or do not exist."""
    gone = replace(HEALTHY, **dict.fromkeys(fields))  # type: ignore[arg-type]
    return replace(gone, failed=dict.fromkeys(fields, "unknown error")) if failed else gone


def fields_of(group: ReadingGroup) -> list[str]:
    return [field for field in READ_FIELDS if field.startswith(group.counters)]


def status(gpu: Counters) -> Status:
    return judge_node([gpu], Thresholds()).status


@GROUPS
def test_a_group_that_could_not_be_read_is_named_and_no_pass(group: ReadingGroup) -> None:
    gpu = without(fields_of(group))
    assert status(gpu) is Status.NOT_TESTED
    assert unread(gpu) == f"could not be read: {group.name}: unknown error"
    assert status(replace(gpu, recovery_action="gpu_reset", failed={})) is Status.FAIL


@GROUPS
def test_what_a_model_does_not_have_is_not_required(group: ReadingGroup) -> None:
    gpu = replace(without(fields_of(group), failed=False), name="NVIDIA GeForce RTX 4090")
    assert (status(gpu), unread(gpu)) == (Status.PASS, None)


@GROUPS
def test_what_a_model_is_known_to_have_is_required(group: ReadingGroup) -> None:
    gpu = replace(without(fields_of(group), failed=False), name="NVIDIA H200")
    wanted = None
    if group.models:
        wanted = f"could not be read: {group.name}: not supported, though each NVIDIA H200 has it"
    assert unread(gpu) == wanted
    assert unread(replace(gpu, ecc=False)) == (None if group.needs_ecc else wanted)


@GROUPS
def test_what_a_twin_has_is_required(group: ReadingGroup) -> None:
    twin = replace(PEER, name="NVIDIA GeForce RTX 4090")
    gpu = replace(without(fields_of(group), failed=False), name=twin.name)
    found = judge_node([gpu, twin], Thresholds())
    wanted = Status.NOT_TESTED if group.of_model else Status.PASS
    assert [one.status for one in found.gpus] == [wanted, Status.PASS]
    assert (group.name in (found.gpus[0].why_unread or "")) is group.of_model
    assert judge_node([gpu, replace(twin, name="another")], Thresholds()).status is Status.PASS


def test_a_gpu_that_supports_nothing_is_no_pass() -> None:
    fields = [name for group in REQUIRED for name in fields_of(group)]
    assert status(without(fields, failed=False)) is Status.NOT_TESTED


@pytest.mark.parametrize(
    "field", ["temperature_margin_c", "remap_banks_low", "power_limit_w", "vbios"]
)
def test_one_unreadable_sensor_is_a_pass(field: str) -> None:
    gpu = without([field])
    assert (status(gpu), unread(gpu)) == (Status.PASS, None)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("ecc_uncorrected_total", "memory errors"),
        ("sram_threshold_exceeded", "memory errors"),
        ("remap_failed", "memory repairs"),
        ("remap_pending", "memory repairs"),
        ("memory_unrepairable", "memory repairs"),
        ("reasons", "power and clocks"),
        ("mig", "MIG mode"),
        ("fabric_state", "NVLink fabric"),
    ],
)
def test_a_fault_that_nothing_else_shows_must_be_readable(field: str, name: str) -> None:
    gpu = without([field, "fabric_health"] if field == "fabric_state" else [field])
    assert (status(gpu), unread(gpu)) == (
        Status.NOT_TESTED,
        f"could not be read: {name}: unknown error",
    )
    assert status(replace(gpu, failed={})) is Status.PASS


def test_an_idle_link_was_read() -> None:
    results = {one.id: one.status for one in judge_node([IDLE], Thresholds()).gpus[0].checks}
    assert {results["pcie.width"], results["pcie.generation"]} == {Status.NOT_TESTED}
    assert (status(IDLE), unread(IDLE)) == (Status.PASS, None)


def test_of_a_gpu_that_cannot_be_read_at_all_the_reason_is_said() -> None:
    assert unread(HEALTHY.unread("no permission")) == "no permission"
    assert status(HEALTHY.unread("no permission")) is Status.NOT_TESTED


def test_the_table_names_checks_that_exist() -> None:
    assert {check for group in REQUIRED for check in group.checks} <= MOMENT.ids


@pytest.mark.parametrize(("name", "kind"), [("readings", ReadingGroup), ("evidence", Required)])
def test_the_table_has_the_fields_that_are_read(name: str, kind: type[Any]) -> None:
    """One that is misspelt would require less."""
    table = tomllib.loads((ROOT / "sentinel/burnin/checks/required.toml").read_text())
    known = {field.name for field in fields(kind)} | ({"why"} if name == "readings" else set())
    assert {key for row in table[name] for key in row} == known
