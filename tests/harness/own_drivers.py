"""Drivers of packages for tests: good ones, and some that fail in every way that one may."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from setproctitle import getproctitle

from sentinel.drivers import (
    BasicDriver,
    Driver,
    DriverError,
    Gpu,
    GpuLostError,
    GpuProcess,
    Memory,
    ReadError,
    Telemetry,
    TooManyProcessesError,
    Xid,
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


class Empty(Good):
    """Lists no GPU."""

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        return ()


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


class Unprintable:
    """An object whose description raises an error."""

    def __repr__(self) -> str:
        raise RuntimeError


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
    "unprintable": Unprintable(),
    "nested": functools.reduce(lambda inner, _: [inner], range(100_000), list[Any]()),
    "digits": 10**5000,
    "huge": Memory(total=10**400, used=0, free=10**400),
    "exabytes": Memory(total=2**60, used=0, free=2**60),
    "huge process": (GpuProcess(pid=7, memory=10**400),),
    "many": tuple(GpuProcess(pid=pid) for pid in range(1, 10_002)),
    "terminal": "\x1b[31m",
    "million": "x" * 10**6,
    "nul": "/dev/\0",
    "reasons": Telemetry(at=0.0, reasons=("x" * 1000,) * 1000),
    "hot": Telemetry(at=0.0, temperature_c=10**400),
    "percents": Telemetry(at=0.0, utilization=37.0),
    "surrogate": Telemetry(at=0.0, reasons=("\ud800",)),
}


class NamelessError(ReadError):
    """An error of a driver without the parts that all others have."""

    def __init__(self) -> None:
        pass


class SilentError(Exception):
    """An error whose description raises another."""

    def __str__(self) -> str:
        raise RuntimeError


#: What a call may raise.
ERRORS: dict[str, BaseException] = {
    "exits": SystemExit(3),
    "interrupts": KeyboardInterrupt(),
    "silent": SilentError(),
    "bare": DriverError("bare", "no kind of error"),
    "nameless": NamelessError(),
    "number": ReadError(5, None),  # type: ignore[arg-type]
    "long": GpuLostError("x" * 10**6, "no\n\x1b[31m\ud800" * 10**6),
    "too many": TooManyProcessesError("x"),  # type: ignore[arg-type]
    "far too many": TooManyProcessesError(10**30),
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


#: How the list of GPUs may change.
LISTS: dict[str, Callable[[tuple[Gpu, ...]], tuple[Gpu, ...]]] = {
    "no more": lambda _: (),
    "others": lambda gpus: tuple(replace(gpu, uuid=f"OWN-{os.urandom(8).hex()}") for gpu in gpus),
    "swapped": lambda gpus: tuple(replace(gpu, index=1 - gpu.index) for gpu in reversed(gpus)),
    "first twice": lambda gpus: (gpus[0], *gpus),
}


class Nonsense(SimulatedDriver):
    """Reads simulated GPUs; calls do what the file ``nonsense`` says.

    Each line has a call, the index of the GPU for which it does so or ``-`` for a call without one,
    and a result, an error, a list or how it ends the process.

    Args:
        folder: The folder of the GPUs and of the file.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(Registry(Path(folder)))
        self._file = Path(folder) / "nonsense"

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name not in vars(Driver):
            return found

        def call(*arguments: Any) -> Any:
            what = self._planned(name, arguments)
            if what in ERRORS:
                raise ERRORS[what]
            if what.startswith("ends "):
                os._exit(int(what.removeprefix("ends ")))
            if what in RESULTS:
                return RESULTS[what]
            result = found(*arguments)
            return LISTS[what](result) if what in LISTS else result

        return call

    def _planned(self, call: str, arguments: tuple[Any, ...]) -> str:
        """Look up what a call does; empty if it is the usual."""
        if not self._file.exists():
            return ""
        indices = {gpu.uuid: str(gpu.index) for gpu in self._registry.gpus()}
        gpu = indices.get(arguments[0], "-") if call not in {"gpus", "open", "version"} else "-"
        start = f"{call} {gpu} "
        lines = self._file.read_text().splitlines()
        return next((line.removeprefix(start) for line in lines if line.startswith(start)), "")


class Xids(Good):
    """Has a source of XIDs that returns or raises something wrong at once.

    Args:
        what: A result of ``XIDS`` or the name of an error.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def xids(self) -> Any:
        return RESULTS.get(self._what, self)

    def add(self, uuid: str) -> bool:
        return uuid == UUIDS[0]

    def wait(self, timeout_s: float) -> Any:
        if self._what in ERRORS:
            raise ERRORS[self._what]
        return XIDS[self._what]

    def close(self) -> None:
        raise KeyError


XIDS: dict[str, Any] = {
    "at once": None,
    "of another": Xid(uuid=UUIDS[1], number=79),
    "a text": "79",
    "negative number": Xid(uuid=UUIDS[0], number=-1),
    "digits of a number": Xid(uuid=UUIDS[0], number=10**400),
}
