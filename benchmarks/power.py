"""Sample the power of one GPU in a thread, and find when it began to work at full power."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.host_gpus import Host

#: The interval of the samples. An H200 updates its instantaneous power about every 100 ms.
_INTERVAL_S = 0.01
#: Full power is this share of the later median, held on average for so long.
_FULL = 0.9
_HELD_S = 0.5


@dataclass(frozen=True)
class Sample:
    """The power at one moment: monotonic seconds, watts."""

    at: float
    watts: float


class PowerMeter:
    """Samples the power of a GPU until it is stopped.

    Args:
        host: The GPUs.
        uuid: The GPU to sample.
    """

    def __init__(self, host: Host, uuid: str) -> None:
        self.samples: list[Sample] = []
        self._host = host
        self._uuid = uuid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            at, watts = time.monotonic(), self._host.power_now(self._uuid)
            if watts is not None:
                self.samples.append(Sample(at, watts))

    def stop(self) -> list[Sample]:
        """Stop and return all samples."""
        self._stopped.set()
        self._thread.join()
        return self.samples


def full_power(samples: Sequence[Sample], later: float) -> tuple[float | None, float]:
    """Find when full power began, and the later median that it is a share of.

    A short peak, such as a trial of the checks, does not count.

    Args:
        samples: The samples, in their order.
        later: The monotonic time from which the later median is taken.

    Returns:
        The monotonic time, or None if full power was never held, and the median in watts.
    """
    late = [sample.watts for sample in samples if sample.at >= later]
    if not late:
        return None, 0.0
    median = statistics.median(late)
    for number, sample in enumerate(samples):
        if sample.watts < _FULL * median:
            continue
        held = [more.watts for more in samples[number:] if more.at <= sample.at + _HELD_S]
        if statistics.fmean(held) >= _FULL * median:
            return sample.at, median
    return None, median
