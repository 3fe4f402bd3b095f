"""The calls of NVML: what their errors mean, and which of Sentinel's figures each one fills.

[docs/internals/reliability.md](../../docs/internals/reliability.md) describes the errors for users.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sentinel.probe.driver import DriverError, DriverGoneError, GpuLostError, ReadError
from sentinel.protocol.counters import RECOVERY_ACTIONS, NvLink
from sentinel.protocol.gpu import reasons_of

GPU_IS_GONE = "the GPU is gone"

_NO_DRIVER = "there is no NVIDIA driver here"

#: NVML's codes for a failure of the whole driver, each with a reason for users.
_GONE = {
    1: "NVML was shut down under us",
    9: f"{_NO_DRIVER}: its kernel module is not loaded; load it with `modprobe nvidia`",
    12: f"{_NO_DRIVER}: libnvidia-ml.so.1 was not found; in a container, start it with GPUs",
    18: "the NVIDIA kernel module and its library are of different versions; the driver was "
    "upgraded while it ran: reboot, or reload the module",
}

#: NVML's codes for the loss of one GPU.
_LOST = {
    11: "the GPU's interrupts do not arrive; look for a cable or power fault",
    15: "the GPU fell off the bus or is otherwise lost; see `dmesg` for its XID",
    16: "the GPU needs a reset: `nvidia-smi --gpu-reset`, or reboot",
    28: GPU_IS_GONE,
}

#: NVML's other codes with a known remedy.
_REMEDIES = {
    4: "no permission; NVML wants root for this, or CAP_SYS_ADMIN in a container",
    17: "the operating system blocked the call; a container may lack the device node",
    999: "NVML knows no better than `unknown error`; in a container, recreate it",
}

#: NVML's codes for calls that this GPU or driver does not support: NOT_SUPPORTED,
#: FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH and DEPRECATED.
ABSENT = frozenset({3, 13, 25, 26})

#: NVML's codes for a missing GPU: NOT_FOUND and GPU_NOT_FOUND.
NO_SUCH_GPU = frozenset({6, 28})

#: The numbers that stand for "unknown" in NVML's unsigned values.
UNKNOWN = (2**32 - 1, 2**64 - 1)

#: The fields whose unsigned types may hold a negative number, as some drivers have it.
_SIGNED = {194}

#: NVML_VALUE_TYPE_SIGNED_INT, which older bindings do not have.
_SIGNED_INT = 5

INVALID_ARGUMENT = 2  # the error of a link that the GPU does not have

#: The counters of each link, by NVML_FI_DEV_* of nvml.h; the newer ones replace the older.
_COUNTERS = {
    161: "replays_total",  # NVLINK_ERROR_DL_REPLAY
    162: "recoveries_total",  # NVLINK_ERROR_DL_RECOVERY
    163: "crc_errors_total",  # NVLINK_ERROR_DL_CRC
    164: "speed_mbps",  # NVLINK_GET_SPEED
    215: "recoveries_total",  # NVLINK_COUNT_LINK_RECOVERY_EVENTS, since Blackwell
    220: "effective_ber",  # NVLINK_COUNT_EFFECTIVE_BER
}


def translated(error: Exception, nvml: Any) -> DriverError:
    """Return the driver error for an exception of pynvml.

    Garbage from one GPU can make the binding raise anything, such as a MemoryError over a list of
    billions. It must not end the probe, which reads other GPUs.

    Args:
        error: The exception.
        nvml: The binding, which has the names of NVML's codes.
    """
    if not isinstance(error, nvml.NVMLError):
        code = "undecodable" if isinstance(error, UnicodeDecodeError) else "garbage"
        return ReadError(code, f"NVML's answer is invalid: {error!r}")
    number: int = error.value
    code = _names(nvml).get(number, f"nvml_{number}")
    return _error_of(number, code, error)


def _names(nvml: Any) -> dict[int, str]:
    """Return NVML's names of its error codes, in lower case."""
    prefix = "NVML_ERROR_"
    return {
        number: name.removeprefix(prefix).lower()
        for name, number in vars(nvml).items()
        if name.startswith(prefix)
    }


def _error_of(number: int, code: str, error: Exception) -> DriverError:
    """Return the driver error for an error of NVML.

    Args:
        number: NVML's code.
        code: Its name, for programs.
        error: The original error, whose text is used if no better reason is known.
    """
    if number in _GONE:
        return DriverGoneError(code, _damage_of(error) or _GONE[number])
    if number in _LOST:
        return GpuLostError(code, _LOST[number])
    return ReadError(code, _REMEDIES.get(number, f"NVML reports: {error}"))


def _damage_of(error: Exception) -> str | None:
    """Return the loader's words on a library that is there, such as an empty file, or None.

    The binding calls every failure to load it "not found", in the handler of the loader's error.
    """
    why = str(error.__context__) if isinstance(error.__context__, OSError) else ""
    if not why or re.match(r"libnvidia-ml\.so\.1: cannot open .*No such file", why):
        return None
    return (
        f"NVML cannot be loaded: {why}; install the driver's libraries again, or recreate the"
        " container"
    )


@contextlib.contextmanager
def translating(nvml: Any) -> Iterator[None]:
    """Translate any exception of pynvml into a driver error."""
    try:
        yield
    except DriverError:
        raise
    except Exception as error:
        raise translated(error, nvml) from error


def as_text(value: str | bytes) -> str:
    """Decode ``value``; older bindings return bytes, and broken boards arbitrary ones."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# --- figures --------------------------------------------------------------------------------


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


def as_kibibytes(value: Any) -> int:
    """Convert KiB to bytes."""
    return as_number(value) * 1024


class Call(NamedTuple):
    """A call of NVML for one GPU, and the figures that its value fills."""

    function: str
    #: The figures, each with its conversion; several take the items of a list.
    into: dict[str, Callable[[Any], Any]]
    #: The arguments besides the handle, as names of constants of the binding.
    constants: tuple[str, ...] = ()

    def arguments(self, nvml: Any) -> list[Any] | None:
        """Look up the arguments; None if the binding is older than one of them."""
        found = [getattr(nvml, name, None) for name in self.constants]
        return None if None in found else found


#: The calls in their order. The reasons are read before the link, whose speed follows the load.
CALLS = (
    Call("nvmlDeviceGetSerial", {"serial": as_text}),
    Call("nvmlDeviceGetVbiosVersion", {"vbios": as_text}),
    Call("nvmlDeviceGetInforomImageVersion", {"inforom": as_text}),
    Call("nvmlDeviceGetMemoryInfo", {"memory_total": lambda memory: as_number(memory.total)}),
    Call("nvmlDeviceGetPersistenceMode", {"persistence": as_flag}),
    Call("nvmlDeviceGetMigMode", {"mig": lambda modes: as_flag(modes[0])}),
    Call("nvmlDeviceGetEccMode", {"ecc": as_flag, "ecc_pending": as_flag}),
    *(
        Call(
            "nvmlDeviceGetTotalEccErrors",
            {name: as_number},
            (f"NVML_MEMORY_ERROR_TYPE_{kind}", f"NVML_{since}_ECC"),
        )
        for kind, since, name in (
            ("CORRECTED", "VOLATILE", "ecc_corrected_total"),
            ("UNCORRECTED", "VOLATILE", "ecc_uncorrected_total"),
            ("CORRECTED", "AGGREGATE", "ecc_corrected_lifetime_total"),
            ("UNCORRECTED", "AGGREGATE", "ecc_uncorrected_lifetime_total"),
        )
    ),
    Call(
        "nvmlDeviceGetRemappedRows",
        {
            "remapped_corrected_total": as_number,
            "remapped_uncorrected_total": as_number,
            "remap_pending": as_flag,
            "remap_failed": as_flag,
        },
    ),
    Call("nvmlDeviceGetRetiredPagesPendingStatus", {"retirement_pending": as_flag}),
    Call(
        "nvmlDeviceGetRepairStatus",
        {"channel_repair_pending": as_flag, "tpc_repair_pending": as_flag},
    ),
    Call("nvmlDeviceGetUnrepairableMemoryFlag_v1", {"memory_unrepairable": as_flag}),
    Call("nvmlDeviceGetCurrentClocksEventReasons", {"reasons": as_reasons}),
    Call("nvmlDeviceGetCurrPcieLinkGeneration", {"pcie_generation": as_number}),
    Call("nvmlDeviceGetMaxPcieLinkGeneration", {"pcie_generation_maximum": as_number}),
    Call("nvmlDeviceGetGpuMaxPcieLinkGeneration", {"pcie_generation_own_maximum": as_number}),
    Call("nvmlDeviceGetCurrPcieLinkWidth", {"pcie_width": as_number}),
    Call("nvmlDeviceGetMaxPcieLinkWidth", {"pcie_width_maximum": as_number}),
    Call("nvmlDeviceGetPcieReplayCounter", {"pcie_replays_total": as_number}),
    *(
        Call(f"nvmlDeviceGet{kind}ClockInfo", {name: as_number}, (f"NVML_CLOCK_{which}",))
        for kind, which, name in (
            ("", "SM", "sm_clock_mhz"),
            ("", "MEM", "memory_clock_mhz"),
            ("Max", "SM", "sm_clock_maximum_mhz"),
            ("Max", "MEM", "memory_clock_maximum_mhz"),
        )
    ),
    Call("nvmlDeviceGetEnforcedPowerLimit", {"power_limit_w": as_thousandth}),
    Call("nvmlDeviceGetPowerManagementDefaultLimit", {"power_limit_default_w": as_thousandth}),
    Call("nvmlDeviceGetTemperature", {"temperature_c": as_number}, ("NVML_TEMPERATURE_GPU",)),
    *(
        Call(
            "nvmlDeviceGetTemperatureThreshold",
            {name: as_positive},
            (f"NVML_TEMPERATURE_THRESHOLD_{which}",),
        )
        for which, name in (
            ("SLOWDOWN", "slowdown_c"),
            ("GPU_MAX", "maximum_c"),
            ("SHUTDOWN", "shutdown_c"),
            ("MEM_MAX", "memory_maximum_c"),
        )
    ),
    Call("nvmlDeviceGetMarginTemperature", {"temperature_margin_c": as_number}),
)

#: The calls by the first figure that each fills; that is also their name while they are made.
CALLS_BY_NAME = {next(iter(call.into)): call for call in CALLS}

#: The calls that show who may use a GPU, by the figure that each fills.
ACCESS_CALLS = {
    "memory": Call("nvmlDeviceGetMemoryInfo", {"memory": lambda memory: int(memory.total)}),
    "minor": Call("nvmlDeviceGetMinorNumber", {"minor": as_number}),
    "compute_mode": Call("nvmlDeviceGetComputeMode", {"compute_mode": as_number}),
    "mig_pending": Call("nvmlDeviceGetMigMode", {"mig_pending": lambda modes: as_flag(modes[1])}),
    "display": Call("nvmlDeviceGetDisplayActive", {"display": as_flag}),
}

#: The values that are fetched in one call, by NVML_FI_DEV_* of nvml.h, with the figure and its
#: conversion. Numbers, since a binding that is older than the driver lacks the names.
FIELDS: dict[int, tuple[str, Callable[[Any], Any]]] = {
    3: ("ecc_corrected_total", as_number),  # ECC_SBE_VOL_TOTAL
    4: ("ecc_uncorrected_total", as_number),  # ECC_DBE_VOL_TOTAL
    74: ("power_throttled_s", as_seconds),  # PERF_POLICY_POWER
    75: ("thermal_throttled_s", as_seconds),  # PERF_POLICY_THERMAL
    82: ("memory_temperature_c", as_number),  # MEMORY_TEMP
    83: ("energy_j", as_thousandth),  # TOTAL_ENERGY_CONSUMPTION
    94: ("pcie_replays_total", as_number),  # PCIE_REPLAY_COUNTER
    138: ("nvlink_tx_bytes_total", as_kibibytes),  # NVLINK_THROUGHPUT_DATA_TX
    139: ("nvlink_rx_bytes_total", as_kibibytes),  # NVLINK_THROUGHPUT_DATA_RX
    142: ("remapped_corrected_total", as_number),  # REMAPPED_COR
    143: ("remapped_uncorrected_total", as_number),  # REMAPPED_UNC
    144: ("remap_pending", as_flag),  # REMAPPED_PENDING
    145: ("remap_failed", as_flag),  # REMAPPED_FAILURE
    194: ("slowdown_margin_c", as_number),  # TEMPERATURE_SLOWDOWN_TLIMIT
    230: ("recovery_action", as_action),  # GET_GPU_RECOVERY_ACTION
    269: ("software_thermal_throttled_s", as_seconds),  # CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
    270: ("hardware_thermal_throttled_s", as_seconds),  # CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
    271: ("power_brake_throttled_s", as_seconds),  # CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
}


def field_number(nvml: Any, field: Any) -> int:
    """Return the number in a field, NVML's struct, which has one of several types."""
    value = field.value
    kinds = {
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: value.uiVal,
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: value.ulVal,
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: value.ullVal,
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: value.sllVal,
        _SIGNED_INT: value.uiVal,
    }
    number = int(kinds.get(field.valueType, value.ullVal))
    if field.fieldId in _SIGNED and number >= 2**31:
        number -= 2**32 if number < 2**32 else 2**64
    return number


def read_nvlinks(nvml: Any, handle: Any) -> tuple[NvLink, ...]:
    """Read every NVLink of a GPU; none if it has none.

    Raises:
        NVMLError: A call failed in another way than "not supported".
    """
    links = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = nvml.nvmlDeviceGetNvLinkState(handle, link)
        except nvml.NVMLError as error:
            if error.value in ABSENT | {INVALID_ARGUMENT}:
                break
            raise
        links.append(NvLink(link=link, active=bool(active), **_counters(nvml, handle, link)))
    return tuple(links)


def _counters(nvml: Any, handle: Any, link: int) -> dict[str, Any]:
    """Read the counters of one link that the GPU and its driver support."""
    found: dict[str, Any] = {}
    try:
        values = nvml.nvmlDeviceGetFieldValues(handle, [(number, link) for number in _COUNTERS])
    except nvml.NVMLError as error:
        if error.value not in ABSENT:
            raise
        return found
    for sample in values:
        field = _COUNTERS.get(sample.fieldId)
        if field is None or sample.nvmlReturn != 0:
            continue
        value = field_number(nvml, sample)
        if value not in UNKNOWN:
            found[field] = decode_ber(value) if field == "effective_ber" else value
    return found


def decode_ber(value: int) -> float:
    """Decode a bit error rate: a mantissa of four bits over a negative decimal exponent."""
    mantissa, exponent = value >> 8 & 0xF, value & 0xFF
    return float(f"{mantissa}e-{exponent}")
