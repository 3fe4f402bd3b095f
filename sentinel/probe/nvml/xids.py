"""The XIDs of NVML's event set.

Traps: TIMEOUT is the normal result of a wait, and the binding raises it. Any other error may come
back at once for as long as the set has a GPU that is lost, so the caller builds a new set after it.
An older driver, vGPU and WSL know no events, which is no fault.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from sentinel.probe.driver import DriverError, Xid
from sentinel.probe.nvml.errors import ABSENT, as_text, translated


class NvmlXids:
    """An event set of NVML for critical XIDs.

    Args:
        nvml: The binding.
        handle_of: Looks up NVML's handle of a GPU by its UUID.
    """

    def __init__(self, nvml: Any, handle_of: Callable[[str], Any]) -> None:
        self._nvml = nvml
        self._handle_of = handle_of
        #: By the address of the handle: an event has the handle, and a lost GPU may not return its
        #: UUID any more.
        self._uuids: dict[int | None, str] = {}
        self._set = nvml.nvmlEventSetCreate()

    def add(self, uuid: str) -> bool:
        """Register a GPU for its XIDs; return False if it does not support that.

        Raises:
            DriverError: The GPU could not be registered.
        """
        nvml = self._nvml
        with self._translated():
            try:
                handle = self._handle_of(uuid)
                kind = nvml.nvmlEventTypeXidCriticalError
                if not nvml.nvmlDeviceGetSupportedEventTypes(handle) & kind:
                    return False
                nvml.nvmlDeviceRegisterEvents(handle, kind, self._set)
            except nvml.NVMLError as error:
                if error.value in ABSENT:
                    return False
                raise
            self._uuids[_address(handle)] = uuid
            return True

    def wait(self, timeout_s: float) -> Xid | None:
        """Wait for the next event.

        Raises:
            DriverError: The wait failed; a new set is needed.
        """
        nvml = self._nvml
        with self._translated():
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, round(timeout_s * 1000))
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    return None
                raise
            if event.eventType != nvml.nvmlEventTypeXidCriticalError:
                return None
            # After a reset of the GPU its handle may be another one.
            uuid = self._uuids.get(_address(event.device))
            if uuid is None:
                uuid = as_text(nvml.nvmlDeviceGetUUID(event.device))
            return Xid(uuid=uuid, number=event.eventData)

    def close(self) -> None:
        """Free the set; one that the driver cannot free is forgotten."""
        with contextlib.suppress(DriverError), self._translated():
            self._nvml.nvmlEventSetFree(self._set)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate any exception into a driver error."""
        try:
            yield
        except DriverError:
            raise
        except Exception as error:
            raise translated(error, self._nvml) from error


def _address(handle: Any) -> int | None:
    """Return the address that a handle is."""
    return ctypes.cast(handle, ctypes.c_void_p).value
