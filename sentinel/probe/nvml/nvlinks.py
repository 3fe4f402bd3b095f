"""Read the state and the error counters of a GPU's NVLinks through NVML."""

from __future__ import annotations

from typing import Any

from sentinel.probe.nvml.errors import ABSENT
from sentinel.probe.nvml.telemetry import field_number
from sentinel.protocol.counters import NvLink

_INVALID_ARGUMENT = 2  # the error of a link that the GPU does not have

#: The counters of each link: NVML's names, those of newer GPUs last, and Sentinel's.
_COUNTERS = (
    ("NVML_FI_DEV_NVLINK_GET_SPEED", "speed_mbps"),
    ("NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY", "replays_total"),
    ("NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY", "recoveries_total"),
    ("NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS", "recoveries_total"),
    ("NVML_FI_DEV_NVLINK_ERROR_DL_CRC", "crc_errors_total"),
    ("NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER", "effective_ber"),
)


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
    """Read the counters of one link that the GPU, its driver and the binding support."""
    ids = [(getattr(nvml, name, None), field) for name, field in _COUNTERS]
    wanted = {number: field for number, field in ids if number is not None}
    found: dict[str, Any] = {}
    for one in nvml.nvmlDeviceGetFieldValues(handle, [(number, link) for number in wanted]):
        field = wanted.get(one.fieldId)
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
