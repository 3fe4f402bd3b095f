"""Watch the memory of the own GPU, and yield at the first growth without asking anyone.

The probe and the supervisor watch it, too. This thread works while either of them is dead, hangs
or is stopped. While both work they read in alternation, so both together cost as much as one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sentinel.host.process_setup import without_ctypes_util
from sentinel.host.simulation import Registry
from sentinel.protocol.shared_memory import FORKED, WATCHED, Stamps
from sentinel.protocol.stressor import MemoryContention, MemoryLimit, StressorSpec
from sentinel.stressor.lease import LeaseKeeper

#: How long a failed read of the memory is not repeated, in seconds. Until it succeeds, the
#: supervisor knows by the stamp that this stressor does not watch.
_RETRY_S = 0.25
#: The interval in a start, from the first chunk on: for the half second that this lasts.
_START_INTERVAL_S = 0.005


def load_nvml() -> None:
    """Import the binding of NVML ahead, which takes 0.1 s; it opens nothing."""
    with contextlib.suppress(ImportError), without_ctypes_util():
        import pynvml  # noqa: F401


def start(spec: StressorSpec, lease_keeper: LeaseKeeper, stamps: Stamps) -> None:
    """Watch in a thread for the life of this process; without NVML, never stamp anything."""
    watch = SelfWatch(spec, lease_keeper, stamps)
    threading.Thread(target=watch.run, name="self-watch", daemon=True).start()


class SelfWatch:
    """Compares the used memory of a GPU with the supervisor's limit, and yields beyond it.

    Args:
        spec: The GPU, the interval and how to yield.
        lease_keeper: It has the limit, and sends the message about the newcomer.
        stamps: The stamps of this stressor.
    """

    def __init__(self, spec: StressorSpec, lease_keeper: LeaseKeeper, stamps: Stamps) -> None:
        self._spec = spec
        self._lease_keeper = lease_keeper
        self._stamps = stamps

    def run(self) -> None:
        """Read the memory again and again, until it has shown a newcomer."""
        read: Callable[[], int] | None = None
        while True:
            try:
                if read is None:
                    read = open_reader(self._spec)
                if self._yields(read):
                    return
            except Exception:  # noqa: BLE001 - NVML, its binding and a broken board raise anything
                read = None
            if read is None:
                time.sleep(_RETRY_S)
            else:
                self._pause()

    def _pause(self) -> None:
        """Wait until the next look.

        In alternation with the probe, it is at the odd multiples of the interval. If the probe
        ends, it is at once: the next turn of the probe is missed.
        """
        interval, now = self._spec.watch_interval, time.monotonic()
        if self._lease_keeper.start_limit is not None and not self._lease_keeper.limited:
            time.sleep(_START_INTERVAL_S)
        elif now >= self._lease_keeper.shared_until:
            time.sleep(interval)
        else:
            self._lease_keeper.alone.wait(2 * interval - (now + interval) % (2 * interval))

    def _yields(self, read: Callable[[], int]) -> bool:
        """Read the memory once; yield and return True if it shows a newcomer.

        Raises:
            Exception: The memory cannot be read.
        """
        limit = self._limit()
        if limit.used is None:
            return False
        began = time.monotonic()
        used = read()
        # The limit may have been raised meanwhile, for an allocation.
        latest = self._limit()
        if used <= limit.used or latest.used is None or used <= latest.used:
            self._stamps.set(WATCHED, began)
            return False
        now = time.monotonic()
        message = MemoryContention(
            grown=used - latest.used,
            at=began,
            took=now - began,
            killed_at=now if latest.at_once else None,
        )
        if latest.at_once:
            self._lease_keeper.try_send(message)
            # This process leads its session and its group. The supervisor kills what it forked.
            kill = os.kill if self._stamps.get(FORKED) > 0 else os.killpg
            kill(os.getpid(), signal.SIGKILL)
        self._lease_keeper.stop()
        self._lease_keeper.send(message)
        return True

    def _limit(self) -> MemoryLimit:
        """Return the supervisor's limit, or that of the start."""
        limit, own = self._lease_keeper.memory_limit, self._lease_keeper.start_limit
        if own is None or self._lease_keeper.limited:
            return limit
        return MemoryLimit(used=own, at_once=self._spec.yields_at_once)


def open_reader(spec: StressorSpec) -> Callable[[], int]:
    """Return a function that reads the used memory of the GPU in bytes, as the probe does.

    Raises:
        Exception: There is no NVML here, or it does not know the GPU.
    """
    if spec.simulation is not None:
        registry = Registry(Path(spec.simulation))
        return lambda: registry.memory(spec.gpu.uuid).used
    with without_ctypes_util():
        import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(spec.gpu.uuid)

    def read(version: int | None = pynvml.nvmlMemory_v2) -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=version).used)

    absent = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    try:
        read()
    except pynvml.NVMLError as error:
        if error.value not in absent:
            raise
        return lambda: read(None)  # drivers before 510; the probe has the same figures
    return read
