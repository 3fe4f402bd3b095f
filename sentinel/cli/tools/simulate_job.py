"""``sentinel simulate-job``: act as a foreign job on a simulated GPU.

It follows the measured behaviour of a CUDA program: it opens the device, its context grows for a
tenth of a second, and then it requests all of its memory in one allocation.
"""

from __future__ import annotations

import json
import time

import click

from sentinel.cli.options.gpu_options import one_gpu
from sentinel.cli.options.setting_options import log_format
from sentinel.config.build import parse_given
from sentinel.config.gpu_selection import select_gpus
from sentinel.config.parsers import parse_memory
from sentinel.errors import ExitCode, NoSuchGpuError
from sentinel.host.daemons.daemon_lookup import find_simulation
from sentinel.host.gpus import simulation
from sentinel.protocol.gpu import Gpu
from sentinel.units import format_duration, format_size, parse_duration

#: Growth of a context in bytes, each followed by a share of the time to create a context. Within
#: 105 ms on an H200: 13 to 19 MiB 100 ms before the big allocation, 40 at -12, 112 at -5, 526 at
#: its end.
CONTEXT_STEPS = ((13 * 2**20, 0.86), (27 * 2**20, 0.09), (486 * 2**20, 0.05))


@click.command("simulate-job")
@one_gpu("0", "0")
@click.option(
    "--memory", default="90%", show_default=True, help="Share of the whole GPU, or a size."
)
@click.option("--for", "seconds", default="10s", show_default=True, help="Time to hold the memory.")
@click.option(
    "--context",
    default="105ms",
    show_default=True,
    help="Time to create the context; up to 700ms on a busy host or with eight GPUs.",
)
@log_format
def command(gpu: str, memory: str, seconds: str, context: str, text: bool) -> int:  # noqa: FBT001
    """Act as a foreign job on a simulated GPU; exit code 1 if it does not get its memory."""
    target = parse_given(parse_memory, memory, "--memory")
    stay = parse_given(parse_duration, seconds, "--for")
    grows = parse_given(parse_duration, context, "--context")
    registry = simulation.Registry(find_simulation())
    if not registry.gpus():
        raise NoSuchGpuError(
            f"there is no simulated GPU in {registry.folder}",
            "Start one first: python -m sentinel --simulate 2",
        )
    (chosen, *_) = select_gpus((gpu,), registry.gpus())
    membership = registry.attach(chosen.uuid)
    report = _Report(chosen, text=text)
    if not _grow(membership, report, grows):
        return int(ExitCode.FAIL)
    size = target.size or int((target.share or 0) * chosen.memory_total) - membership.held
    return int(_take(membership, report, size, stay))


class _Report:
    """Print one line for each step of a job, with the time since its start."""

    def __init__(self, gpu: Gpu, *, text: bool) -> None:
        self.gpu = gpu
        self._text = text
        self._began = time.monotonic()

    def write(self, what: str, size: int) -> None:
        """Report that the job ``got``, was ``refused`` or ``left`` memory of this size."""
        now = time.monotonic()
        after = now - self._began
        if not self._text:
            fields = {"event": f"job.{what}", "gpu": self.gpu.uuid, "size": size, "after_s": after}
            print(json.dumps({**fields, "at": now}), flush=True)
            return
        words = {
            "got": "got its",
            "refused": "was REFUSED its",
            "left": "ends and frees its",
        }
        text = f"foreign job on GPU {self.gpu.index} {words[what]} {format_size(size)}"
        print(f"{time.strftime('%H:%M:%S')}  {text} after {format_duration(after)}", flush=True)


def _grow(membership: simulation.Membership, report: _Report, seconds: float) -> bool:
    """Create a context over this time; return False if there is no memory for it."""
    for size, share in CONTEXT_STEPS:
        if not membership.allocate(size):
            report.write("refused", size)
            return False
        time.sleep(share * seconds)
    return True


def _take(membership: simulation.Membership, report: _Report, size: int, stay: float) -> ExitCode:
    """Allocate the memory at once, hold it, and report the outcome."""
    if not membership.allocate(size):
        report.write("refused", size)
        return ExitCode.FAIL
    report.write("got", size)
    time.sleep(stay)
    membership.close()
    report.write("left", size)
    return ExitCode.OK
