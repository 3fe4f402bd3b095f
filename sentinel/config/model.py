"""The frozen Config: every setting with its default, limits, flag, key and help text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, time
from typing import ClassVar

from sentinel.config.plan import Plan
from sentinel.config.schedule import Duty, Hours, parse_duty, parse_hours, parse_until
from sentinel.config.services import ServiceSettings
from sentinel.config.setting import (
    Form,
    IgnoreRule,
    Setting,
    declared_settings,
    gpu_setting,
    one_of,
    parse_celsius,
    parse_count,
    parse_file,
    parse_gpus,
    parse_ignore_rules,
    parse_memory,
    parse_power,
    parse_rate,
    parse_share,
    setting,
    start_setting,
)
from sentinel.config.specs import parse_driver
from sentinel.protocol.stressor import MemoryTarget
from sentinel.units import parse_duration, parse_duration_or_zero, parse_size, parse_size_or_zero

_USER = Form(parse=str, metavar="USER")
_CELSIUS = Form(parse=parse_celsius, metavar="CELSIUS")
_COUNT = Form(parse=parse_count, metavar="N")
_DRIVER = Form(parse=parse_driver, metavar="NAME[:key=value,...]", trusted=True)
_DURATION = Form(parse=parse_duration, metavar="TIME")
_DURATION_OR_ZERO = Form(parse=parse_duration_or_zero, metavar="TIME")
_DUTY = Form(parse=parse_duty, metavar="ON/OFF")
_FILE = Form(parse=parse_file, metavar="PATH|off", trusted=True)
_GPUS = Form(parse=parse_gpus, metavar="GPU,...", many=True)
_HOURS = Form(parse=parse_hours, metavar="HOURS,...", many=True)
_IGNORE_RULES = Form(parse=parse_ignore_rules, metavar="RULE,...", many=True)
_MEMORY = Form(parse=parse_memory, metavar="SHARE|SIZE")
_POWER = Form(parse=parse_power, metavar="WATTS")
_RATE = Form(parse=parse_rate, metavar="N")
_SHARE = Form(parse=parse_share, metavar="SHARE")
_SIZE = Form(parse=parse_size, metavar="SIZE")
_SIZE_OR_ZERO = Form(parse=parse_size_or_zero, metavar="SIZE")
_TEMPERATURE = _CELSIUS.within("1", "120")
_UNTIL = Form(parse=parse_until, metavar="TIME")
_WORKLOAD = Form(parse=str, metavar="NAME[:key=value,...]", trusted=True)


#: The longest time between full reads of a GPU that is held or may be occupied next, in seconds.
QUICK_POLL_S = 2.0

_KEPT_WAIT = "A wait that has begun keeps its length."
_KEPT_STOP = "A stop that has begun keeps its time."
#: What keeps the former value for a while after a change, by key; all others take effect at once.
EFFECTS = {
    "rearm": _KEPT_WAIT,
    "rearm_longest": _KEPT_WAIT,
    "yield_grace": _KEPT_STOP,
    "grace": _KEPT_STOP,
    "status_every": "The next status is logged at its former time.",
}


@dataclass(frozen=True, kw_only=True)
class Config(ServiceSettings):
    """Every setting, in seconds, bytes and watts."""

    #: No reading for this long is UNKNOWN; a constant, which tests replace.
    stale_after: ClassVar[float] = 5.0

    # --- what runs, and on which GPUs --------------------------------------------------------

    gpus: tuple[str, ...] = start_setting(
        "Use only these GPUs: nvidia-smi index, range such as 0-3, UUID or its unique prefix, or"
        " PCI address.",
        _GPUS,
        "all",
    )
    memory: MemoryTarget = gpu_setting(
        "Memory to hold on each GPU: a share of what is free, or a size, at most what is free.",
        _MEMORY,
        "88%",
        key="memory.target",
    )
    chunk: int = gpu_setting(
        "Allocate the memory in chunks of this size, at most 1,024.",
        _SIZE.within("2MiB", "16GiB"),
        "512MiB",
        key="memory.chunk",
    )
    keep_free: int = gpu_setting(
        "Keep at least this much memory of each GPU free.",
        _SIZE_OR_ZERO,
        "0",
        key="memory.keep_free",
    )
    workload: str = gpu_setting(
        "What to run: gemm, elementwise, mixed, memtest, units, pulse, hold, an installed workload,"
        " or module:attribute.",
        _WORKLOAD,
        "gemm",
    )
    goldens: str | None = setting(
        "File of the golden checksums, by default in the state directory.",
        _FILE,
    )
    util: float | None = gpu_setting(
        "Target utilization of each GPU, such as 50%.",
        _SHARE.within("5%", "100%"),
        key="util.target",
    )
    util_tolerance: float = gpu_setting(
        "Keep the pace while the mean of samples is this close to the target.",
        _SHARE.within("0.1%", "20%"),
        "1%",
        key="util.tolerance",
    )
    util_every: float = gpu_setting(
        "Sample a paced GPU this often, at most once per --poll.",
        _DURATION.within("100ms", "1m"),
        "1s",
        key="util.every",
    )
    util_samples: int = gpu_setting(
        "Correct the pace by the mean of this many samples.",
        _COUNT.within("1", "60"),
        "5",
        key="util.samples",
    )
    power: float | None = gpu_setting(
        "Target power draw of each GPU; some workloads draw less.",
        _POWER.within("10W", "10kW"),
    )
    duty: Duty | None = gpu_setting(
        "Alternate work and rest, such as 30m/5m; the memory stays allocated.", _DUTY
    )

    # --- when a GPU is busy, and how it is yielded -------------------------------------------

    rearm: float = gpu_setting(
        "Occupy a GPU again this long (+-50 %) after its last foreign process.",
        _DURATION.within("100ms", "7d"),
        "5s",
    )
    rearm_longest: float = gpu_setting(
        "The wait of --rearm grows for a GPU that is claimed repeatedly, up to this (+-50 %).",
        _DURATION.within("100ms", "7d"),
        "10m",
    )
    yield_to: str = gpu_setting(
        "Which processes to yield to; compute excludes graphics processes and active displays.",
        one_of("all", "compute"),
        "all",
    )
    ignore: tuple[IgnoreRule, ...] = gpu_setting(
        "Ignore foreign processes: `name=Xorg`, `user=monitor`, `memory<200MiB`.",
        _IGNORE_RULES,
        unset=(),
    )
    yield_how: str = gpu_setting(
        "How to yield; ask requests the end first, where SIGKILL makes GPUs unusable.",
        one_of("kill", "ask"),
        "kill",
        key="yield",
        flag="--yield",
    )
    yield_grace: float = gpu_setting(
        "With `--yield ask`: kill a stressor after this time.",
        _DURATION.within("10ms", "1m"),
        "2s",
    )
    idle_memory: int | None = gpu_setting(
        "A GPU is busy above this much unattributed memory, by default 1GiB, or 32MiB where"
        " processes may be hidden.",
        _SIZE,
        key="idle.memory",
    )
    idle_utilization: float | None = gpu_setting(
        "A GPU is busy from this utilization on.", _SHARE, key="idle.utilization"
    )
    idle_wait: float = gpu_setting(
        "Start only on a GPU that was idle for this long without interruption.",
        _DURATION_OR_ZERO,
        "0",
        key="idle.wait",
    )
    idle_gate: str = setting(
        "Start on each GPU as soon as it is idle, or only when all GPUs are.",
        one_of("each", "all"),
        "each",
        key="idle.gate",
    )

    # --- health, and the memory for allocations ----------------------------------------------
    # The thresholds and the names of the states are those of the GPU Management System: OPTIMAL up
    # to 65 degrees Celsius and 70 % of the memory, NORMAL up to 75 and 85, THROTTLED up to 85 and
    # 95, and CRITICAL beyond. The limits that a device declares bound them further.

    throttle: str = gpu_setting(
        "Stop the stressor at the device's own temperature limit (`critical`), or also slow it down"
        " by its health (`full`).",
        one_of("critical", "full", "off"),
        "critical",
        key="throttle.pace",
    )
    temp_normal_from: float = gpu_setting(
        "Health is NORMAL at best from this temperature on.",
        _TEMPERATURE,
        "65",
        key="throttle.temp_normal_from",
    )
    temp_throttled_from: float = gpu_setting(
        "Health is THROTTLED from this temperature on.",
        _TEMPERATURE,
        "75",
        key="throttle.temp_throttled_from",
    )
    temp_critical_from: float = gpu_setting(
        "Health is CRITICAL above this temperature, or the maximum that the device declares.",
        _TEMPERATURE,
        "85",
        key="throttle.temp_critical_from",
    )
    temp_overheating_from: float = gpu_setting(
        "Report overheating above this temperature, or the device's slowdown temperature.",
        _TEMPERATURE,
        "90",
        key="throttle.temp_overheating_from",
    )
    memory_normal_from: float = gpu_setting(
        "`--throttle full`: health is NORMAL at best from this share of foreign memory on.",
        _SHARE,
        "70%",
        key="throttle.memory_normal_from",
    )
    memory_throttled_from: float = gpu_setting(
        "`--throttle full`: health is THROTTLED from this share on.",
        _SHARE,
        "85%",
        key="throttle.memory_throttled_from",
    )
    memory_critical_from: float = gpu_setting(
        "`--throttle full`: health is CRITICAL above this share.",
        _SHARE,
        "95%",
        key="throttle.memory_critical_from",
    )
    hysteresis: float = gpu_setting(
        "Health improves this far below a threshold: degrees, or percent of memory.",
        _CELSIUS.within("0", "30"),
        "2",
        key="throttle.hysteresis",
    )
    cooldown: float = gpu_setting(
        "Health stays THROTTLED at least this long.",
        _DURATION.within("100ms", "1d"),
        "30s",
        key="throttle.cooldown",
    )
    critical_pause: float = gpu_setting(
        "Health stays CRITICAL at least this long.",
        _DURATION.within("100ms", "1d"),
        "60s",
        key="throttle.critical_pause",
    )
    budget_limit: int | None = gpu_setting(
        "Memory of each GPU for allocations, by default all but --keep-unallocated.",
        _SIZE.or_off(),
        key="budget.limit",
        flag="--budget",
    )
    keep_unallocated: int = gpu_setting(
        "GPU memory that is never allocated.",
        _SIZE_OR_ZERO,
        "512MiB",
        key="budget.keep_unallocated",
    )

    # --- how many GPUs, and when -------------------------------------------------------------

    max_gpus: int | None = setting(
        "Occupy at most this many GPUs at once.", _COUNT.within("1", "128"), key="limits.gpus"
    )
    leave_idle: int = setting(
        "Leave this many idle GPUs free.",
        _COUNT.within("0", "128"),
        "0",
        key="limits.leave_idle",
    )
    starts_per_second: float | None = setting(
        "Start at most this many stressors per second.",
        _RATE.within("0.001", "100"),
        key="limits.starts_per_second",
    )
    hours: tuple[Hours, ...] = setting(
        "Occupy GPUs only in these hours (local time), such as `22:00-07:00`.",
        _HOURS,
        unset=(),
    )
    quiet: tuple[Hours, ...] = setting(
        "Release all GPUs in these hours (local time), such as `Mon-Fri 08:00-18:00`.",
        _HOURS,
        unset=(),
    )
    run_for: float | None = setting(
        "Exit after this time at the latest.",
        _DURATION,
        key="for",
        flag="--for",
    )
    until: datetime | time | None = setting(
        "Exit at this local time, such as `18:30` or `2026-12-24 18:30`.", _UNTIL
    )

    # --- how the daemon runs, and who may connect --------------------------------------------

    poll: float = start_setting(
        "Time between full readings; above 2s it applies to busy and paused GPUs only.",
        _DURATION.within("100ms", "10m"),
        "1s",
    )
    driver: str = start_setting(
        "Read GPUs through this driver: NVIDIA's, or one of an installed package.",
        _DRIVER,
        "nvml",
    )
    stressor_user: str | None = start_setting(
        "Run stressors as this user, without privileges; needs root.",
        _USER.or_off(),
        key="stressor.user",
    )
    standby: str = setting(
        "Keep a process with torch loaded for the next stressor.",
        one_of("on", "off"),
        "on",
    )
    watch_interval: float = start_setting(
        "Read the used memory of an occupied GPU this often, by probe and stressor.",
        _DURATION.within("2ms", "40ms"),
        "25ms",
    )
    start_timeout: float = gpu_setting(
        "A stressor that is not ready after this time has failed.",
        _DURATION.within("1s", "1h"),
        "180s",
    )
    hang_after: float = gpu_setting(
        "A stressor without progress for this long has failed.",
        _DURATION.within("3s", "1h"),
        "30s",
    )
    unwatched_after: float = setting(
        "Release a GPU whose memory neither stressor nor probe has read for this long.",
        _DURATION.within("50ms", "5s"),
        "75ms",
    )
    grace: float = setting(
        "At an ordinary stop, kill a stressor after this time.",
        _DURATION.within("100ms", "5m"),
        "500ms",
    )
    status_every: float = setting(
        "Log the state and the rates of each GPU this often.", _DURATION.within("1s", "1d"), "1m"
    )

    expect_gpus: int | None = setting(
        "How many GPUs this node must have, for an alert on fewer.", _COUNT.within("1", "128")
    )

    # --- what only flags and commands set ----------------------------------------------------

    #: Decide, but start no stressor.
    dry_run: bool = False
    #: What each GPU does instead of one workload for ever.
    plan: Plan | None = None
    #: The configuration of single GPUs, by UUID; read it through :meth:`of`.
    each: Mapping[str, Config] = field(default_factory=dict)
    #: The same without sessions and the burn-in of a client, which end.
    lasting: Mapping[str, Config] = field(default_factory=dict)

    @property
    def quick_poll(self) -> float:
        """How often a GPU is read that is held, or that may be occupied next, in seconds."""
        return min(self.poll, QUICK_POLL_S)

    def of(self, uuid: str) -> Config:
        """Return the configuration of one GPU."""
        return self.each.get(uuid, self)


#: All settings, in the order of the help.
SETTINGS: tuple[Setting, ...] = declared_settings(Config)
