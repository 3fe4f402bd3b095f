"""The real driver, through NVML. Nothing else imports pynvml, and all its errors end here."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

from sentinel.probe.driver import DriverError, DriverGoneError, GpuLostError, ReadError, merge_lists
from sentinel.probe.import_stubs import without_ctypes_util
from sentinel.probe.nvml.errors import ABSENT, GPU_IS_GONE, NO_SUCH_GPU, error_of
from sentinel.probe.nvml.power import Meter
from sentinel.probe.nvml.telemetry import TelemetryReader
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind
from sentinel.protocol.telemetry import Telemetry

#: How long a GPU may take to say who it is where another call hung, in seconds; as for all calls.
_PATIENCE = 3.0

_NEW_MEMORY = "nvmlDeviceGetMemoryInfo_v2"

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
        # What each GPU was found not to have, by the names of functions: to ask for MIG costs more
        # than all else together. Forgotten with the handle, since a GPU may come back as another.
        self._absent: dict[str, set[str]] = {}
        self._memory_version: int | None = None
        #: When the newest sample was taken that :meth:`computing` has seen, by UUID.
        self._sampled: dict[str, int] = {}
        self._meter = Meter(self._supported)
        self._teller = TelemetryReader(self._query_optional)

    def open(self) -> None:
        """Load libnvidia-ml and initialise it; a driver without persistence takes seconds.

        Raises:
            DriverGoneError: There is no driver, or it cannot be talked to.
        """
        try:
            with without_ctypes_util():
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
        """Return the driver's version, which only people want to know."""
        try:
            with self._translated():
                return as_text(self._nvml.nvmlSystemGetDriverVersion())
        except ReadError:
            return "unknown"

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        """Return the GPUs in NVML's order, but for those that are lost.

        Where a call hung before, one that does not say who it is within 3 s is left out as well.
        """
        with self._translated():
            count = self._nvml.nvmlDeviceGetCount()
        if skip:
            return self._gpus_that_answer(count, skip)
        found = (self._gpu(index, skip) for index in range(count))
        return tuple(gpu for gpu in found if gpu is not None)

    def memory(self, uuid: str) -> Memory:
        """Return the memory of one GPU, without the driver's own where the driver tells it apart.

        Drivers before 510 have only the older call, which counts their own memory as used.
        """
        version = None if _NEW_MEMORY in self._absent.get(uuid, ()) else self._memory_version
        # No context manager: hundreds of times a second, this is most of what the probe does.
        try:
            now = self._nvml.nvmlDeviceGetMemoryInfo(self._handle(uuid), version=version)
        except Exception as error:
            if version is not None and getattr(error, "value", 0) in ABSENT:
                self._absent.setdefault(uuid, set()).add(_NEW_MEMORY)
                return self.memory(uuid)
            self._forget(uuid)
            if isinstance(error, DriverError):
                raise
            raise self._translate(error) from error
        if max(now.used, now.free) > now.total or not now.total:
            self._forget(uuid)
            amounts = f"{now.used} used and {now.free} free of {now.total} bytes"
            raise ReadError("nonsense", f"NVML's figures for its memory make no sense: {amounts}")
        return Memory(total=now.total, used=now.used, free=now.free)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Return everyone on one GPU, from all of NVML's three lists."""
        with self._translated(uuid):
            return merge_lists({kind: self._list(kind, uuid) for kind in _LISTS})

    def exclusive(self, uuid: str) -> bool:
        """Return whether the compute mode admits one process only, or none."""
        with self._translated(uuid):
            mode = self._supported("nvmlDeviceGetComputeMode", uuid)
            return mode is not None and mode != self._nvml.NVML_COMPUTEMODE_DEFAULT

    def mig(self, uuid: str) -> bool:
        """Return whether MIG is on; ``False`` on GPUs and drivers without it."""
        with self._translated(uuid):
            modes = self._supported("nvmlDeviceGetMigMode", uuid)
            return modes is not None and modes[0] != 0

    def display(self, uuid: str) -> bool:
        """Return whether a display is active; ``False`` on GPUs without."""
        with self._translated(uuid):
            return bool(self._supported("nvmlDeviceGetDisplayActive", uuid))

    def utilization(self, uuid: str) -> float | None:
        """Return the share of the last sampling period, up to a second, in which a kernel ran."""
        with self._translated(uuid):
            rates = self._supported("nvmlDeviceGetUtilizationRates", uuid)
            return None if rates is None else rates.gpu / 100

    # A sick sensor is no reason to look for the GPU anew, as a lost one is: that touches others.

    def temperature(self, uuid: str) -> int | None:
        """Return the temperature of the chip in degrees Celsius."""
        with self._translated():
            where = self._nvml.NVML_TEMPERATURE_GPU
            degrees: int | None = self._supported("nvmlDeviceGetTemperature", uuid, where)
            return degrees

    def power(self, uuid: str) -> float | None:
        """Return the mean power of late in watts; see :class:`~sentinel.probe.nvml.power.Meter`."""
        with self._translated():
            return self._meter.power(self._nvml, uuid)

    def sm_clock(self, uuid: str) -> int | None:
        """Return the clock of the multiprocessors in MHz, as it is now."""
        with self._translated():
            which = self._nvml.NVML_CLOCK_SM
            megahertz: int | None = self._supported("nvmlDeviceGetClockInfo", uuid, which)
            return megahertz

    def telemetry(self, uuid: str) -> Telemetry:
        """Return all that one GPU tells of itself; what fails is not known, and no fault."""
        with self._translated():
            return self._teller.tell(self._nvml, uuid)

    def computing(self, uuid: str) -> tuple[int, ...] | None:
        """Return the host's PIDs of those who used the GPU since the last call.

        The driver samples who uses it, and names them to everybody by PIDs of the host.
        """
        nvml, since = self._nvml, self._sampled.get(uuid)
        with self._translated(uuid):
            handle = self._handle(uuid)
            try:
                found = nvml.nvmlDeviceGetProcessUtilization(handle, since or 0)
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_NOT_FOUND:
                    return None
                found = []  # nobody used it
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

    def _gpus_that_answer(self, count: int, skip: Collection[str]) -> tuple[Gpu, ...]:
        """Ask one GPU after the other in a thread, and go on in another where that hangs."""
        found: list[Gpu] = []
        answers: queue.SimpleQueue[Gpu | DriverError | None] | None = None
        for index in range(count):
            if answers is None:
                answers = queue.SimpleQueue()
                asking = (range(index, count), skip, answers)
                threading.Thread(target=self._ask_who, args=asking, daemon=True).start()
            try:
                answer = answers.get(timeout=_PATIENCE)
            except queue.Empty:
                answers = None
                continue
            if isinstance(answer, DriverError):
                raise answer
            found += [answer] if answer is not None else []
        return tuple(found)

    def _ask_who(
        self,
        indices: range,
        skip: Collection[str],
        answers: queue.SimpleQueue[Gpu | DriverError | None],
    ) -> None:
        """Put what each GPU says of itself into ``answers``."""
        try:
            for index in indices:
                answers.put(self._gpu(index, skip))
        except DriverError as error:
            answers.put(error)

    def _gpu(self, index: int, skip: Collection[str]) -> Gpu | None:
        """Return the GPU at ``index``, or ``None`` if it is too broken to say who it is."""
        nvml = self._nvml
        try:
            with self._translated():
                # By index, not by UUID: a search for a UUID touches other GPUs on its way.
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = as_text(nvml.nvmlDeviceGetUUID(handle))
        except (GpuLostError, ReadError):
            return None
        self._handles[uuid] = handle
        if uuid in skip:
            return Gpu(uuid=uuid, index=index, name="", pci_bus_id="", memory_total=0)
        name = self._for_people("name", lambda: nvml.nvmlDeviceGetName(handle))
        pci_bus_id = self._for_people("bus", lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
        try:
            total = self.memory(uuid).total
        except (GpuLostError, ReadError):
            total = 0
        return Gpu(uuid=uuid, index=index, name=name, pci_bus_id=pci_bus_id, memory_total=total)

    def _for_people(self, what: str, ask: Callable[[], str | bytes]) -> str:
        """Return a text that only people read: no GPU is left out because of that.

        The binding cannot decode the name on a board with a broken one.
        """
        try:
            with self._translated():
                return as_text(ask())
        except (GpuLostError, ReadError):
            return f"unreadable {what}"

    def _handle(self, uuid: str) -> Any:
        """Return NVML's handle, looked up anew after an error: a reset GPU gets another."""
        handle = self._handles.get(uuid)
        if handle is None:
            handle = self._handles[uuid] = self._look_up(uuid)
        return handle

    def _look_up(self, uuid: str) -> Any:
        """Return the handle of a GPU, whatever its index is now.

        The search by UUID was seen to miss GPUs that are there (NVIDIA/go-nvml#41), so before one
        is said to be gone, all that are left are asked who they are.
        """
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetHandleByUUID(uuid)
        except nvml.NVMLError as error:
            if error.value not in NO_SUCH_GPU:
                raise
            for index in range(nvml.nvmlDeviceGetCount()):
                # One that cannot say who it is is not known to be this one.
                with contextlib.suppress(nvml.NVMLError, UnicodeDecodeError):
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    if as_text(nvml.nvmlDeviceGetUUID(handle)) == uuid:
                        return handle
            raise GpuLostError("not_found", GPU_IS_GONE) from error

    def _forget(self, uuid: str) -> None:
        """Look everything of this GPU up anew at the next call."""
        self._handles.pop(uuid, None)
        self._absent.pop(uuid, None)

    def _list(self, kind: ProcessKind, uuid: str) -> list[tuple[int, int | None]]:
        """Return one list of processes; a driver without MPS or graphics has none of those.

        Without a compute list nobody could say who is there, and that is an error.
        """
        handle = self._handle(uuid)
        absent = self._absent.setdefault(uuid, set())
        first = None
        for name in _LISTS[kind]:
            if name in absent:
                continue
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

    def _query_optional(self, name: str, uuid: str, *arguments: Any) -> Any:
        """Return what a function says of this GPU, or ``None`` where it does not.

        Raises:
            NVMLError: The GPU, or the driver as a whole, is gone.
        """
        try:
            return self._supported(name, uuid, *arguments)
        except self._nvml.NVMLError as error:
            if not isinstance(self._translate(error), ReadError):
                raise
            return None

    def _supported(self, name: str, uuid: str, *arguments: Any) -> Any:
        """Return what a function says of this GPU, or ``None`` where there is no such thing."""
        handle = self._handle(uuid)
        absent = self._absent.setdefault(uuid, set())
        question = f"{name}{arguments or ''}"
        if question in absent:
            return None
        ask = getattr(self._nvml, name, None)
        try:
            if ask is not None:  # a binding older than the function has none
                return ask(handle, *arguments)
        except self._nvml.NVMLError as error:
            if error.value not in ABSENT:
                raise
        absent.add(question)
        return None

    @contextlib.contextmanager
    def _translated(self, uuid: str | None = None) -> Iterator[None]:
        """Turn whatever is raised into one of the driver's errors, and forget the handle."""
        try:
            yield
        except Exception as error:
            if uuid is not None:
                self._forget(uuid)
            if isinstance(error, DriverError):
                raise
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> DriverError:
        """Return the driver's error for whatever pynvml raised.

        Garbage from one GPU makes the binding raise anything, such as a MemoryError over a list of
        billions; it must not end the probe, which reads the others.
        """
        if not isinstance(error, self._nvml.NVMLError):
            code = "undecodable" if isinstance(error, UnicodeDecodeError) else "garbage"
            return ReadError(code, f"NVML's answer cannot be understood: {error!r}")
        number = error.value
        code = self._names().get(number, f"nvml_{number}")
        return error_of(number, code, error)

    def _names(self) -> dict[int, str]:
        """Return NVML's own names of its error codes, in lower case."""
        prefix = "NVML_ERROR_"
        return {
            number: name.removeprefix(prefix).lower()
            for name, number in vars(self._nvml).items()
            if name.startswith(prefix)
        }


def as_text(value: str | bytes) -> str:
    """Return ``value`` as text; older bindings give bytes, and broken boards any bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _size(value: int | None) -> int | None:
    """Return a process's memory, or ``None`` where NVML says that it does not know."""
    return None if value is None else int(value)
