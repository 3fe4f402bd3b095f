"""``sentinel demo``: show a hand-over on two simulated GPUs, with a foreign job.

The job follows the measured behaviour of a CUDA program: it opens the device, its context grows for
a tenth of a second, and then it requests all of its memory in one allocation.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping

import click

from sentinel.cli.display.output import wants_colour
from sentinel.cli.options.command_options import one_gpu
from sentinel.cli.options.setting_options import log_format
from sentinel.client.hold import SENTINEL
from sentinel.config.build import parse_given
from sentinel.config.gpu_selection import select_gpus
from sentinel.config.setting import parse_memory
from sentinel.errors import ExitCode, NoSuchGpuError
from sentinel.host import simulation
from sentinel.host.daemon_lookup import find_simulation
from sentinel.host.paths import SIMULATED
from sentinel.host.process_setup import DEMO_JOB, set_process_title
from sentinel.host.regular_file import file_errors
from sentinel.protocol.gpu import Gpu
from sentinel.units import format_duration, format_size, parse_duration

#: Growth of a context in bytes, each followed by a share of the time to create a context. Within
#: 105 ms on an H200: 13 to 19 MiB 100 ms before the big allocation, 40 at -12, 112 at -5, 526 at
#: its end.
CONTEXT_STEPS = ((13 * 2**20, 0.86), (27 * 2**20, 0.09), (486 * 2**20, 0.05))
#: A slow one keeps growing meanwhile, by so many bytes after so many seconds: on an H200 a context
#: that was being created never paused for more than 0.14 s.
_LEAST_GROWTH_BYTES, _LONGEST_PAUSE_S = 2 * 2**20, 0.05
#: How long each state is shown.
SHOW_S = 6.0
#: The time in which the job's context grows: that of a busy host, since this one may be slow.
CONTEXT = "700ms"
#: The first import of torch from a cold disk took 14 s, and may take longer.
START_TIMEOUT_S = 120.0
#: A line about a GPU that has become occupied.
_OCCUPIED = re.compile(r"GPU (\d+) +occupied")


@click.command("job", short_help="Act as a foreign job on a simulated GPU.")
@one_gpu("0", "0")
@click.option(
    "--memory",
    metavar="SHARE|SIZE",
    default="90%",
    show_default=True,
    help="Share of the whole GPU, or a size.",
)
@click.option(
    "--for",
    "seconds",
    metavar="TIME",
    default="10s",
    show_default=True,
    help="Time to hold the memory.",
)
@click.option(
    "--context",
    metavar="TIME",
    default="105ms",
    show_default=True,
    help="Time to create the context; up to 700ms on a busy host or with eight GPUs.",
)
@log_format
def job_command(gpu: str, memory: str, seconds: str, context: str, text: bool) -> int:
    """Act as a foreign job on a simulated GPU; exit code 1 if it does not get its memory."""
    target = parse_given(parse_memory, memory, "--memory")
    stay = parse_given(parse_duration, seconds, "--for")
    grows = parse_given(parse_duration, context, "--context")
    registry = simulation.Registry(find_simulation())
    if not registry.gpus():
        raise NoSuchGpuError(
            f"there is no simulated GPU in {registry.folder}",
            "Start a sentinel first, with --simulate 2",
        )
    (chosen, *_) = select_gpus((gpu,), registry.gpus())
    set_process_title(f"sentinel demo job on GPU {chosen.index}", DEMO_JOB)
    with file_errors(f"the simulated GPUs in {registry.folder} cannot be used"):
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
        pauses = max(1, math.ceil(share * seconds / _LONGEST_PAUSE_S))
        for growth in (size, *[_LEAST_GROWTH_BYTES] * (pauses - 1)):
            if not membership.allocate(growth):
                report.write("refused", growth)
                return False
            time.sleep(share * seconds / pauses)
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


@click.group("demo", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Show a hand-over on two simulated GPUs: occupy, yield, occupy again; half a minute."""
    if ctx.invoked_subcommand is not None:
        return int(ExitCode.OK)
    with tempfile.TemporaryDirectory(prefix="sentinel-demo-") as folder:
        environment = {**os.environ, SIMULATED: folder}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        base = [*SENTINEL]
        flags = ["--simulate", "2", "--rearm", "2s"]
        _print(f"$ python -m sentinel {' '.join(flags)}")
        # Without a socket: no command of this user should take it for a daemon.
        often = ["--status-every", "8s", "--no-api"]
        colour = ["--color", "always" if wants_colour(sys.stdout) else "never"]
        supervisor = [*base, "run", *flags, *often, *colour]
        with (
            subprocess.Popen(supervisor, env=environment, stdout=subprocess.PIPE) as sentinel,
            contextlib.ExitStack() as stack,
        ):
            stack.callback(_end, sentinel)  # if the reader of the demo is gone
            output = _Output(sentinel)
            if not output.show_occupied({0: 1, 1: 1}):
                _end(sentinel)
                return sentinel.wait() or int(ExitCode.FAIL)
            job = ["demo", "job", "--gpus", "0", "--memory", "97%", "--for", f"{SHOW_S:g}s"]
            job += ["--context", CONTEXT]
            _print(f"$ python -m sentinel {' '.join(job)}")
            refused = subprocess.run([*base, *job], env=environment, check=False).returncode
            again = output.show_occupied({0: 2})
            _print("Ctrl+C")
            sentinel.send_signal(signal.SIGINT)
            code = sentinel.wait()
            output.join()
        _print(
            "The foreign job got its memory." if refused == 0 else "The foreign job was REFUSED."
        )
        return code or refused or int(ExitCode.OK if again else ExitCode.FAIL)


command.add_command(job_command)


class _Output(threading.Thread):
    """Prints what the supervisor prints, and counts how often each GPU became occupied.

    The lines of the demo itself are so printed in their place.
    """

    def __init__(self, sentinel: subprocess.Popen[bytes]) -> None:
        super().__init__(name="output", daemon=True)
        self._sentinel = sentinel
        self._occupied: Counter[int] = Counter()
        self._changed = threading.Condition()
        #: That the output ended. The process itself exits a moment later, which wakes no thread.
        self._ended = False
        self.start()

    def run(self) -> None:
        """Print the output to its end."""
        for line in self._sentinel.stdout or ():
            text = line.decode(errors="replace").rstrip("\n")
            with contextlib.suppress(OSError):  # as above; the supervisor must not wait
                click.echo(text, color=True)
            found = _OCCUPIED.search(click.unstyle(text))
            with self._changed:
                self._occupied.update([int(found[1])] if found else [])
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def show_occupied(self, times: Mapping[int, int]) -> bool:
        """Wait until each GPU was occupied so often, and show that for a while.

        Args:
            times: How often, by the index of the GPU.

        Returns:
            False if the supervisor ended, or one of them was not occupied in time.
        """

        def is_occupied() -> bool:
            return all(self._occupied[gpu] >= count for gpu, count in times.items())

        with self._changed:
            self._changed.wait_for(lambda: is_occupied() or self._ended, START_TIMEOUT_S)
            if self._ended:
                return False
            occupied = is_occupied()
        if occupied:
            time.sleep(SHOW_S)
        else:
            _print(f"Not all GPUs were occupied within {format_duration(START_TIMEOUT_S)}.")
        return occupied


def _end(sentinel: subprocess.Popen[bytes]) -> None:
    """Have the supervisor end, if it has not."""
    if sentinel.poll() is None:
        sentinel.send_signal(signal.SIGINT)


def _print(text: str) -> None:
    click.echo(click.style(text, bold=True))
