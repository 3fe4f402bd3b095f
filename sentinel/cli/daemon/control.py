"""Commands that change the running daemon: ``stop``, ``pause``, ``set``, ``session`` and more."""

from __future__ import annotations

import contextlib
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import click

from sentinel.cli.display.gpu_table import user_of
from sentinel.cli.display.log_lines import format_clock
from sentinel.cli.display.output import Table
from sentinel.cli.options import command_options as options
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_classes import GroupedOptions
from sentinel.cli.options.setting_options import for_daemon, key_of, single_gpu_flags
from sentinel.cli.tools.config import setting_line, settings_as_json
from sentinel.client import Client, SessionInfo
from sentinel.config.build import LOAD, without_effect
from sentinel.config.model import SETTINGS
from sentinel.config.setting import Scope
from sentinel.errors import ConfigError, NotRunningError, SentinelError
from sentinel.protocol.commands import Given
from sentinel.units import format_indices, parse_lifetime

if TYPE_CHECKING:
    from sentinel.cli.daemon.start import FirstStressor

T = TypeVar("T")

_WAIT = "After a change of the workload, maximum wait until a stressor is ready"
#: New texts by key; None removes a setting.
_Changes = dict[str, str | None]
#: Changes, each with its GPUs; without any, it is of all.
_Parts = list[tuple[_Changes, Sequence[str]]]
#: In place of a key, it removes every setting that an option gave; of a name, it is every session.
_ALL = "all"
_SESSIONS = Table(("NAME", "GPU", "UNTIL", "BY", "SETTINGS"), flexible=4)
_NO_SESSIONS = "there are no sessions"


@click.command("stop")
@options.wait_option("Maximum wait for the end of the daemon")
@options.asks_daemon
def stop(client: Client, wait: float) -> options.Printed:
    """Release every GPU and end the daemon; `sentinel pause` releases them only."""
    return options.outcome(client.stop(wait))


@click.command("reload")
@options.wait_option(_WAIT, "5m")
@options.asks_daemon
def reload_(client: Client, wait: float) -> options.Printed:
    """Read the settings again, and apply all of them or none.

    Exit code 2 if a setting is invalid; then nothing has changed. After a change of the workload,
    the command waits as `sentinel set` does.
    """
    done, proof = _change_settings(client, client.reload, ["workload"], wait)
    printed = options.outcome(done)
    return replace(printed, notes=[f"the daemon {proof.text}"] if proof.text else [])


@click.command("pause")
@options.gpu_selection
@options.duration(
    "--for", "seconds", "Resume after this time; the default is never.", parse=parse_lifetime
)
@click.option(
    "--release",
    is_flag=True,
    help="Release the driver as well, for a GPU reset or a driver upgrade; only for all GPUs.",
)
@options.wait_option("Maximum wait for free memory")
@options.asks_daemon
def pause(
    client: Client, gpus: tuple[str, ...], seconds: float | None, release: bool, wait: float
) -> options.Printed:
    """Release these GPUs, by default all, and do not occupy them until the pause ends.

    A GPU is selected by nvidia-smi index or a range of them, UUID or a unique prefix of it, or PCI
    address. Exit code 1 if a GPU is still held after --wait.
    """
    return options.outcome(client.pause(gpus or None, seconds=seconds, release=release, wait=wait))


@click.command("resume")
@options.gpu_selection
@options.asks_daemon
def resume(client: Client, gpus: tuple[str, ...]) -> options.Printed:
    """End the pause of these GPUs, by default all."""
    return options.outcome(client.resume(gpus or None))


# --- settings --------------------------------------------------------------------------------


@click.command("set")
@click.argument(
    "changes", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=value_completion.changes
)
@click.option(
    "--unset",
    metavar="KEY,...",
    multiple=True,
    shell_complete=value_completion.keys,
    help="Go back to the value of the file or the default; the same as KEY=. `all` removes all that"
    " options have set, also for single GPUs; with --gpus only for these.",
)
@options.gpus_flag()
@click.option(
    "--save",
    is_flag=True,
    help="Keep the change over a restart, in the daemon's own file. A setting that is fixed at the"
    " start then counts from the next one.",
)
@options.wait_option(_WAIT, "5m")
@options.asks_daemon
def set_(
    client: Client,
    changes: Sequence[str],
    unset: Sequence[str],
    gpus: tuple[str, ...],
    save: bool,
    wait: float,
) -> options.Printed:
    """Change settings of the running daemon; print what is in effect, and from where.

    KEY is that of the configuration file, such as memory.target, or the name of the option, such as
    memory. All other settings stay, and stressors with the same settings continue. Without --save
    the change ends with the daemon. Exit code 2 if a setting is invalid; then nothing has changed.
    After a change of the workload, the command waits as `sentinel start` does: exit code 1 if
    stressors fail, or none is ready within --wait.
    """
    names = [part.strip() for text in unset for part in text.split(",")]
    wanted = _changes(changes, [name for name in names if name != _ALL], saves=save)
    parts: _Parts = [(wanted, gpus)] if wanted else []
    if _ALL in names:
        parts = _without_given(client, wanted, gpus)
        if not parts:
            nothing = ["no option has set anything that a running daemon can change"]
            empty = {**settings_as_json(()), "saved": None, "notes": nothing}
            empty |= {"effects": [], "occupied": None}
            return options.Printed(json=empty, notes=nothing)
    elif not parts:
        raise ConfigError("give at least one KEY=VALUE", "Such as: sentinel set memory=50%")
    results, proof = _change_settings(
        client,
        lambda: [client.set(changes, of or None, save=save) for changes, of in parts],
        {key for changes, _ in parts for key in changes},
        wait,
    )
    result = results[-1]
    # The last change is also in effect where an earlier one is of the same setting.
    earlier = [v for one in results[:-1] for v in one.settings if v.key not in parts[-1][0]]
    values = (*earlier, *result.settings)
    notes = [] if result.saved is None else [f"saved in {result.saved}"]
    effects = list(dict.fromkeys(effect for one in results for effect in one.effects))
    effects += _without_effect(client, {key for changes, _ in parts for key in changes})
    notes += effects
    notes += [f"the daemon {proof.text}"] if proof.text else []
    return options.Printed(
        json={
            **settings_as_json(values),
            "saved": result.saved,
            "notes": result.notes,
            "effects": effects,
            "occupied": proof.occupied,
        },
        lines=_in_effect(client, values),
        notes=[*notes, *(f"sentinel: warning: {note}" for note in result.notes)],
    )


def _change_settings(
    client: Client,
    change: Callable[[], T],
    keys: Iterable[str],
    wait: float,
    stays: str = "The change stays.",
) -> tuple[T, FirstStressor]:
    """Change settings; wait for the first stressor if the workload is one of them."""
    from sentinel.cli.daemon.start import change_workload  # slow to import

    return change_workload(client, change, wait if "workload" in keys else 0, stays)


def _without_effect(client: Client, keys: Iterable[str]) -> tuple[str, ...]:
    """Describe what has no effect after a change of these settings."""
    with contextlib.suppress(SentinelError):  # the change is done, whatever comes now
        if {"workload", *LOAD, "hours", "quiet"} & {*keys}:
            return without_effect(client.settings().settings)
    return ()


def _in_effect(client: Client, values: Sequence[Given]) -> Iterator[str]:
    """Yield the settings that are in effect, each with the index of its GPU if it is for one."""
    single = any(value.gpu for value in values)
    indices = {gpu.uuid: gpu.index for gpu in client.status().gpus} if single else {}
    for value in values:
        gpu = f"GPU {indices.get(value.gpu, value.gpu)}: " if value.gpu else ""
        yield gpu + setting_line(value, value.key).removeprefix("# ")


def _changes(changes: Sequence[str], unset: Sequence[str] = (), *, saves: bool = False) -> _Changes:
    """Return the new texts by key; see :func:`key_of` for ``saves``.

    Raises:
        ConfigError: A setting does not exist, has no value, or is given twice.
    """
    wanted: _Changes = {}
    for key, text in (
        *(_change(text, before, saves=saves) for before, text in pairwise(["", *changes])),
        *((key_of(name, "--unset: ", saves=saves), None) for name in unset),
    ):
        if key in wanted:
            raise ConfigError(f"{key} is given twice")
        wanted[key] = text
    return wanted


def _change(text: str, before: str, *, saves: bool) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if name.isdigit():
        raise ConfigError(f"{text!r} is no setting; GPUs are one list, as in --gpus 0,1")
    if not equals and name[:1].isdigit() and "=" in before:  # no setting begins with a digit
        quoted = shlex.quote(f"{before} {text}")
        raise ConfigError(f"{text!r} is no setting; quote a value with spaces: {quoted}")
    key = key_of(name.strip(), saves=saves)
    if not equals:
        raise ConfigError(f"{text!r} has no value", f"Write {text}=VALUE, or --unset {text}.")
    return key, for_daemon(key, value.strip()) if value.strip() else None


def _without_given(client: Client, wanted: _Changes, gpus: Sequence[str]) -> _Parts:
    """Add the removal of what options gave, and a running daemon can change, to other changes.

    Args:
        client: The client.
        wanted: The other changes.
        gpus: The GPUs of the change; with none, those for all GPUs and for each single one.

    Returns:
        The changes for single GPUs, and those for all.
    """
    changeable = {setting.key for setting in SETTINGS if setting.scope is not Scope.START}
    given = [
        value for value in client.settings().settings if value.by_flag and value.key in changeable
    ]
    chosen = {gpu.uuid for gpu in options.only(client.status(), gpus).gpus}
    single = [value for value in given if value.gpu in chosen]
    removed: _Changes = dict.fromkeys(value.key for value in single)
    if gpus:
        parts: _Parts = [({**removed, **wanted}, gpus)]
    else:
        common: _Changes = dict.fromkeys(value.key for value in given if value.gpu is None)
        parts = [
            (removed, sorted({value.gpu for value in single if value.gpu})),
            ({**common, **wanted}, ()),
        ]
    return [part for part in parts if part[0]]


# --- sessions --------------------------------------------------------------------------------


@click.group("session")
def session() -> None:
    """Give some GPUs settings of their own under a name, and end them by the name."""


@session.command("start", cls=GroupedOptions)
@click.argument("name", metavar="[NAME]", required=False)
@click.argument(
    "changes", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=value_completion.changes
)
@options.gpus_flag()
@options.duration(
    "--for",
    "seconds",
    "End after this time.  [default: until `sentinel session stop`]",
    parse=parse_lifetime,
)
@options.wait_option(_WAIT, "5m")
@options.asks_daemon
@single_gpu_flags
def session_start(
    client: Client,
    name: str | None,
    changes: Sequence[str],
    gpus: tuple[str, ...],
    seconds: float | None,
    wait: float,
    given: Mapping[str, str],
) -> options.Printed:
    """Give the GPUs of --gpus these settings, as KEY=VALUE or as options.

    All other settings are those of the daemon. A GPU can be in one session. Without NAME, a name
    is made up. If no daemon runs, a daemon starts with all other GPUs paused, until `sentinel
    resume`. The session outlives the daemon, and resumes no paused GPU. Exit code 1 if another
    session has the name or a GPU, or if stressors with its workload fail.
    """
    if name is None or "=" in name:
        name, changes = secrets.token_hex(4), (*filter(None, [name]), *changes)
    if not gpus:
        raise ConfigError("name the GPUs of the session: --gpus 0,1 or --gpus all")
    wanted = _changes([*changes, *(f"{key}={text}" for key, text in given.items())])
    settings = {key: text for key, text in wanted.items() if text is not None}
    if empty := wanted.keys() - settings:
        raise ConfigError(f"{', '.join(empty)}: a session needs a value, as in KEY=VALUE")
    with _daemon_for_session(client) as pid:

        def begin() -> SessionInfo:
            got = client.start_session(name, gpus, settings, seconds=seconds)
            if pid is not None:
                client.resume(got.gpus)
            return got

        stays = f"The session stays; `sentinel session stop {name}` ends it."
        got, proof = _change_settings(client, begin, settings, wait, stays)
        if pid is not None and wait:
            from sentinel.cli.daemon.start import wait_for_stressor  # slow to import

            # All other GPUs are paused, which is no reason that helps.
            former = dict.fromkeys(got.gpus, -1)
            proof = wait_for_stressor(client, wait, client.health, former=former)
    end = "" if got.until is None else f", until {format_clock(got.until)}"
    indices = ", ".join(map(str, got.indices))
    how = f": {_settings_of(got)}" if got.settings else f" with {_settings_of(got)}"
    notes = [f"the daemon {proof.text}"] if proof.text else []
    notes.append(f"To end it: sentinel session stop {got.name}")
    if pid is not None:
        notes.append(
            f"started a daemon (pid {pid}) for these GPUs only. `sentinel stop` ends it and its"
            " sessions"
        )
    warnings = [*_paused(client, got), *_without_effect(client, settings)]
    return options.Printed(
        json={"session": got, "occupied": proof.occupied, "warnings": warnings},
        lines=[f"session {got.name} has GPU {indices}{end}{how}"],
        notes=[*notes, *(f"sentinel: warning: {text}" for text in warnings)],
    )


def _paused(client: Client, got: SessionInfo) -> Iterator[str]:
    """Report the paused GPUs of a session, which resumes none."""
    with contextlib.suppress(SentinelError):  # the session is there, whatever comes now
        status = client.status()
        paused = [g.index for g in status.gpus if g.uuid in got.gpus and g.admin == "PAUSED"]
        if paused:
            indices = format_indices(paused, separator=",")
            yield f"paused: GPU {indices}; `sentinel resume {indices}` ends that"


@contextlib.contextmanager
def _daemon_for_session(client: Client) -> Iterator[int | None]:
    """Start a daemon if none runs, and yield its PID; it is ended if the session is refused."""
    pid = None
    try:
        client.status()
    except NotRunningError:
        from sentinel.cli.daemon.start import start_paused  # slow to import

        pid = None if client.address.host else start_paused(client.address.socket)
        if pid is None:
            raise
    try:
        yield pid
    except SentinelError:
        if pid is not None and not client.sessions():
            with contextlib.suppress(SentinelError):  # the first error is the reason
                client.stop()
        raise


@session.command("list")
@options.asks_daemon
def session_list(client: Client) -> options.Printed:
    """List the sessions with their GPUs, settings and ends."""
    found = client.sessions()
    return options.listing(_SESSIONS, list(map(_session_row, found)), _NO_SESSIONS, sessions=found)


@session.command("stop")
@click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, shell_complete=value_completion.sessions
)
@options.asks_daemon
def session_stop(client: Client, names: tuple[str, ...]) -> options.Printed:
    """End sessions, or `all`: their GPUs return to the daemon's settings."""
    known = [one.name for one in client.sessions()] if _ALL in names else names
    return options.each(client.stop_session, known, "names", _NO_SESSIONS)


def _session_row(found: SessionInfo) -> tuple[str, ...]:
    until = "no end" if found.until is None else format_clock(found.until)
    suspended = "" if found.suspended is None else f"suspended, {found.suspended}: "
    indices = ",".join(map(str, found.indices))
    return found.name, indices, until, user_of(found.holder), f"{suspended}{_settings_of(found)}"


def _settings_of(found: SessionInfo) -> str:
    pairs = [f"{key}={text}" for key, text in found.settings.items()]
    return " ".join(pairs) or "the daemon's settings"
