"""How a GPU's condition is judged, and how much of its memory may be promised.

The thresholds are those of the GPU Management System's table of states, from which the names come,
too: up to 65 degrees Celsius and 70 % of the memory a GPU is OPTIMAL, up to 75 and 85 NORMAL, up to
85 and 95 THROTTLED, and CRITICAL beyond. What a device declares for itself bounds them further.
"""

from __future__ import annotations

from sentinel.settings.setting import Setting
from sentinel.units import one_of, parse_celsius, parse_duration, parse_share, parse_size

__all__ = ["CONDITION"]

CONDITION: tuple[Setting, ...] = (
    Setting(
        key="throttle.pace",
        field="throttle",
        flag="--throttle",
        metavar="on|off",
        help="Whether our stressor slows down with the GPU's condition, and stops where that is"
        " critical.",
        parse=one_of("on", "off"),
        default="on",
        per_gpu=True,
    ),
    Setting(
        key="throttle.temp_optimal",
        field="temp_optimal",
        flag="--temp-optimal",
        metavar="CELSIUS",
        help="From this temperature on, a GPU is no more than NORMAL, and works at 80 %.",
        parse=parse_celsius,
        default="65",
        least="1",
        most="120",
        per_gpu=True,
    ),
    Setting(
        key="throttle.temp_normal",
        field="temp_normal",
        flag="--temp-normal",
        metavar="CELSIUS",
        help="From this temperature on, it is THROTTLED, and works at 50 %.",
        parse=parse_celsius,
        default="75",
        least="1",
        most="120",
        per_gpu=True,
    ),
    Setting(
        key="throttle.temp_throttle",
        field="temp_throttle",
        flag="--temp-throttle",
        metavar="CELSIUS",
        help="Above this temperature, or above what the device declares as its maximum, it is"
        " CRITICAL, and our stressor stops.",
        parse=parse_celsius,
        default="85",
        least="1",
        most="120",
        per_gpu=True,
    ),
    Setting(
        key="throttle.temp_critical",
        field="temp_critical",
        flag="--temp-critical",
        metavar="CELSIUS",
        help="Above this temperature, or above that at which the device slows itself down, it is"
        " said to overheat.",
        parse=parse_celsius,
        default="90",
        least="1",
        most="120",
        per_gpu=True,
    ),
    Setting(
        key="throttle.memory_optimal",
        field="memory_optimal",
        flag="--memory-optimal",
        metavar="SHARE",
        help="From this share of its memory in use by others on, a GPU is no more than NORMAL.",
        parse=parse_share,
        default="70%",
        per_gpu=True,
    ),
    Setting(
        key="throttle.memory_normal",
        field="memory_normal",
        flag="--memory-normal",
        metavar="SHARE",
        help="From this share of its memory in use by others on, it is THROTTLED.",
        parse=parse_share,
        default="85%",
        per_gpu=True,
    ),
    Setting(
        key="throttle.memory_critical",
        field="memory_critical",
        flag="--memory-critical",
        metavar="SHARE",
        help="Above this share of its memory in use by others, it is CRITICAL.",
        parse=parse_share,
        default="95%",
        per_gpu=True,
    ),
    Setting(
        key="throttle.hysteresis",
        field="hysteresis",
        flag="--hysteresis",
        metavar="CELSIUS",
        help="A condition gets better only where it is cooler than its threshold by so much; of the"
        " memory, so many hundredths.",
        parse=parse_celsius,
        default="2",
        least="0",
        most="30",
        per_gpu=True,
    ),
    Setting(
        key="throttle.cooldown",
        field="cooldown",
        flag="--cooldown",
        metavar="TIME",
        help="A GPU that is THROTTLED stays so for at least so long.",
        parse=parse_duration,
        default="30s",
        least="100ms",
        most="1d",
        per_gpu=True,
    ),
    Setting(
        key="throttle.critical_pause",
        field="critical_pause",
        flag="--critical-pause",
        metavar="TIME",
        help="One that is CRITICAL stays so for at least so long.",
        parse=parse_duration,
        default="60s",
        least="100ms",
        most="1d",
        per_gpu=True,
    ),
    Setting(
        key="budget.limit",
        field="budget_limit",
        flag="--budget",
        metavar="SIZE",
        help="Promise at most so much of each GPU's memory; all of it but the reserve, otherwise.",
        parse=parse_size,
        per_gpu=True,
    ),
    Setting(
        key="budget.reserve",
        field="budget_reserve",
        flag="--budget-reserve",
        metavar="SIZE",
        help="Never promise the last of each GPU's memory.",
        parse=parse_size,
        default="512MiB",
        per_gpu=True,
    ),
)
