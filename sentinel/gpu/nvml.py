"""The real driver, through NVML. Nothing else imports pynvml, and all its errors end here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

from sentinel.gpu.driver import (
    DriverError,
    DriverGoneError,
    GpuLostError,
    ReadError,
    merge_lists,
)
from sentinel.messages import Gpu, GpuProcess, Memory, ProcessKind

__all__ = ["NvmlDriver"]

_NO_DRIVER = "there is no NVIDIA driver here"

#: NVML's codes that mean the driver as a whole, each with what to tell people.
_GONE = {
    1: "NVML was shut down under us",
    9: f"{_NO_DRIVER}: its kernel module is not loaded; load it with `modprobe nvidia`",
    12: f"{_NO_DRIVER}: libnvidia-ml.so.1 was not found; in a container, start it with GPUs",
    18: "the NVIDIA kernel module and its library are of different versions; the driver was "
    "upgraded while it ran: reboot, or reload the module",
}

#: NVML's codes that mean one GPU, for good.
_LOST = {
    11: "the GPU's interrupts do not arrive; look for a cable or power fault",
    15: "the GPU fell off the bus or is otherwise lost; see `dmesg` for its XID",
    16: "the GPU needs a reset: `nvidia-smi --gpu-reset`, or reboot",
    28: "the GPU is gone",
}

#: NVML's other codes that have a remedy.
_REMEDIES = {
    4: "no permission; NVML wants root for this, or CAP_SYS_ADMIN in a container",
    17: "the operating system blocked the call; a container may lack the device node",
    999: "NVML knows no better than `unknown error`; in a container, recreate it",
}

_NOT_SUPPORTED = 3
_FUNCTION_NOT_FOUND = 13
_ARGUMENT_VERSION_MISMATCH = 25

#: The functions behind each list, the one for the newest drivers first. pynvml itself only tries
#: the newest, which drivers before 510.39 do not have.
_LISTS = {
    ProcessKind.MPS: (
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    ),
    ProcessKind.COMPUTE: (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2",
    ),
    ProcessKind.GRAPHICS: (
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v2",
    ),
}


class NvmlDriver:
    """NVML, asked through nvidia-ml-py."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        self._memory_version: int | None = None
        #: When the newest sample was taken that :meth:`computing` has seen, by UUID.
        self._sampled: dict[str, int] = {}

    def open(self) -> None:
        """Load libnvidia-ml and initialise it; a driver without persistence takes seconds.

        Raises:
            DriverGoneError: There is no driver, or it cannot be talked to.
        """
        try:
            import pynvml
        except ImportError as error:
            reason = "nvidia-ml-py is not installed, so no NVIDIA driver can be asked"
            raise DriverGoneError("no_binding", reason) from error
        self._nvml = pynvml
        self._memory_version = pynvml.nvmlMemory_v2
        try:
            with self._translated():
                pynvml.nvmlInit()
        except ReadError as error:
            raise DriverGoneError(error.code, f"NVML cannot start: {error.reason}") from error

    def version(self) -> str:
        """Return the driver's version."""
        with self._translated():
            return _text(self._nvml.nvmlSystemGetDriverVersion())

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        """Return the GPUs in NVML's order, but for those that are lost."""
        with self._translated():
            count = self._nvml.nvmlDeviceGetCount()
        found = (self._gpu(index, skip) for index in range(count))
        return tuple(gpu for gpu in found if gpu is not None)

    def memory(self, uuid: str) -> Memory:
        """Return the memory of one GPU, without the driver's own where the driver tells it apart.

        Drivers before 510 have only the older call, which counts their own memory as used.
        """
        nvml = self._nvml
        # No context manager: hundreds of times a second, this is most of what the probe does.
        try:
            now = nvml.nvmlDeviceGetMemoryInfo(self._handle(uuid), version=self._memory_version)
        except nvml.NVMLError as error:
            number = error.value
            if self._memory_version and number in {_FUNCTION_NOT_FOUND, _ARGUMENT_VERSION_MISMATCH}:
                self._memory_version = None
                return self.memory(uuid)
            self._handles.pop(uuid, None)
            raise self._translate(error) from error
        return Memory(total=now.total, used=now.used, free=now.free)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Return everyone on one GPU, from all of NVML's three lists."""
        with self._translated(uuid):
            handle = self._handle(uuid)
            return merge_lists({kind: self._list(kind, handle) for kind in _LISTS})

    def exclusive(self, uuid: str) -> bool:
        """Return whether the compute mode admits one process only, or none."""
        with self._translated(uuid):
            mode = self._supported(self._nvml.nvmlDeviceGetComputeMode, self._handle(uuid))
            return mode is not None and mode != self._nvml.NVML_COMPUTEMODE_DEFAULT

    def mig(self, uuid: str) -> bool:
        """Return whether MIG is on; ``False`` on GPUs and drivers without it."""
        with self._translated(uuid):
            modes = self._supported(self._nvml.nvmlDeviceGetMigMode, self._handle(uuid))
            return modes is not None and modes[0] != 0

    def display(self, uuid: str) -> bool:
        """Return whether a display is active; ``False`` on GPUs without."""
        with self._translated(uuid):
            return bool(self._supported(self._nvml.nvmlDeviceGetDisplayActive, self._handle(uuid)))

    def utilization(self, uuid: str) -> float | None:
        """Return the share of the last sampling period, up to a second, in which a kernel ran."""
        with self._translated(uuid):
            rates = self._supported(self._nvml.nvmlDeviceGetUtilizationRates, self._handle(uuid))
            return None if rates is None else rates.gpu / 100

    def computing(self, uuid: str) -> tuple[int, ...] | None:
        """Return the host's PIDs of those who used the GPU since the last call.

        The driver samples who uses it, and names them to everybody by PIDs of the host.
        """
        nvml, since = self._nvml, self._sampled.get(uuid)
        try:
            found = nvml.nvmlDeviceGetProcessUtilization(self._handle(uuid), since or 0)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_FOUND:
                return None
            found = []  # nobody used it
        self._sampled[uuid] = max([since or 0, *(sample.timeStamp for sample in found)])
        if since is None:
            return None
        used = (s.pid for s in found if s.timeStamp > since and (s.smUtil or s.memUtil))
        return tuple(sorted({int(pid) for pid in used}))

    def node(self, uuid: str) -> str | None:
        """Return the device node by its minor number, which is not the index."""
        try:
            with self._translated(uuid):
                minor = self._nvml.nvmlDeviceGetMinorNumber(self._handle(uuid))
        except DriverError:
            return None
        return f"/dev/nvidia{minor}"

    def _gpu(self, index: int, skip: Collection[str]) -> Gpu | None:
        """Return the GPU at ``index``, or ``None`` if it is too broken to say who it is."""
        nvml = self._nvml
        try:
            with self._translated():
                # By index, not by UUID: a search for a UUID touches other GPUs on its way.
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(nvml.nvmlDeviceGetUUID(handle))
                name = self._name(handle)
                pci_bus_id = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
        except (GpuLostError, ReadError):
            return None
        self._handles[uuid] = handle
        try:
            total = 0 if uuid in skip else self.memory(uuid).total
        except (GpuLostError, ReadError):
            total = 0
        return Gpu(uuid=uuid, index=index, name=name, pci_bus_id=pci_bus_id, memory_total=total)

    def _name(self, handle: Any) -> str:
        """Return the model's name, which the binding cannot decode on a board with a broken one."""
        try:
            return _text(self._nvml.nvmlDeviceGetName(handle))
        except UnicodeDecodeError:
            return "unreadable name"

    def _handle(self, uuid: str) -> Any:
        """Return NVML's handle, looked up anew after an error: a reset GPU gets another."""
        handle = self._handles.get(uuid)
        if handle is None:
            handle = self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        return handle

    def _list(self, kind: ProcessKind, handle: Any) -> list[tuple[int, int | None]]:
        """Return one list of processes; a driver without MPS or graphics has none of those."""
        nvml = self._nvml
        names = _LISTS[kind]
        for name in names:
            try:
                entries = getattr(nvml, name)(handle)
            except nvml.NVMLError as error:
                optional = kind is not ProcessKind.COMPUTE
                if error.value == _FUNCTION_NOT_FOUND and (optional or name != names[-1]):
                    continue
                if error.value == _NOT_SUPPORTED and optional:
                    return []
                raise
            return [(int(entry.pid), _size(entry.usedGpuMemory)) for entry in entries]
        return []

    def _supported(self, ask: Callable[[Any], Any], handle: Any) -> Any:
        """Return what ``ask`` says of ``handle``, or ``None`` where there is no such thing."""
        try:
            return ask(handle)
        except self._nvml.NVMLError as error:
            if error.value in {_NOT_SUPPORTED, _FUNCTION_NOT_FOUND}:
                return None
            raise

    @contextlib.contextmanager
    def _translated(self, uuid: str | None = None) -> Iterator[None]:
        """Turn what pynvml raises into one of the driver's errors, and forget the handle."""
        try:
            yield
        except (self._nvml.NVMLError, UnicodeDecodeError) as error:
            if uuid is not None:
                self._handles.pop(uuid, None)
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> DriverError:
        """Return the driver's error for one of pynvml's."""
        number = getattr(error, "value", 0)
        code = self._names().get(number, f"nvml_{number}") if number else "undecodable"
        if number in _GONE:
            return DriverGoneError(code, _GONE[number])
        if number in _LOST:
            return GpuLostError(code, _LOST[number])
        return ReadError(code, _REMEDIES.get(number, f"NVML says: {error}"))

    def _names(self) -> dict[int, str]:
        """Return NVML's own names of its error codes, in lower case."""
        prefix = "NVML_ERROR_"
        return {
            number: name.removeprefix(prefix).lower()
            for name, number in vars(self._nvml).items()
            if name.startswith(prefix)
        }


def _text(value: str | bytes) -> str:
    """Return ``value`` as text; older bindings give bytes, and broken boards any bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _size(value: int | None) -> int | None:
    """Return a process's memory, or ``None`` where NVML says that it does not know."""
    return None if value is None else int(value)
