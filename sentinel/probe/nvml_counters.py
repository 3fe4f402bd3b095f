"""Make each call of NVML once, for the counters and for ``doctor``.

Each call may hang for ever or crash, so each is announced on a board before it is made.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sentinel.probe.driver import GpuLostError, ReadError
from sentinel.probe.nvml_calls import (
    ABSENT,
    ACCESS_CALLS,
    CALLS_BY_NAME,
    FIELDS,
    INVALID_ARGUMENT,
    as_flag,
    as_number,
    as_seconds,
    as_text,
    field_number,
    read_nvlinks,
    translating,
)
from sentinel.probe.nvml_driver import NvmlDriver
from sentinel.protocol.counters import FABRIC_HEALTH, FABRIC_STATES, Counters, GpuAccess, NvLink
from sentinel.protocol.gpu import ProcessKind

#: The numbers of the counters that NVML has as fields.
COUNTED_FIELDS = (74, 75, 82, 83, 194, 230, 269, 270, 271)

#: Throttled times that older drivers report by another call, with the constant of its argument.
VIOLATIONS = {
    "power_throttled_s": "NVML_PERF_POLICY_POWER",
    "thermal_throttled_s": "NVML_PERF_POLICY_THERMAL",
}

#: Announces a call for a GPU by this name, makes it and returns its value.
Announce = Callable[[str, Callable[[], Any]], Any]

_CORRUPTED_INFOROM = 14  # NVML_ERROR_CORRUPTED_INFOROM
_INSUFFICIENT_SIZE = 7
#: NVML's codes for a value that does not exist, as the error of one field.
_ABSENT_FIELD = ABSENT | {INVALID_ARGUMENT}


class OneShotDriver(NvmlDriver):
    """NVML with the calls that the probe does not need; a GPU is named by its index."""

    def cuda(self) -> int | None:
        """Read the newest supported CUDA: 1000 times the major version and 10 times the minor."""
        with contextlib.suppress(ReadError):
            version = self.call(self._nvml.nvmlSystemGetCudaDriverVersion)
            return None if version is None else int(version)
        return None

    def count(self) -> int:
        """Count the GPUs, those that cannot be reached among them."""
        with self._translated():
            return int(self._nvml.nvmlDeviceGetCount())

    def reach(self, index: int) -> None:
        """Open the handle of a GPU by its index, which touches no other GPU."""
        with self._translated():
            self._handles[str(index)] = self._nvml.nvmlDeviceGetHandleByIndex(index)

    def handle(self, index: int) -> Any:
        """Return the handle of a GPU that was reached."""
        return self._handles[str(index)]

    def uuid(self, index: int) -> str:
        """Read the UUID of a GPU."""
        with self._translated():
            return as_text(self._nvml.nvmlDeviceGetUUID(self._handles[str(index)]))

    def model(self, index: int) -> str:
        """Read the name of a GPU's model."""
        handle = self._handles[str(index)]
        return self._text(lambda: self._nvml.nvmlDeviceGetName(handle)) or "unreadable name"

    def named(self, index: int, function: str, *arguments: Any) -> Callable[[], Any]:
        """Build the call of a function for a GPU; of one that the binding lacks, it is None."""
        found, handle = getattr(self._nvml, function, None), self._handles[str(index)]
        return lambda: None if found is None else found(handle, *arguments)

    def call(self, function: Callable[[], Any]) -> Any:
        """Make a call; return None if it is not supported, and translate every error."""
        with self._translated():
            try:
                return function()
            except self._nvml.NVMLError as error:
                if error.value not in ABSENT:
                    raise
        return None

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
        reading = _Reading(self, self._nvml, identity.index, announce)
        reading.read_all()
        known = {name: getattr(identity, name) for name in ("uuid", "index", "name", "driver")}
        return Counters(**known, at=time.monotonic(), failed=reading.failed, **reading.values)

    def access(self, index: int, announce: Announce) -> GpuAccess:
        """Read who may use a GPU that has an identity, and who does.

        Raises:
            GpuLostError: The GPU is lost; the other calls are not made.
            DriverGoneError: The whole driver is gone.
        """
        reading = _Reading(self, self._nvml, index, announce)
        for name, call in ACCESS_CALLS.items():
            reading.take(name, call.into, self.named(index, call.function))
        for name, kind in (("computing", ProcessKind.COMPUTE), ("mps", ProcessKind.MPS)):
            reading.take(name, {name: _pids}, functools.partial(self._list, kind, str(index)))
        return GpuAccess(index=index, failed=reading.failed, **reading.values)


def _pids(listed: list[tuple[int, int | None]]) -> tuple[int, ...]:
    return tuple(pid for pid, _ in listed)


class _Reading:
    """The values of one GPU, and the errors of the calls that failed."""

    def __init__(self, driver: OneShotDriver, nvml: Any, index: int, announce: Announce) -> None:
        self._driver = driver
        self._nvml = nvml
        self._handle = driver.handle(index)
        self._announce = announce
        self._named = functools.partial(driver.named, index)
        self.values: dict[str, Any] = {}
        self.failed: dict[str, str] = {}

    def read_all(self) -> None:
        """Make every call."""
        self.take("pci_bus_id", {"pci_bus_id": as_text}, self._bus)
        for name, call in CALLS_BY_NAME.items():
            arguments = call.arguments(self._nvml)
            if arguments is not None:
                self.take(name, call.into, self._named(call.function, *arguments))
        self.take("inforom_valid", {"inforom_valid": as_flag}, self._inforom)
        sram = (
            "sram_threshold_exceeded",
            "sram_corrected_lifetime_total",
            "sram_uncorrected_lifetime_total",
        )
        self.take(sram[0], {sram[0]: as_flag, sram[1]: as_number, sram[2]: as_number}, self._sram)
        banks = {"remap_banks_low": as_number, "remap_banks_none": as_number}
        self.take("remap_banks_low", banks, self._banks)
        retired = {"retired_corrected_total": as_number, "retired_uncorrected_total": as_number}
        self.take("retired_corrected_total", retired, self._retired)
        self._read_fields()
        fabric = {"fabric_state": as_text, "fabric_health": as_text}
        self.take("fabric_state", fabric, self._fabric)
        self.take("nvlinks", {"nvlinks": tuple}, self._nvlinks)

    def take(
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
                if error.value not in _ABSENT_FIELD:
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
        wanted = {number: FIELDS[number] for number in COUNTED_FIELDS}
        call = self._named("nvmlDeviceGetFieldValues", list(wanted))
        try:
            found = self._announce("fields", lambda: self._driver.call(call))
        except ReadError as error:
            self.failed |= dict.fromkeys((field for field, _ in wanted.values()), error.reason)
            found = ()
        for sample in found or ():
            if sample.fieldId in wanted and sample.nvmlReturn not in _ABSENT_FIELD:
                self._take_field(sample, *wanted[sample.fieldId])
        for field, constant in VIOLATIONS.items():
            if field not in self.values:
                which = getattr(self._nvml, constant)
                status = self._named("nvmlDeviceGetViolationStatus", which)
                self.failed.pop(field, None)
                self.take(
                    "violations", {field: lambda time: as_seconds(time.violationTime)}, status
                )

    def _take_field(self, sample: Any, field: str, convert: Callable[[Any], Any]) -> None:
        try:
            if sample.nvmlReturn:
                with translating(self._nvml):
                    raise self._nvml.NVMLError(sample.nvmlReturn)
            self.values[field] = convert(field_number(self._nvml, sample))
        except ReadError as error:
            self.failed[field] = error.reason
