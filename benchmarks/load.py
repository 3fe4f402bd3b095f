"""How well sentinel loads a GPU, against a bare torch loop of the same shape in the same run."""

from __future__ import annotations

import time
from statistics import fmean

from benchmarks.costs import census, spent
from benchmarks.results import Record
from benchmarks.rig import Rig, Speaker, TooLateError

__all__ = ["Load"]

#: Until clocks and power have settled, in seconds.
_WARM_UP = 4.0
_SAMPLE_EVERY = 0.2


class Load:
    """Measures rates and power on the first GPU.

    Args:
        rig: The processes.
        seconds: How long each stretch is.
    """

    def __init__(self, rig: Rig, seconds: float) -> None:
        self._rig = rig
        self._card = rig.host.cards[0]
        self._seconds = seconds

    def compare(self, workload: str) -> list[Record]:
        """Measure the bare loop, sentinel, and the bare loop again: the card warms up meanwhile."""
        rate = "flops_per_s" if workload == "gemm" else "bytes_per_s"
        bare = [self._bare(workload, rate)]
        with_sentinel = self._with_sentinel(workload, rate)
        bare.append(self._bare(workload, rate))
        return [{"workload": workload, "rate": rate, "bare": bare, **with_sentinel}]

    def _bare(self, workload: str, rate: str) -> Record:
        self._rig.no_sentinel()
        self._rig.wait_empty([self._card])
        holder = self._rig.holder(self._card, "floor", "--workload", workload)
        holder.ready()
        rates, watts = self._sample(holder, rate)
        self._rig.end(holder)
        return {"rate": rates, "watts": watts}

    def _with_sentinel(self, workload: str, rate: str) -> Record:
        sentinel = self._rig.sentinel(workload, [self._card])
        sentinel.wait_held([self._card.uuid])
        stressors = [process for kind, process in census(sentinel).values() if kind == "stressor"]
        before, began = sum(map(spent, stressors)), time.monotonic()
        rates, watts = self._sample(sentinel, rate)
        cpu = (sum(map(spent, stressors)) - before) / (time.monotonic() - began)
        resident = max(process.memory_info().rss for process in stressors)
        power = self._rig.host.power(self._card.uuid)
        return {
            "sentinel": {"rate": rates, "watts": watts},
            "limit": power[1] if power else None,
            "stressor_cpu": cpu,
            "stressor_rss": resident,
        }

    def _sample(self, speaker: Speaker, rate: str) -> tuple[float, float | None]:
        """Return the mean rate and power of a stretch, after a warm-up."""
        time.sleep(_WARM_UP)
        first = len(speaker.lines)
        until = time.monotonic() + self._seconds
        watts = []
        while time.monotonic() < until:
            power = self._rig.host.power(self._card.uuid)
            watts += [power[0]] if power else []
            time.sleep(_SAMPLE_EVERY)
        uuid = self._card.uuid
        rates = [
            line[rate]
            for line in speaker.lines[first:]
            if rate in line and line.get("gpu", uuid) == uuid
        ]
        if not rates:
            raise TooLateError(f"{' '.join(speaker.command())} said no {rate}")
        return fmean(rates), fmean(watts) if watts else None
