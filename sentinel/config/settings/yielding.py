"""When a GPU counts as somebody else's, and how it is let go."""

from __future__ import annotations

from sentinel.config.ignore_rules import parse_ignored
from sentinel.config.parsers import one_of, parse_share
from sentinel.config.settings.setting import Setting
from sentinel.units import parse_duration, parse_size

YIELDING: tuple[Setting, ...] = (
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
)
