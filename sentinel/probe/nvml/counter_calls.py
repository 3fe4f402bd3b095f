"""The calls of NVML that count, as data: functions, arguments and the fields that they fill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sentinel.probe.driver import ReadError
from sentinel.protocol.counters import RECOVERY_ACTIONS
from sentinel.protocol.telemetry import reasons_of

#: The numbers that stand for "unknown" in NVML's unsigned values.
UNKNOWN = (2**32 - 1, 2**64 - 1)


def as_flag(value: Any) -> bool:
    """Convert a truth value."""
    if value not in {0, 1}:
        raise ReadError("garbage", f"NVML's answer is invalid: {value!r} is no truth value")
    return bool(value)


def as_number(value: Any) -> int:
    """Check that a number is known."""
    if value in UNKNOWN or not isinstance(value, int):
        raise ReadError("garbage", f"NVML's answer is invalid: {value!r}")
    return value


def as_positive(value: Any) -> int | None:
    """Convert a threshold; cards without it report 0."""
    return as_number(value) or None


def as_thousandth(value: Any) -> float:
    """Convert milliwatts and millijoules."""
    return as_number(value) / 1e3


def as_is(value: Any) -> Any:
    """Take a value that is converted already."""
    return value


def as_seconds(value: Any) -> float:
    """Convert nanoseconds."""
    return as_number(value) / 1e9


def as_action(value: Any) -> str:
    """Name a recovery action."""
    number = as_number(value)
    return RECOVERY_ACTIONS.get(number, f"action {number}")


def as_reasons(value: Any) -> tuple[str, ...]:
    """Name the bits of the clocks event reasons."""
    return reasons_of(int(value))


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of NVML and the fields that its value fills."""

    function: str
    #: Its arguments besides the handle; a text is the name of a constant of the binding.
    arguments: tuple[int | str, ...] = ()
    #: The fields, each with its conversion; several take the items of a list.
    into: dict[str, Callable[[Any], Any]]


#: The calls in their order. The reasons are read before the link, whose speed follows the load.
CALLS = (
    Call(function="nvmlDeviceGetPersistenceMode", into={"persistence": as_flag}),
    Call(function="nvmlDeviceGetMigMode", into={"mig": lambda modes: as_flag(modes[0])}),
    Call(function="nvmlDeviceGetEccMode", into={"ecc": as_flag, "ecc_pending": as_flag}),
    *(
        Call(
            function="nvmlDeviceGetTotalEccErrors",
            arguments=(f"NVML_MEMORY_ERROR_TYPE_{kind}", f"NVML_{since}_ECC"),
            into={name: as_number},
        )
        for kind, since, name in (
            ("CORRECTED", "VOLATILE", "ecc_corrected_total"),
            ("UNCORRECTED", "VOLATILE", "ecc_uncorrected_total"),
            ("CORRECTED", "AGGREGATE", "ecc_corrected_lifetime_total"),
            ("UNCORRECTED", "AGGREGATE", "ecc_uncorrected_lifetime_total"),
        )
    ),
    Call(
        function="nvmlDeviceGetRemappedRows",
        into={
            "remapped_corrected_total": as_number,
            "remapped_uncorrected_total": as_number,
            "remap_pending": as_flag,
            "remap_failed": as_flag,
        },
    ),
    Call(function="nvmlDeviceGetRetiredPagesPendingStatus", into={"retirement_pending": as_flag}),
    Call(
        function="nvmlDeviceGetRepairStatus",
        into={"channel_repair_pending": as_flag, "tpc_repair_pending": as_flag},
    ),
    Call(function="nvmlDeviceGetUnrepairableMemoryFlag_v1", into={"memory_unrepairable": as_flag}),
    Call(function="nvmlDeviceGetCurrentClocksEventReasons", into={"reasons": as_reasons}),
    Call(function="nvmlDeviceGetCurrPcieLinkGeneration", into={"pcie_generation": as_number}),
    Call(
        function="nvmlDeviceGetMaxPcieLinkGeneration", into={"pcie_generation_maximum": as_number}
    ),
    Call(
        function="nvmlDeviceGetGpuMaxPcieLinkGeneration",
        into={"pcie_generation_own_maximum": as_number},
    ),
    Call(function="nvmlDeviceGetCurrPcieLinkWidth", into={"pcie_width": as_number}),
    Call(function="nvmlDeviceGetMaxPcieLinkWidth", into={"pcie_width_maximum": as_number}),
    Call(function="nvmlDeviceGetPcieReplayCounter", into={"pcie_replays_total": as_number}),
    *(
        Call(function=f"nvmlDeviceGet{kind}ClockInfo", arguments=(which,), into={name: as_number})
        for kind, which, name in (
            ("", "NVML_CLOCK_SM", "sm_clock_mhz"),
            ("", "NVML_CLOCK_MEM", "memory_clock_mhz"),
            ("Max", "NVML_CLOCK_SM", "sm_clock_maximum_mhz"),
            ("Max", "NVML_CLOCK_MEM", "memory_clock_maximum_mhz"),
        )
    ),
    Call(function="nvmlDeviceGetEnforcedPowerLimit", into={"power_limit_w": as_thousandth}),
    Call(
        function="nvmlDeviceGetPowerManagementDefaultLimit",
        into={"power_limit_default_w": as_thousandth},
    ),
    Call(
        function="nvmlDeviceGetTemperature",
        arguments=("NVML_TEMPERATURE_GPU",),
        into={"temperature_c": as_number},
    ),
    *(
        Call(
            function="nvmlDeviceGetTemperatureThreshold",
            arguments=(f"NVML_TEMPERATURE_THRESHOLD_{which}",),
            into={name: as_positive},
        )
        for which, name in (
            ("SLOWDOWN", "slowdown_c"),
            ("GPU_MAX", "maximum_c"),
            ("SHUTDOWN", "shutdown_c"),
            ("MEM_MAX", "memory_maximum_c"),
        )
    ),
    Call(function="nvmlDeviceGetMarginTemperature", into={"temperature_margin_c": as_number}),
)

#: The calls that return text.
TEXTS = {
    "serial": "nvmlDeviceGetSerial",
    "vbios": "nvmlDeviceGetVbiosVersion",
    "inforom": "nvmlDeviceGetInforomImageVersion",
}

#: The values that are fetched in one call, by NVML_FI_DEV_* of nvml.h, with the field and its
#: conversion. Numbers, since a binding that is older than the driver lacks the names.
FIELDS: dict[int, tuple[str, Callable[[Any], Any]]] = {
    74: ("power_throttled_s", as_seconds),  # PERF_POLICY_POWER
    75: ("thermal_throttled_s", as_seconds),  # PERF_POLICY_THERMAL
    82: ("memory_temperature_c", as_number),  # MEMORY_TEMP
    83: ("energy_j", as_thousandth),  # TOTAL_ENERGY_CONSUMPTION
    194: ("slowdown_margin_c", as_number),  # TEMPERATURE_SLOWDOWN_TLIMIT
    230: ("recovery_action", as_action),  # GET_GPU_RECOVERY_ACTION
    269: ("software_thermal_throttled_s", as_seconds),  # CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
    270: ("hardware_thermal_throttled_s", as_seconds),  # CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
    271: ("power_brake_throttled_s", as_seconds),  # CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
}
#: The conversions whose numbers have a sign.
SIGNED = {"slowdown_margin_c"}

#: Throttled times that older drivers report by another call, with the constant of its argument.
VIOLATIONS = {
    "power_throttled_s": "NVML_PERF_POLICY_POWER",
    "thermal_throttled_s": "NVML_PERF_POLICY_THERMAL",
}

#: NVML's name of each call by its name on the board, for people who search for what hung.
FUNCTIONS = (
    {next(iter(call.into)): call.function for call in CALLS}
    | TEXTS
    | {
        "open": "nvmlInit",
        "version": "nvmlSystemGetDriverVersion",
        "count": "nvmlDeviceGetCount",
        "handle": "nvmlDeviceGetHandleByIndex",
        "uuid": "nvmlDeviceGetUUID",
        "name": "nvmlDeviceGetName",
        "pci_bus_id": "nvmlDeviceGetPciInfo",
        "inforom_valid": "nvmlDeviceValidateInforom",
        "sram_threshold_exceeded": "nvmlDeviceGetSramEccErrorStatus",
        "remap_banks_low": "nvmlDeviceGetRowRemapperHistogram",
        "retired_corrected_total": "nvmlDeviceGetRetiredPages",
        "fields": "nvmlDeviceGetFieldValues",
        "violations": "nvmlDeviceGetViolationStatus",
        "fabric_state": "nvmlDeviceGetGpuFabricInfoV",
        "nvlinks": "nvmlDeviceGetNvLinkState",
    }
)
