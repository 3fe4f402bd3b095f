"""The real driver, through NVML. It translates all errors of pynvml."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

from sentinel.host.process_setup import without_ctypes_util
from sentinel.probe.driver import (
    DriverError,
    DriverGoneError,
    GpuLostError,
    ReadError,
    TooManyProcessesError,
    merge_lists,
)
from sentinel.probe.nvml_calls import (
    ABSENT,
    GPU_IS_GONE,
    NO_SUCH_GPU,
    as_text,
    translated,
    translating,
)
from sentinel.probe.nvml_telemetry import PowerMeter, TelemetryReader
from sentinel.probe.xids import NvmlXids
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind, Telemetry

#: How long a GPU may take to identify itself if a call has hung before; the limit of every call.
_CALL_TIMEOUT_S = 3.0

#: Longer lists are not read. Each entry takes some microseconds.
_MAX_LISTED = 1024

_NEW_MEMORY = "nvmlDeviceGetMemoryInfo_v2"

#: The functions for each list, those of the newest drivers first. pynvml itself only tries the
#: newest, which drivers before 510.39 lack.
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
    """NVML, through nvidia-ml-py."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        # The functions that each GPU does not support: querying MIG costs more than all else
        # together. Discarded with the handle, since a GPU may come back as another one.
        self._absent: dict[str, set[str]] = {}
        self._memory_version: int | None = None
        #: By UUID: the time of the newest sample that :meth:`computing` has returned.
        self._sampled: dict[str, int] = {}
        self._meter = PowerMeter(self._supported)
        self._telemetry = TelemetryReader(self._query_optional)

    def open(self) -> None:
        """Load libnvidia-ml and initialize it; takes seconds without persistence mode.

        Raises:
            DriverGoneError: There is no driver, or it cannot be initialized.
        """
        try:
            with without_ctypes_util():
                import pynvml
        except ImportError as error:
            reason = "nvidia-ml-py is not installed, so the NVIDIA driver cannot be queried"
            raise DriverGoneError("no_binding", reason) from error
        self._nvml = pynvml
        self._memory_version = pynvml.nvmlMemory_v2
        try:
            with self._translated():
                pynvml.nvmlInit()
        except ReadError as error:
            raise DriverGoneError(error.code, f"NVML cannot start: {error.reason}") from error

    def version(self) -> str:
        """Return the driver's version, for display only."""
        try:
            with self._translated():
                return as_text(self._nvml.nvmlSystemGetDriverVersion())
        except ReadError:
            return "unknown"

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        """List the GPUs in NVML's order, without lost ones.

        If a call has hung before, a GPU that does not identify itself within 3 s is left out, too.
        """
        with self._translated():
            count = self._nvml.nvmlDeviceGetCount()
        if skip:
            return self._responding_gpus(count, skip)
        found = (self._identify(index, skip) for index in range(count))
        return tuple(gpu for gpu in found if gpu is not None)

    def memory(self, uuid: str) -> Memory:
        """Read the memory of one GPU, without the driver's own if the driver separates it.

        Drivers before 510 have only the older call, which counts their own memory as used.
        """
        version = None if _NEW_MEMORY in self._absent.get(uuid, ()) else self._memory_version
        # No context manager: at hundreds of calls a second, it would dominate the probe's load.
        try:
            now = self._nvml.nvmlDeviceGetMemoryInfo(self._handle(uuid), version=version)
        except Exception as error:
            if version is not None and getattr(error, "value", 0) in ABSENT:
                self._absent.setdefault(uuid, set()).add(_NEW_MEMORY)
                return self.memory(uuid)
            self._forget(uuid)
            if isinstance(error, DriverError):
                raise
            raise translated(error, self._nvml) from error
        memory = Memory(total=now.total, used=now.used, free=now.free)
        if not memory.plausible:
            self._forget(uuid)
            amounts = f"{now.used} used and {now.free} free of {now.total} bytes"
            raise ReadError("nonsense", f"NVML's figures for its memory make no sense: {amounts}")
        return memory

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """List every process on one GPU, from NVML's three lists."""
        with self._translated(uuid):
            return merge_lists({kind: self._list(kind, uuid) for kind in _LISTS})

    def exclusive(self, uuid: str) -> bool:
        """Check whether the compute mode allows at most one process."""
        with self._translated(uuid):
            mode = self._supported("nvmlDeviceGetComputeMode", uuid)
            return mode is not None and mode != self._nvml.NVML_COMPUTEMODE_DEFAULT

    def mig(self, uuid: str) -> bool:
        """Check whether MIG is on; False on GPUs and drivers without it."""
        with self._translated(uuid):
            modes = self._supported("nvmlDeviceGetMigMode", uuid)
            return modes is not None and modes[0] != 0

    def display(self, uuid: str) -> bool:
        """Check whether a display is active; False on GPUs without one."""
        with self._translated(uuid):
            return bool(self._supported("nvmlDeviceGetDisplayActive", uuid))

    def utilization(self, uuid: str) -> float | None:
        """Return the share of the last sampling period, up to a second, in which a kernel ran."""
        with self._translated(uuid):
            rates = self._supported("nvmlDeviceGetUtilizationRates", uuid)
            return None if rates is None else rates.gpu / 100

    # A failing sensor must not trigger a new lookup of the GPU, which touches other GPUs.

    def temperature(self, uuid: str) -> int | None:
        """Read the temperature of the chip in degrees Celsius."""
        with self._translated():
            where = self._nvml.NVML_TEMPERATURE_GPU
            degrees: int | None = self._supported("nvmlDeviceGetTemperature", uuid, where)
            return degrees

    def power(self, uuid: str) -> float | None:
        """Return the recent mean power in watts; see PowerMeter."""
        with self._translated():
            return self._meter.power(self._nvml, uuid)

    def sm_clock(self, uuid: str) -> int | None:
        """Read the present clock of the multiprocessors in MHz."""
        with self._translated():
            which = self._nvml.NVML_CLOCK_SM
            megahertz: int | None = self._supported("nvmlDeviceGetClockInfo", uuid, which)
            return megahertz

    def telemetry(self, uuid: str) -> Telemetry:
        """Read all telemetry of one GPU; a failed call yields None and is no fault."""
        with self._translated():
            return self._telemetry.read(self._nvml, uuid)

    def computing(self, uuid: str) -> tuple[int, ...] | None:
        """List the host PIDs of processes that used the GPU since the last call.

        The driver samples the processes, and reports PIDs of the host in every namespace.
        """
        nvml, since = self._nvml, self._sampled.get(uuid)
        with self._translated(uuid):
            handle = self._handle(uuid)
            try:
                found = nvml.nvmlDeviceGetProcessUtilization(handle, since or 0)
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_NOT_FOUND:
                    return None
                found = []  # no process used it
            self._sampled[uuid] = max([since or 0, *(sample.timeStamp for sample in found)])
            used = (s.pid for s in found if s.timeStamp > (since or 0) and (s.smUtil or s.memUtil))
            return None if since is None else tuple(sorted({int(pid) for pid in used}))

    def node(self, uuid: str) -> str | None:
        """Return the device node by its minor number, which is not the index."""
        try:
            with self._translated(uuid):
                minor = self._nvml.nvmlDeviceGetMinorNumber(self._handle(uuid))
        except DriverError:
            return None
        return f"/dev/nvidia{minor}"

    def xids(self) -> NvmlXids:
        """Create a set of events."""
        with self._translated():
            return NvmlXids(self._nvml, self._handle)

    def _responding_gpus(self, count: int, skip: Collection[str]) -> tuple[Gpu, ...]:
        """Identify the GPUs in a thread, and continue in another thread after one that hangs."""
        found: list[Gpu] = []
        answers: queue.SimpleQueue[Gpu | DriverError | None] | None = None
        for index in range(count):
            if answers is None:
                answers = queue.SimpleQueue()
                arguments = (range(index, count), skip, answers)
                threading.Thread(target=self._identify_all, args=arguments, daemon=True).start()
            try:
                answer = answers.get(timeout=_CALL_TIMEOUT_S)
            except queue.Empty:
                answers = None
                continue
            if isinstance(answer, DriverError):
                raise answer
            found += [answer] if answer is not None else []
        return tuple(found)

    def _identify_all(
        self,
        indices: range,
        skip: Collection[str],
        answers: queue.SimpleQueue[Gpu | DriverError | None],
    ) -> None:
        """Put the identity of each GPU into ``answers``."""
        try:
            for index in indices:
                answers.put(self._identify(index, skip))
        except DriverError as error:
            answers.put(error)

    def _identify(self, index: int, skip: Collection[str]) -> Gpu | None:
        """Identify the GPU at ``index``; return None if it is too broken for that."""
        nvml = self._nvml
        try:
            with self._translated():
                # By index, not by UUID: a search by UUID touches other GPUs on its way.
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = as_text(nvml.nvmlDeviceGetUUID(handle))
        except (GpuLostError, ReadError):
            return None
        self._handles[uuid] = handle
        if uuid in skip:
            return Gpu(uuid=uuid, index=index, name="", pci_bus_id="", memory_total=0)
        name = self._text(lambda: nvml.nvmlDeviceGetName(handle)) or "unreadable name"
        bus = self._text(lambda: nvml.nvmlDeviceGetPciInfo(handle).busId) or "unreadable bus"
        serial = self._text(lambda: nvml.nvmlDeviceGetSerial(handle)) or None
        try:
            total = self.memory(uuid).total
        except (GpuLostError, ReadError):
            total = 0
        return Gpu(
            uuid=uuid, index=index, name=name, pci_bus_id=bus, memory_total=total, serial=serial
        )

    def _text(self, read: Callable[[], str | bytes]) -> str:
        """Read a text, or return "": the binding cannot decode the name of some broken boards."""
        try:
            with self._translated():
                return as_text(read())
        except (GpuLostError, ReadError):
            return ""

    def _handle(self, uuid: str) -> Any:
        """Return NVML's handle; it is looked up again after an error, as a reset changes it."""
        handle = self._handles.get(uuid)
        if handle is None:
            handle = self._handles[uuid] = self._look_up(uuid)
        return handle

    def _look_up(self, uuid: str) -> Any:
        """Look up the handle of a GPU, independent of its present index.

        The search by UUID has missed existing GPUs (NVIDIA/go-nvml#41), so the UUIDs of
        all GPUs are read before one counts as gone.
        """
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetHandleByUUID(uuid)
        except nvml.NVMLError as error:
            if error.value not in NO_SUCH_GPU:
                raise
            for index in range(nvml.nvmlDeviceGetCount()):
                # One that cannot return its UUID cannot be identified.
                with contextlib.suppress(nvml.NVMLError, UnicodeDecodeError):
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    if as_text(nvml.nvmlDeviceGetUUID(handle)) == uuid:
                        return handle
            raise GpuLostError("not_found", GPU_IS_GONE) from error

    def _forget(self, uuid: str) -> None:
        """Discard the handle and the unsupported functions of this GPU."""
        self._handles.pop(uuid, None)
        self._absent.pop(uuid, None)

    def _list(self, kind: ProcessKind, uuid: str) -> list[tuple[int, int | None]]:
        """Read one list of processes; a driver without MPS or graphics has empty ones.

        Without a compute list, processes are unknown, which is an error.
        """
        handle = self._handle(uuid)
        absent = self._absent.setdefault(uuid, set())
        first = None
        for name in _LISTS[kind]:
            if name in absent:
                continue
            count = self._count(name, handle)
            if count > _MAX_LISTED:
                raise TooManyProcessesError(count)
            try:
                entries = getattr(self._nvml, name)(handle)
            except self._nvml.NVMLError as error:
                if error.value not in ABSENT:
                    raise
                absent.add(name)
                first = first or error
            else:
                return [(int(entry.pid), _size(entry.usedGpuMemory)) for entry in entries]
        if kind is ProcessKind.COMPUTE:
            raise first or self._nvml.NVMLError(min(ABSENT))
        return []

    def _count(self, name: str, handle: Any) -> int:
        """Ask how long a list is; 0 if that is unknown.

        The binding converts each entry while it keeps every other thread from running: a million
        take seconds.
        """
        function = getattr(self._nvml.nvmlLib, name, None)
        count = ctypes.c_uint(0)
        if function is not None:
            function(handle, ctypes.byref(count), None)
        return count.value

    def _query_optional(self, name: str, uuid: str, *arguments: Any) -> Any:
        """Call a function for this GPU; return None if the call fails.

        Raises:
            NVMLError: The GPU, or the driver as a whole, is gone.
        """
        try:
            return self._supported(name, uuid, *arguments)
        except self._nvml.NVMLError as error:
            if not isinstance(translated(error, self._nvml), ReadError):
                raise
            return None

    def _supported(self, name: str, uuid: str, *arguments: Any) -> Any:
        """Call a function for this GPU; return None if it is not supported."""
        handle = self._handle(uuid)
        absent = self._absent.setdefault(uuid, set())
        question = f"{name}{arguments or ''}"
        if question in absent:
            return None
        function = getattr(self._nvml, name, None)
        try:
            if function is not None:  # the binding is older than the function
                return function(handle, *arguments)
        except self._nvml.NVMLError as error:
            if error.value not in ABSENT:
                raise
        absent.add(question)
        return None

    @contextlib.contextmanager
    def _translated(self, uuid: str | None = None) -> Iterator[None]:
        """Translate any exception into a driver error, and discard the handle."""
        try:
            with translating(self._nvml):
                yield
        except DriverError:
            if uuid is not None:
                self._forget(uuid)
            raise


def _size(value: int | None) -> int | None:
    """Return a process's memory, or None if NVML does not know it."""
    return None if value is None else int(value)
