"""How many GPUs may be held, and when."""

from __future__ import annotations

from sentinel.config.parsers import parse_count, parse_rate
from sentinel.config.schedule import parse_hours, parse_until
from sentinel.config.settings.setting import Setting
from sentinel.units import parse_duration

LIMITS: tuple[Setting, ...] = (
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
)
