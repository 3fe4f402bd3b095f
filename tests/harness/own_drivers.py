"""Drivers of packages for tests: good ones, and some that fail in every way that one may."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from setproctitle import getproctitle

from sentinel.drivers import (
    BasicDriver,
    Gpu,
    GpuProcess,
    Memory,
    Telemetry,
)
from sentinel.host.simulation import Registry
from sentinel.probe.simulated_driver import SimulatedDriver

GIB = 2**30

if "OWN_DRIVERS_LOG" in os.environ:  # which processes import a driver
    with Path(os.environ["OWN_DRIVERS_LOG"]).open("a") as log:
        log.write(f"{getproctitle()}\n")
UUIDS = ("OWN-0000", "OWN-0001")


class Good(BasicDriver):
    """Two GPUs, of which one is idle and one has a process."""

    def open(self) -> None:
        pass

    def version(self) -> str:
        return "1.2"

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        return tuple(
            Gpu(uuid=uuid, index=index, name="Own", pci_bus_id=f"0:{index}", memory_total=GIB)
            for index, uuid in enumerate(UUIDS)
        )

    def memory(self, uuid: str) -> Memory:
        used = 0 if uuid == UUIDS[0] else GIB // 2
        return Memory(total=GIB, used=used, free=GIB - used)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        return () if uuid == UUIDS[0] else (GpuProcess(pid=os.getppid(), memory=GIB // 2),)


class Returns(Good):
    """Returns something that no GPU has in one call for the first GPU.

    Args:
        call: The call.
        what: The name of the result in ``RESULTS``.
    """

    def __init__(self, call: str, what: str) -> None:
        result = RESULTS[what]

        def answer(uuid: str) -> Any:
            return result if uuid == UUIDS[0] else getattr(Good, call)(self, uuid)

        setattr(self, call, answer)


RESULTS: dict[str, Any] = {
    "none": None,
    "dict": {"total": GIB, "used": 0, "free": GIB},
    "more than all": Memory(total=GIB, used=2 * GIB, free=0),
    "negative": Memory(total=GIB, used=-1, free=GIB),
    "text": Memory(total=GIB, used="0", free=GIB),  # type: ignore[arg-type]
    "no memory": Memory(total=0, used=0, free=0),
    "pids": (1, 2),
    "pid 0": (GpuProcess(pid=0),),
    "twice": (GpuProcess(pid=7), GpuProcess(pid=7)),
    "endless": iter(lambda: GpuProcess(pid=7), None),
    "percent": 37,
    "nan": float("nan"),
    "kelvin": 310,
    "word": "yes",
    "telemetry": Telemetry(at=time.monotonic(), power_w="much"),  # type: ignore[arg-type]
}


class Raises(Good):
    """Raises an error that is no driver's in one call."""

    def __init__(self, call: str) -> None:
        def fail(*_: object) -> NoReturn:
            message = "no such\nregister"
            raise KeyError(message)

        setattr(self, call, fail)


class Hangs(Good):
    """Never returns from a read of memory."""

    def memory(self, uuid: str) -> Memory:
        threading.Event().wait()
        return super().memory(uuid)


class Incomplete:
    """Has one of the calls."""

    def open(self) -> None:
        pass


class TwoOfOneName(Good):
    """Lists two GPUs under one UUID."""

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        first, second = super().gpus(skip)
        return first, Gpu(**{**vars(second), "uuid": first.uuid})


class PathAsName(Good):
    """Has a UUID that would be a path."""

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        first, _ = super().gpus(skip)
        return (Gpu(**{**vars(first), "uuid": "../../etc"}),)


def refuses(**options: str) -> NoReturn:
    """Refuse its options."""
    message = f"no such library: {options}"
    raise OSError(message)


NOT_CALLABLE = 5


class Counting(SimulatedDriver):
    """Reads simulated GPUs, and appends a line with each call and its GPU to a file."""

    def __init__(self, folder: str) -> None:
        super().__init__(Registry(Path(folder)))
        self._calls = (Path(folder) / "calls").open("a", buffering=1)

    def memory(self, uuid: str) -> Memory:
        self._calls.write(f"memory {uuid}\n")
        return super().memory(uuid)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        self._calls.write(f"processes {uuid}\n")
        return super().processes(uuid)
