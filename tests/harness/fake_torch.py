"""A fake torch with the parts that ``hold`` needs on a simulated GPU.

An import of torch takes a core 1.5 s in each stressor, most of the cost of the tests of whole
sentinels. If a test needs no computation, the fixture ``fake_torch`` makes stressors import this
module instead. The tests of the stressor and ``test_handover.py`` use the real one.
"""

from __future__ import annotations

import sys
from typing import Any

__version__ = "0+thin"

uint8 = "uint8"
#: The other dtypes, of which the workloads have tables.
_DTYPES = {
    *("int8", "int16", "int32", "int64"),
    *("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
}


class Tensor(bytearray):
    """Bytes whose content is not used."""

    _cdata = 0

    def untyped_storage(self) -> Tensor:
        return self


def empty(size: int, *, dtype: str, device: str = "cpu") -> Tensor:
    return Tensor(size)


def set_num_threads(count: int) -> None:
    """Do nothing: there is one thread."""


class device:  # noqa: N801 - as torch calls it
    def __init__(self, name: str) -> None:
        self.type = name


class _OutOfMemoryError(RuntimeError):
    pass


class cuda:  # noqa: N801 - as torch calls it
    """The parts of torch.cuda that are used without CUDA."""

    Event: Any = None
    init: Any = None
    OutOfMemoryError = _OutOfMemoryError


class backends:  # noqa: N801 - as torch calls it
    """The switches of products, which no workload of these tests uses."""

    class cuda:  # noqa: N801 - as torch calls it
        matmul = None


class TorchDispatchMode:
    """Sees no operation: there are none."""

    def __enter__(self) -> None:
        pass


sys.modules["torch.utils._python_dispatch"] = sys.modules[__name__]


def __getattr__(name: str) -> Any:
    if name in _DTYPES:
        return name
    message = f"the fake torch of the tests has no {name}: remove the fixture fake_torch"
    raise AttributeError(message)
