"""The settings in effect: reread from all sources, described to clients, and kept in a file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sentinel.api.bodies import ProblemError
from sentinel.api.snapshots import Views
from sentinel.config.gpu_selection import matching
from sentinel.config.model import SETTINGS
from sentinel.config.setting import Scope
from sentinel.config.sources import (
    NAME,
    checked,
    find_file,
    from_environment,
    gather,
    in_effect,
    read_saved,
    text_of,
    unknown_name,
)
from sentinel.errors import ConfigError
from sentinel.host.regular_file import replace_file
from sentinel.protocol.commands import ApiSpec, Given
from sentinel.protocol.problem import Code

#: The length of the beginning of a UUID in a source: `GPU-` and eight digits.
_UUID_LENGTH = 12
_FLAGS = {setting.key: setting.flag for setting in SETTINGS}


# --- the sources ------------------------------------------------------------------------------


def saved_file(spec: ApiSpec) -> Path:
    """Return the file of what clients have saved, in the state folder."""
    return Path(spec.state) / NAME


def of_run_time(given: Iterable[Given]) -> tuple[Given, ...]:
    """Return what flags and clients have given, and neither a file nor a variable."""
    return tuple(value for value in given if value.source.startswith("--"))


def flag_source(key: str, gpu: str | None) -> str:
    """Describe the source of what a client gives."""
    return _FLAGS[key] if gpu is None else f"{_FLAGS[key]} for {gpu[:_UUID_LENGTH]}"


def variable_for(key: str) -> str | None:
    """Return the name of the daemon's environment variable for a setting, or None if unset."""
    given = from_environment(os.environ)
    return next((value.source for value in given if value.key == key), None)


async def reread(
    spec: ApiSpec, run_time: Iterable[Given], saved: Iterable[Given] | None = None
) -> tuple[Given, ...]:
    """Read all sources again, and check the settings.

    Args:
        spec: Has the configuration file and the state folder.
        run_time: What flags and clients have given.
        saved: What clients will have saved; the default is what the file has.

    Raises:
        ConfigError: A key is unknown, a file cannot be read, or a value is invalid.
    """

    def read() -> tuple[Given, ...]:
        # A file that was found at the start is reread; otherwise, there may be one now.
        file = find_file(spec.config, os.environ, Path(os.environ.get("HOME") or "/"))
        kept = read_saved(saved_file(spec)) if saved is None else saved
        sources = gather(run_time, os.environ, file, kept)
        checked(sources)
        return sources.given

    return await asyncio.to_thread(read)  # the files may be on a slow disk


async def write_saved(path: Path, saved: Iterable[Given]) -> None:
    """Replace the file of saved settings; return once it is on disk.

    Raises:
        ProblemError: It cannot be written.
    """
    try:  # in a thread: a disk can be slow
        await asyncio.to_thread(replace_file, path, text_of(saved))
    except OSError as error:
        why = f"{path}: cannot be written: {error.strerror}"
        raise ProblemError(Code.UNAVAILABLE, f"Nothing has changed: {why}.") from error


def check_keys(keys: Iterable[str], *, single: bool = False) -> None:
    """Reject unknown keys; ignoring a misspelt setting is worse than an error.

    Args:
        keys: The keys.
        single: Whether they are for single GPUs.

    Raises:
        ConfigError: A key is unknown, or a single GPU cannot have it.
    """
    scopes = {setting.key: setting.scope for setting in SETTINGS}
    for key in keys:
        if key not in scopes:
            raise unknown_name(f"there is no setting {key!r}", key, scopes)
        if single and scopes[key] is not Scope.GPU:
            raise ConfigError(
                f"{key} cannot be set for single GPUs",
                "`sentinel session start --help-all` lists the settings that can.",
            )


# --- what is in effect ------------------------------------------------------------------------


def with_sessions(given: Iterable[Given], views: Views) -> tuple[Given, ...]:
    """Return all settings, also those with defaults; those of sessions are the last.

    Args:
        given: The settings that the supervisor has accepted.
        views: Has the sessions.
    """
    of_sessions = (
        value
        for session in views.sessions
        if session.suspended is None
        for uuid in session.gpus
        for value in session.given(uuid)
    )
    return in_effect((*given, *of_sessions))


def changed(
    given: Iterable[Given], views: Views, keys: Iterable[str], gpus: tuple[str, ...]
) -> tuple[Given, ...]:
    """Return some settings as they are in effect, those of single GPUs by UUID.

    Args:
        given: The settings that the supervisor has accepted.
        views: Has the GPUs and the sessions.
        keys: The settings.
        gpus: All values of these GPUs; with none, those for all GPUs, and those of each GPU that
            has its own.
    """
    wanted = tuple(keys)
    values = [value for value in with_sessions(given, views) if value.key in wanted]
    common = tuple(value for value in values if value.gpu is None)
    found = () if gpus else common
    for gpu in views.known():
        if gpu.uuid not in (gpus or {view.uuid for view in views.gpus}):
            continue
        own = {value.key: value for value in (common if gpus else ())}
        own |= {v.key: v for v in values if v.gpu is not None and matching(v.gpu, (gpu,))}
        found += tuple(replace(value, gpu=gpu.uuid) for value in own.values())
    return found
