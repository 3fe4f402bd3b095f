"""The table of everything that can be set: its names, what is allowed, and what it does.

Flags, variables, keys of the file, the help text and the checks all follow from a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sentinel.units import parse_duration, parse_memory, parse_names, parse_size

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
        key="workload",
        field="workload",
        flag="--workload",
        metavar="NAME[:key=value,...]",
        help="What to do with the memory: elementwise, gemm, hold, one of yours, module:attribute.",
        parse=str,
        default="elementwise",
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
)
