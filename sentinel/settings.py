"""The table of everything that can be set: its names, what is allowed, and what it does.

Flags, variables, keys of the file, the help text and the checks all follow from a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sentinel.hours import parse_duty, parse_hours, parse_until
from sentinel.ignoring import parse_ignored
from sentinel.units import (
    one_of,
    or_off,
    parse_address,
    parse_count,
    parse_duration,
    parse_file,
    parse_memory,
    parse_names,
    parse_power,
    parse_rate,
    parse_share,
    parse_size,
)

__all__ = ["SETTINGS", "Setting"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of Config as a person sets it.

    Attributes:
        key: Its dotted name in a configuration file.
        field: Its name in Config.
        flag: Its flag, from which its variable follows.
        default: What it is when nobody sets it, as text.
        parse: Makes its value of text; raises ValueError with what is allowed.
        least: The smallest value that is allowed, as text, and so ``most``.
        per_gpu: Whether it may be another for single GPUs.
        many: Whether it is a list; its flag may be given several times.
    """

    key: str
    field: str
    flag: str
    metavar: str
    help: str
    parse: Callable[[str], Any]
    default: str = ""
    least: str | None = None
    most: str | None = None
    per_gpu: bool = False
    many: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "SENTINEL_" + self.flag.removeprefix("--").replace("-", "_").upper()


SETTINGS: tuple[Setting, ...] = (
    Setting(
        key="gpus",
        field="gpus",
        flag="--gpus",
        metavar="GPU,...",
        help="Only these: nvidia-smi's index, UUID or a prefix of it, PCI id.",
        parse=parse_names,
        default="all",
        many=True,
    ),
    Setting(
        key="memory.target",
        field="memory",
        flag="--memory",
        metavar="SHARE|SIZE",
        help="How much to hold on each GPU: a share of its free memory, or a size such as 20GiB.",
        parse=parse_memory,
        default="88%",
        per_gpu=True,
    ),
    Setting(
        key="memory.chunk",
        field="chunk",
        flag="--chunk",
        metavar="SIZE",
        help="Take the memory in pieces of this size.",
        parse=parse_size,
        default="512MiB",
        least="2MiB",
        most="16GiB",
        per_gpu=True,
    ),
    Setting(
        key="memory.reserve",
        field="reserve",
        flag="--reserve",
        metavar="SIZE",
        help="Always leave so much of each GPU's free memory.",
        parse=parse_size,
        per_gpu=True,
    ),
    Setting(
        key="workload",
        field="workload",
        flag="--workload",
        metavar="NAME[:key=value,...]",
        help="What to do with the memory: gemm, elementwise, mixed, memtest, pulse, hold, one of"
        " yours, module:attribute.",
        parse=str,
        default="gemm",
        per_gpu=True,
    ),
    Setting(
        key="goldens",
        field="goldens",
        flag="--goldens",
        metavar="PATH|off",
        help="Keep the golden checksums in this file; without it, in the state folder.",
        parse=parse_file,
    ),
    Setting(
        key="util.target",
        field="util",
        flag="--util",
        metavar="SHARE",
        help="Keep each GPU busy for this share of the time, such as 50%.",
        parse=parse_share,
        least="5%",
        most="100%",
        per_gpu=True,
    ),
    Setting(
        key="util.tolerance",
        field="util_tolerance",
        flag="--util-tolerance",
        metavar="SHARE",
        help="Leave the pace as it is while the mean of the samples is this close to its target.",
        parse=parse_share,
        default="1%",
        least="0.1%",
        most="20%",
        per_gpu=True,
    ),
    Setting(
        key="util.every",
        field="util_every",
        flag="--util-every",
        metavar="TIME",
        help="Look this often at how a paced GPU does; not more often than every poll.",
        parse=parse_duration,
        default="1s",
        least="100ms",
        most="1m",
        per_gpu=True,
    ),
    Setting(
        key="util.samples",
        field="util_samples",
        flag="--util-samples",
        metavar="N",
        help="Correct the pace by the mean of so many looks.",
        parse=parse_count,
        default="5",
        least="1",
        most="60",
        per_gpu=True,
    ),
    Setting(
        key="power",
        field="power",
        flag="--power",
        metavar="WATTS",
        help="Let each GPU draw this power, as far as its workload can, such as 400W.",
        parse=parse_power,
        least="10W",
        most="10kW",
        per_gpu=True,
    ),
    Setting(
        key="duty",
        field="duty",
        flag="--duty",
        metavar="ON/OFF",
        help="Compute and rest by turns, such as 30m/5m; the memory stays held.",
        parse=parse_duty,
        per_gpu=True,
    ),
    Setting(
        key="rearm",
        field="rearm",
        flag="--rearm",
        metavar="TIME",
        help="Leave a GPU alone until the last foreign process has been gone for so long (+-50 %).",
        parse=parse_duration,
        default="5s",
        least="100ms",
        most="7d",
        per_gpu=True,
    ),
    Setting(
        key="rearm_longest",
        field="rearm_longest",
        flag="--rearm-longest",
        metavar="TIME",
        help="A GPU that is claimed again and again is left alone for longer, up to this (+-50 %).",
        parse=parse_duration,
        default="10m",
        least="100ms",
        most="7d",
        per_gpu=True,
    ),
    Setting(
        key="yield_to",
        field="yield_to",
        flag="--yield-to",
        metavar="all|compute",
        help="Whom to yield to: compute leaves out graphics processes and active displays.",
        parse=one_of("all", "compute"),
        default="all",
        per_gpu=True,
    ),
    Setting(
        key="ignore",
        field="ignore",
        flag="--ignore",
        metavar="RULE,...",
        help="Let be the processes of this name, user or size: `name=Xorg`, `user=monitor`,"
        " `memory<200MiB`.",
        parse=parse_ignored,
        per_gpu=True,
        many=True,
    ),
    Setting(
        key="yield",
        field="yield_how",
        flag="--yield",
        metavar="kill|ask",
        help="How to let go of a GPU for somebody: ask is for cards that a kill leaves broken.",
        parse=one_of("kill", "ask"),
        default="kill",
        per_gpu=True,
    ),
    Setting(
        key="yield_grace",
        field="yield_grace",
        flag="--yield-grace",
        metavar="TIME",
        help="With `--yield ask`: kill what has not ended by itself after so long.",
        parse=parse_duration,
        default="2s",
        least="10ms",
        most="1m",
        per_gpu=True,
    ),
    Setting(
        key="idle.memory",
        field="idle_memory",
        flag="--idle-memory",
        metavar="SIZE",
        help="More than this in use that no process accounts for, and a GPU is not idle; 1GiB, and"
        " 32MiB where processes may be hidden.",
        parse=parse_size,
        per_gpu=True,
    ),
    Setting(
        key="idle.utilization",
        field="idle_utilization",
        flag="--idle-utilization",
        metavar="SHARE",
        help="A GPU that is used by this share of the time or more is not idle, such as 5%.",
        parse=parse_share,
        per_gpu=True,
    ),
    Setting(
        key="idle.wait",
        field="idle_wait",
        flag="--idle-wait",
        metavar="TIME",
        help="Start only where a GPU was idle for so long without a break.",
        parse=parse_duration,
        per_gpu=True,
    ),
    Setting(
        key="idle.gate",
        field="idle_gate",
        flag="--idle-gate",
        metavar="each|all",
        help="Start on each GPU as soon as it is idle, or not before all are.",
        parse=one_of("each", "all"),
        default="each",
    ),
    Setting(
        key="limits.gpus",
        field="max_gpus",
        flag="--max-gpus",
        metavar="N",
        help="Hold at most so many GPUs at once.",
        parse=parse_count,
        least="1",
        most="128",
    ),
    Setting(
        key="limits.leave_idle",
        field="leave_idle",
        flag="--leave-idle",
        metavar="N",
        help="Always leave so many idle GPUs free; let go of one where somebody takes the last.",
        parse=parse_count,
        default="0",
        least="0",
        most="128",
    ),
    Setting(
        key="limits.starts_per_second",
        field="starts_per_second",
        flag="--starts-per-second",
        metavar="N",
        help="Start at most so many stressors each second, such as 0.5.",
        parse=parse_rate,
        least="0.001",
        most="100",
    ),
    Setting(
        key="quiet",
        field="quiet",
        flag="--quiet",
        metavar="HOURS,...",
        help="Hold nothing in these hours, in local time, such as `Mon-Fri 08:00-18:00`.",
        parse=parse_hours,
        many=True,
    ),
    Setting(
        key="poll",
        field="poll",
        flag="--poll",
        metavar="TIME",
        help="Read every GPU fully this often.",
        parse=parse_duration,
        default="1s",
        least="100ms",
        most="2s",
    ),
    Setting(
        key="watch_interval",
        field="watch_interval",
        flag="--watch-interval",
        metavar="TIME",
        help="Read a GPU that we hold this often.",
        parse=parse_duration,
        default="25ms",
        least="2ms",
        most="40ms",
    ),
    Setting(
        key="start_timeout",
        field="start_timeout",
        flag="--start-timeout",
        metavar="TIME",
        help="A stressor that is not ready after so long has failed.",
        parse=parse_duration,
        default="180s",
        least="1s",
        most="1h",
        per_gpu=True,
    ),
    Setting(
        key="hang_after",
        field="hang_after",
        flag="--hang-after",
        metavar="TIME",
        help="A stressor without progress for so long has failed.",
        parse=parse_duration,
        default="30s",
        least="3s",
        most="1h",
        per_gpu=True,
    ),
    Setting(
        key="grace",
        field="grace",
        flag="--grace",
        metavar="TIME",
        help="At an ordinary stop, kill what has not ended by itself after so long.",
        parse=parse_duration,
        default="5s",
        least="100ms",
        most="5m",
    ),
    Setting(
        key="status_every",
        field="status_every",
        flag="--status-every",
        metavar="TIME",
        help="Say each GPU's state and rate this often.",
        parse=parse_duration,
        default="1m",
        least="1s",
        most="1d",
    ),
    Setting(
        key="for",
        field="run_for",
        flag="--for",
        metavar="TIME",
        help="End after so long; without it, run until stopped.",
        parse=parse_duration,
    ),
    Setting(
        key="until",
        field="until",
        flag="--until",
        metavar="TIME",
        help="End at this time of day, or at `2026-12-24 18:30`, in local time.",
        parse=parse_until,
    ),
    Setting(
        key="api.tcp",
        field="tcp",
        flag="--tcp",
        metavar="[HOST:]PORT|off",
        help="Answer clients that have the token at this address, too, such as 127.0.0.1:8765.",
        parse=or_off(parse_address),
    ),
    Setting(
        key="api.group",
        field="socket_group",
        flag="--socket-group",
        metavar="GROUP|off",
        help="Let this group use the socket, too.",
        parse=or_off(str),
    ),
)
