"""Values that a shell completes: GPUs, workloads, levels, runs, reservations and words of settings.

A completion never fails and never waits: what cannot be found out at once is not offered.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sentinel.errors import SentinelError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
#: The values of a completion, each with what it is.
_Rows = Iterable[tuple[str, str]]

#: How long the daemon may take to answer, in seconds.
_TIMEOUT_S = 0.5
#: Where NVIDIA's driver lists its GPUs, by PCI address.
_DRIVER = Path("/proc/driver/nvidia/gpus")
#: A metavar that is a choice of words, such as kill|ask.
_CHOICE = re.compile(r"[a-z]+(?:\|[a-z]+)+")


def gpus(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the last GPU of a list: index, UUID or PCI address, with its model and state."""
    from sentinel.client.requester import JsonView
    from sentinel.protocol.rules import gpu_state

    rows: list[tuple[str, str]] = []
    by_uuid: list[tuple[str, str]] = []
    for fields in _status(ctx).get("gpus", ()):
        gpu: Any = JsonView(fields)
        about = f"{gpu.name}, {gpu_state(gpu)}"
        rows.append((str(gpu.index), about))
        by_uuid.append((gpu.uuid, about))
    if not rows:
        rows = _of_driver()
    last = incomplete.rpartition(",")[2]
    if "gpu".startswith(last[:3].lower()) and last:  # UUIDs are long: only where one has begun
        rows += by_uuid
    if "," not in incomplete:
        rows.append(("all", "every GPU"))
    return _items(rows, incomplete, chosen=incomplete.split(",")[:-1])


def _completion(find: Callable[[click.Context], _Rows], otherwise: str | None = None) -> _Complete:
    """Return the completion of values, and of what else there may be: a ``file`` or a ``dir``."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = _items(find(ctx), incomplete)
        return found or ([CompletionItem(incomplete, type=otherwise)] if otherwise else [])

    return complete


def _workloads(_: click.Context) -> _Rows:
    from sentinel.config.specs import is_selectable, registered

    return [(one.name, one.target) for one in filter(is_selectable, registered())]


def _levels(_: click.Context) -> _Rows:
    from sentinel.burnin.levels import LEVELS

    return [(level, "a shipped plan") for level in LEVELS]


def _runs(_: click.Context) -> _Rows:
    from sentinel.host.daemon_lookup import find_shared
    from sentinel.host.last_verdicts import RUNS

    with contextlib.suppress(OSError, SentinelError):
        names = sorted((run.name for run in (find_shared() / RUNS).iterdir()), reverse=True)
        return [(name, "") for name in names]
    return []


def _states(_: click.Context) -> _Rows:
    from sentinel.cli.display.gpu_table import GPUS

    return [(name, "") for name in sorted({*GPUS.styles, "idle"})]


def _of_status(listed: str, name: str, about: Callable[[Any], str]) -> _Complete:
    """Return the completion of what a status lists, by one of its fields."""
    return _completion(
        lambda ctx: ((row[name], about(row)) for row in _status(ctx).get(listed, ()))
    )


#: The name of an installed workload; a level of a burn-in or a TOML file.
workloads = _completion(_workloads)
plans = _completion(_levels, "file")
#: The name of a recorded burn-in, newest first, or a folder; the state of a GPU.
runs = _completion(_runs, "dir")
states = _completion(_states)
#: The id of a reservation, that of an allocation, and the name of a session.
reservations = _of_status("reservations", "id", lambda row: row.get("reason", ""))
allocations = _of_status("allocations", "id", lambda row: f"{row.get('size', 0)} bytes")
sessions = _of_status(
    "sessions", "name", lambda row: f"GPU {','.join(map(str, row.get('indices', ())))}"
)
#: The key of a setting that a running daemon can change.
keys = _completion(lambda _: _changeable())


def changes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete ``KEY=VALUE``: the key, and the words of its value."""
    from click.shell_completion import CompletionItem

    from sentinel.config.model import SETTINGS

    key, equals, value = incomplete.partition("=")
    if not equals:
        return _items([(f"{name}=", about) for name, about in _changeable()], incomplete)
    form = next(
        (setting.form.metavar for setting in SETTINGS if key in {setting.key, setting.flag[2:]}), ""
    )
    complete = of_setting(key, form)
    found = complete(ctx, param, value) if complete is not None else []
    return [CompletionItem(f"{key}={item.value}", help=item.help) for item in found]


def _changeable() -> list[tuple[str, str]]:
    """List the settings that a running daemon can change, with their help."""
    from sentinel.config.model import SETTINGS
    from sentinel.config.setting import Scope

    return [(setting.key, setting.help) for setting in SETTINGS if setting.scope is not Scope.START]


def of_setting(key: str, metavar: str) -> _Complete | None:
    """Return the completion of a setting, or None if its value is free."""
    if key == "gpus":
        return gpus
    if key in {"workload", "access.workloads"}:
        return workloads
    if _CHOICE.fullmatch(metavar) is None:
        return None

    return _completion(lambda _: ((word, "") for word in metavar.split("|")))


def _items(
    rows: Iterable[tuple[str, str]], incomplete: str, chosen: Sequence[str] = ()
) -> list[CompletionItem]:
    """Build the values that begin as typed; a list keeps what was chosen before."""
    from click.shell_completion import CompletionItem

    before, comma, last = incomplete.rpartition(",")
    return [
        CompletionItem(f"{before}{comma}{value}", help=about or None)
        for value, about in rows
        if value.lower().startswith(last.lower()) and value not in chosen
    ]


def _status(ctx: click.Context) -> dict[str, Any]:
    """Request the status of the daemon that the options so far name; empty without an answer."""
    from sentinel.client.requester import Requester, find_address
    from sentinel.host.daemon_lookup import simulated_folder

    try:
        address = find_address(
            ctx.params.get("socket"),
            simulated=simulated_folder(chosen=bool(ctx.params.get("simulated"))),
        )
        return Requester(address, timeout=_TIMEOUT_S).request("GET", "/v1/status")
    except SentinelError:
        return {}


def _of_driver() -> list[tuple[str, str]]:
    """List the PCI addresses of the driver's GPUs."""
    try:
        return [(gpu.name, "") for gpu in sorted(_DRIVER.iterdir())]
    except OSError:
        return []
