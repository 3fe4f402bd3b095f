"""A torch without tensors, for stressors that only hold simulated memory; see watched_daemon.py.

An import of the real one takes a core 1.5 s in each stressor. The other built-in workloads can be
imported with this one, as a standby stressor does, but not run.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__version__ = "0+stand-in"


class Tensor(bytearray):
    """Bytes whose content is not used."""

    _cdata = 0

    def untyped_storage(self) -> Tensor:
        """Return the bytes."""
        return self


class Placeholder:
    """Stands for anything that is named or drawn before a GPU is known."""

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder()

    def __call__(self, *_: object, **__: object) -> Placeholder:
        """Do nothing."""
        return self

    __getitem__ = __and__ = __call__


class TorchDispatchMode:
    """Sees no operation: there are none."""

    def __enter__(self) -> None:
        """Do nothing."""


#: A package without files, so that these parts of torch can be imported.
__path__: list[str] = []
distributed = ModuleType("torch.distributed")
utils = ModuleType("torch.utils")
for _part in (distributed, utils):
    sys.modules[_part.__name__] = _part
sys.modules["torch.utils._python_dispatch"] = sys.modules[__name__]


class device:  # noqa: N801 - as torch calls it
    """A device by its name."""

    def __init__(self, name: str) -> None:
        self.type = name


class OutOfMemoryError(RuntimeError):
    """The error of torch.cuda, which is never raised here."""


class cuda:  # noqa: N801 - as torch calls it
    """The parts of torch.cuda that are used without CUDA."""

    Event = Placeholder
    Stream = Placeholder
    init = Placeholder()
    OutOfMemoryError = OutOfMemoryError

    @staticmethod
    def is_initialized() -> bool:
        """Return False: there is no CUDA."""
        return False


def empty(
    size: int | tuple[int, ...], *, dtype: object, device: str | None = None
) -> Tensor | Placeholder:
    """Allocate bytes of the host; only inputs of products have several dimensions."""
    del dtype, device
    return Tensor(size) if isinstance(size, int) else Placeholder()


def set_num_threads(count: int) -> None:
    """Do nothing: there is one thread."""
    del count


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Placeholder()
