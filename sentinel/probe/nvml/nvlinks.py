"""Read the state and the error counters of a GPU's NVLinks through NVML."""

from __future__ import annotations

from typing import Any

from sentinel.probe.nvml.errors import ABSENT
from sentinel.probe.nvml.telemetry import field_number
from sentinel.protocol.counters import NvLink

_INVALID_ARGUMENT = 2  # the error of a link that the GPU does not have

#: The counters of each link, by NVML_FI_DEV_* of nvml.h; the newer ones replace the older.
_COUNTERS = {
    161: "replays_total",  # NVLINK_ERROR_DL_REPLAY
    162: "recoveries_total",  # NVLINK_ERROR_DL_RECOVERY
    163: "crc_errors_total",  # NVLINK_ERROR_DL_CRC
    164: "speed_mbps",  # NVLINK_GET_SPEED
    215: "recoveries_total",  # NVLINK_COUNT_LINK_RECOVERY_EVENTS, since Blackwell
    220: "effective_ber",  # NVLINK_COUNT_EFFECTIVE_BER
}


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
            if error.value in ABSENT | {_INVALID_ARGUMENT}:
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
    for one in values:
        field = _COUNTERS.get(one.fieldId)
        if field is None or one.nvmlReturn != 0:
            continue
        value = field_number(nvml, one)
        if value not in {2**32 - 1, 2**64 - 1}:
            found[field] = decode_ber(value) if field == "effective_ber" else value
    return found


def decode_ber(value: int) -> float:
    """Decode a bit error rate: a mantissa of four bits over a negative decimal exponent."""
    mantissa, exponent = value >> 8 & 0xF, value & 0xFF
    return float(f"{mantissa}e-{exponent}")
