"""``sentinel simulate-job``: a foreign job on a simulated GPU, as greedy as a real one.

It behaves as a CUDA program was measured to: it opens the device, its context grows for a tenth of
a second, and then it asks for everything in one allocation.
"""

from __future__ import annotations

import json
import time

import click

from sentinel.cli.setting_options import log_format
from sentinel.config.build import Given, parse_given
from sentinel.config.gpu_selection import select_gpus
from sentinel.config.parsers import parse_memory
from sentinel.errors import ExitCode, NoSuchGpuError
from sentinel.host import simulation
from sentinel.protocol.gpu import Gpu
from sentinel.units import format_duration, format_size, parse_duration

#: Growth of a context in bytes, each followed by a share of the time that a context takes. Within
#: 105 ms on an H200: 13 to 19 MiB 100 ms before the big allocation, 40 at -12, 112 at -5, 526 at
#: its end.
CONTEXT_STEPS = ((13 * 2**20, 0.86), (27 * 2**20, 0.09), (486 * 2**20, 0.05))


@click.command("simulate-job")
@click.option("--gpu", default="0", show_default=True, help="Which: index, UUID or PCI id.")
@click.option(
    "--memory", default="90%", show_default=True, help="Share of the whole GPU, or a size."
)
@click.option("--for", "seconds", default="10s", show_default=True, help="How long to stay.")
@click.option(
    "--context",
    default="105ms",
    show_default=True,
    help="How long its context grows before that; a busy host or eight GPUs take up to 700ms.",
)
@log_format
def command(gpu: str, memory: str, seconds: str, context: str, text: bool) -> int:  # noqa: FBT001
    """Be a foreign job on a simulated GPU; exit code 1 if it was refused its memory."""
    target = parse_given(parse_memory, Given(text=memory, source="--memory"))
    stay = parse_given(parse_duration, Given(text=seconds, source="--for"))
    grows = parse_given(parse_duration, Given(text=context, source="--context"))
    registry = simulation.Registry(simulation.default_folder())
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
    """Says how a job on a GPU goes, a line at a time; its clock runs from now on."""

    def __init__(self, gpu: Gpu, *, text: bool) -> None:
        self.gpu = gpu
        self._text = text
        self._began = time.monotonic()

    def say(self, what: str, size: int) -> None:
        """Say that the job ``got``, was ``refused`` or ``left`` so many bytes."""
        now = time.monotonic()
        after = now - self._began
        if not self._text:
            fields = {"event": f"job.{what}", "gpu": self.gpu.uuid, "size": size, "after_s": after}
            print(json.dumps({**fields, "at": now}), flush=True)
            return
        words = {
            "got": "got its",
            "refused": "was REFUSED its",
            "left": "leaves and gives back its",
        }
        text = f"foreign job on GPU {self.gpu.index} {words[what]} {format_size(size)}"
        print(f"{time.strftime('%H:%M:%S')}  {text} after {format_duration(after)}", flush=True)


def _grow(membership: simulation.Membership, report: _Report, seconds: float) -> bool:
    """Make a context, which takes so long; return whether there was memory for it."""
    for size, share in CONTEXT_STEPS:
        if not membership.allocate(size):
            report.say("refused", size)
            return False
        time.sleep(share * seconds)
    return True


def _take(membership: simulation.Membership, report: _Report, size: int, stay: float) -> ExitCode:
    """Take the memory in one allocation and hold it; say how it went."""
    if not membership.allocate(size):
        report.say("refused", size)
        return ExitCode.FAIL
    report.say("got", size)
    time.sleep(stay)
    membership.close()
    report.say("left", size)
    return ExitCode.OK
