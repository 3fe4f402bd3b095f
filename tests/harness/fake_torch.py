"""What ``hold`` needs of torch on a simulated GPU, for a fraction of its time.

To import torch takes a core one and a half seconds, in each stressor anew, which is most of what
the tests of whole sentinels cost. Where a stressor is scenery, and nothing is computed, this takes
torch's place: the fixture ``fake_torch`` lets stressors find it under that name. What a stressor
is with the real one, ``test_stressor_*.py`` and ``test_handover.py`` show.
"""

from __future__ import annotations

from typing import Any

__version__ = "0+thin"

uint8 = "uint8"


class Tensor(bytearray):
    """Bytes that nobody looks at."""


def empty(size: int, *, dtype: str) -> Tensor:
    return Tensor(size)


def set_num_threads(count: int) -> None:
    """Do nothing: there is one."""


class device:  # noqa: N801 - as torch calls it
    def __init__(self, name: str) -> None:
        self.type = name


class _OutOfMemoryError(RuntimeError):
    pass


class cuda:  # noqa: N801 - as torch calls it
    """What is named of CUDA where there is none."""

    Event: Any = None
    init: Any = None
    OutOfMemoryError = _OutOfMemoryError


def __getattr__(name: str) -> Any:
    message = f"the tests' thin torch has no {name}: leave out the fixture fake_torch"
    raise AttributeError(message)
