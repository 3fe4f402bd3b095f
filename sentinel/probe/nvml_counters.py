"""Read the counters of GPUs through NVML, once; a process of its own makes the calls and ends.

Each call may hang for ever or crash, so each is announced on a board before it is made.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sentinel.probe.driver import GpuLostError, ReadError
from sentinel.probe.nvml_errors import ABSENT, as_text
from sentinel.probe.nvml_inspection import InspectedDriver
from sentinel.probe.nvml_telemetry import field_number, read_nvlinks
from sentinel.protocol.counters import (
    FABRIC_HEALTH,
    FABRIC_STATES,
    RECOVERY_ACTIONS,
    Counters,
    NvLink,
)
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


#: Announces a call for a GPU by this name, makes it and returns its value.
Announce = Callable[[str, Callable[[], Any]], Any]

_CORRUPTED_INFOROM = 14  # NVML_ERROR_CORRUPTED_INFOROM
_INVALID_ARGUMENT = 2  # the error of a field that the driver does not know
_INSUFFICIENT_SIZE = 7
#: NVML's codes for a value that does not exist, as the error of one field.
_ABSENT_FIELD = ABSENT | {_INVALID_ARGUMENT}


class CountersDriver(InspectedDriver):
    """NVML with the calls that count; a GPU is named by its index."""

    def identity(self, index: int, driver: str, announce: Announce) -> Counters:
        """Open a GPU and read its UUID and name.

        A GPU that cannot be opened for another reason than being lost has no values, and that
        reason for all of them.

        Raises:
            DriverGoneError: The whole driver is gone.
        """
        found = Counters(uuid="", index=index, name="", at=time.monotonic(), driver=driver)
        try:
            announce("handle", lambda: self.reach(index))
            uuid = announce("uuid", lambda: self.uuid(index))
            name = announce("name", lambda: self.model(index))
        except ReadError as error:
            return found.unread(error.reason)
        except GpuLostError as error:
            return replace(found, lost=error.reason)
        return replace(found, uuid=uuid, name=name)

    def read(self, identity: Counters, announce: Announce) -> Counters:
        """Read all counters of a GPU that has an identity.

        Raises:
            GpuLostError: The GPU is lost; the other calls are not made.
            DriverGoneError: The whole driver is gone.
        """
        reading = _Reading(self._nvml, self._handles[str(identity.index)], announce, self)
        reading.read_all()
        known = {name: getattr(identity, name) for name in ("uuid", "index", "name", "driver")}
        return Counters(**known, at=time.monotonic(), failed=reading.failed, **reading.values)

    def call(self, function: Callable[[], Any]) -> Any:
        """Make a call; return None if it is not supported, and translate every error."""
        with self._translated():
            return self._or_none(function)


class _Reading:
    """The values of one GPU, and the errors of the calls that failed."""

    def __init__(self, nvml: Any, handle: Any, announce: Announce, driver: CountersDriver) -> None:
        self._nvml = nvml
        self._handle = handle
        self._announce = announce
        self._driver = driver
        self.values: dict[str, Any] = {}
        self.failed: dict[str, str] = {}

    def read_all(self) -> None:
        """Make every call."""
        for name, text in TEXTS.items():
            self._take(name, {name: as_text}, self._named(text))
        self._take("pci_bus_id", {"pci_bus_id": as_text}, self._bus)
        for call in CALLS:
            arguments = [
                getattr(self._nvml, argument, None) if isinstance(argument, str) else argument
                for argument in call.arguments
            ]
            if None not in arguments:  # else the binding is older than the constant
                function = self._named(call.function, *arguments)
                self._take(next(iter(call.into)), call.into, function)
        self._take("inforom_valid", {"inforom_valid": as_flag}, self._inforom)
        sram = (
            "sram_threshold_exceeded",
            "sram_corrected_lifetime_total",
            "sram_uncorrected_lifetime_total",
        )
        self._take(sram[0], {sram[0]: as_flag, sram[1]: as_number, sram[2]: as_number}, self._sram)
        banks = {"remap_banks_low": as_number, "remap_banks_none": as_number}
        self._take("remap_banks_low", banks, self._banks)
        retired = {"retired_corrected_total": as_number, "retired_uncorrected_total": as_number}
        self._take("retired_corrected_total", retired, self._retired)
        self._read_fields()
        fabric = {"fabric_state": as_is, "fabric_health": as_is}
        self._take("fabric_state", fabric, self._fabric)
        self._take("nvlinks", {"nvlinks": tuple}, self._nvlinks)

    def _named(self, name: str, *arguments: Any) -> Callable[[], Any]:
        """Build the call of a function; None if the binding is older than it."""
        function = getattr(self._nvml, name, None)
        return lambda: None if function is None else function(self._handle, *arguments)

    def _take(
        self, name: str, into: Mapping[str, Callable[[Any], Any]], call: Callable[[], Any]
    ) -> None:
        """Make a call and store its values, or its error for each of its fields."""
        try:
            value = self._announce(name, lambda: self._driver.call(call))
        except ReadError as error:
            self.failed |= dict.fromkeys(into, error.reason)
            return
        if value is None:
            return
        several = value if len(into) > 1 else [value]
        for (field, convert), figure in zip(into.items(), several, strict=True):
            try:
                self.values[field] = convert(figure)
            except ReadError as error:
                self.failed[field] = error.reason

    def _bus(self) -> str | bytes:
        bus: str | bytes = self._nvml.nvmlDeviceGetPciInfo(self._handle).busId
        return bus

    def _inforom(self) -> bool | None:
        """Validate the InfoROM: the call returns nothing, or an error if it is corrupted."""
        try:
            self._nvml.nvmlDeviceValidateInforom(self._handle)
        except self._nvml.NVMLError as error:
            if error.value != _CORRUPTED_INFOROM:
                raise
            return False
        return True

    def _sram(self) -> Sequence[int] | None:
        kind = getattr(self._nvml, "c_nvmlEccSramErrorStatus_v1_t", None)
        if kind is None:
            return None
        status = kind()
        self._nvml.nvmlDeviceGetSramEccErrorStatus(self._handle, ctypes.byref(status))
        uncorrected = status.aggregateUncParity + status.aggregateUncSecDed
        return status.bThresholdExceeded, status.aggregateCor, uncorrected

    def _banks(self) -> Sequence[int] | None:
        function = getattr(self._nvml, "nvmlDeviceGetRowRemapperHistogram", None)
        if function is None:
            return None
        banks = function(self._handle)
        return banks.low, banks.none

    def _retired(self) -> Sequence[int] | None:
        """Count the retired pages of both causes, without their addresses."""
        function = self._nvml._nvmlGetFunctionPointer("nvmlDeviceGetRetiredPages")  # noqa: SLF001
        counts = []
        for cause in (
            self._nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
            self._nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
        ):
            count = ctypes.c_uint(0)
            code = function(self._handle, cause, ctypes.byref(count), None)
            if code not in {0, _INSUFFICIENT_SIZE}:
                raise self._nvml.NVMLError(code)
            counts.append(count.value)
        return counts

    def _fabric(self) -> Sequence[str | None] | None:
        """Read the state of the registration with the fabric, and its health."""
        nvml = self._nvml
        for version in ("v3", "v2"):
            kind = getattr(nvml, f"c_nvmlGpuFabricInfo_{version}_t", None)
            if kind is None:
                continue
            info = kind()
            try:
                nvml.nvmlDeviceGetGpuFabricInfoV(self._handle, ctypes.byref(info))
            except nvml.NVMLError as error:
                if error.value not in ABSENT | {_INVALID_ARGUMENT}:
                    raise
                continue
            number = info.state & 0xFF  # a byte, which the binding takes for four
            state = FABRIC_STATES.get(number, f"state {number}")
            if state == "completed" and info.status:
                state = "failed"
            summary = getattr(info, "healthSummary", 0)
            return state, FABRIC_HEALTH.get(summary, f"health {summary}")
        return None

    def _nvlinks(self) -> Sequence[NvLink] | None:
        return read_nvlinks(self._nvml, self._handle) or None

    def _read_fields(self) -> None:
        """Read all values that NVML has as numbered fields; each has an error of its own."""
        call = self._named("nvmlDeviceGetFieldValues", list(FIELDS))
        try:
            found = self._announce("fields", lambda: self._driver.call(call))
        except ReadError as error:
            self.failed |= dict.fromkeys((field for field, _ in FIELDS.values()), error.reason)
            found = ()
        for sample in found or ():
            self._take_field(sample, *FIELDS.get(sample.fieldId, (None, as_number)))
        for field, constant in VIOLATIONS.items():
            if field not in self.values:
                which = getattr(self._nvml, constant)
                status = self._named("nvmlDeviceGetViolationStatus", which)
                self.failed.pop(field, None)
                self._take(
                    "violations", {field: lambda time: as_seconds(time.violationTime)}, status
                )

    def _take_field(self, sample: Any, field: str | None, convert: Callable[[Any], Any]) -> None:
        if field is None or sample.nvmlReturn in _ABSENT_FIELD:
            return
        try:
            if sample.nvmlReturn:
                self._driver.call(lambda: self._raise(sample.nvmlReturn))
            self.values[field] = convert(field_number(self._nvml, sample, signed=field in SIGNED))
        except ReadError as error:
            self.failed[field] = error.reason

    def _raise(self, code: int) -> None:
        raise self._nvml.NVMLError(code)
