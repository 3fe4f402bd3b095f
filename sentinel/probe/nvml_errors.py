"""The meaning of NVML's error codes: the whole driver, one GPU for good, or one call.

[docs/nvml.md](../../docs/nvml.md) describes them for users.
"""

from __future__ import annotations

from typing import Any

from sentinel.probe.driver import DriverError, DriverGoneError, GpuLostError, ReadError

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
        return DriverGoneError(code, _GONE[number])
    if number in _LOST:
        return GpuLostError(code, _LOST[number])
    return ReadError(code, _REMEDIES.get(number, f"NVML reports: {error}"))


def as_text(value: str | bytes) -> str:
    """Decode ``value``; older bindings return bytes, and broken boards arbitrary ones."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
