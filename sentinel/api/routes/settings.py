"""The settings of a running daemon: read, reload, replace, or change single ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from fastapi import APIRouter

from sentinel.api.bodies import EmptyRequest, SettingsChange
from sentinel.api.context import ApiContext
from sentinel.api.routes.dependencies import By, ContextDep, problems
from sentinel.api.settings import (
    changed,
    check_keys,
    flag_source,
    of_run_time,
    saved_file,
    variable_for,
    with_sessions,
    write_saved,
)
from sentinel.api.supervisor_link import check_accepted
from sentinel.config.build import with_changes
from sentinel.config.sources import read_saved
from sentinel.protocol.api_types import Outcome
from sentinel.protocol.commands import Caller, CommandReply
from sentinel.protocol.problem import Code
from sentinel.protocol.settings_types import Settings

router = APIRouter(tags=["settings"])

_CHANGE = problems(Code.INVALID, Code.CONFLICT)
_CHANGE_SOME = problems(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU)


@router.get("/v1/settings", responses=problems())
async def read_settings(context: ContextDep) -> Settings:
    """Read all settings, and the source of each; those of a session are among its GPUs'."""
    return Settings(settings=with_sessions(context.given, context.views))


@router.patch("/v1/settings", responses=_CHANGE_SOME)
async def change_settings(context: ContextDep, by: By, body: SettingsChange) -> Settings:
    """Change single settings, of all GPUs or of some, and keep all others; null removes a flag.

    The files are reread. Stressors whose settings do not change continue, and no further GPU is
    occupied. If a setting is invalid, alone or with the others, nothing changes. With `save`, the
    change is also in the daemon's own file, which overrides the configuration file, and null
    removes it there.
    """
    gpus = context.views.select(body.gpus)
    async with context.settings_lock:
        if body.save:
            return await _change_and_save(context, by, body.settings, gpus)
        reply = await _change(context, by, body.settings, gpus)
    now = changed(context.given, context.views, body.settings, gpus)
    return Settings(text=reply.text, gpus=gpus, settings=now)


@router.post("/v1/reload", responses=_CHANGE)
async def reload(context: ContextDep, by: By, _: EmptyRequest | None = None) -> Outcome:
    """Reread the settings, and apply all of them or, if one is invalid, none."""
    return Outcome(text=(await change(context, by, {})).text)


async def change(
    context: ApiContext, by: Caller, changes: Mapping[str, str | None]
) -> CommandReply:
    """Apply these flags in addition to the current ones; ``None`` removes a flag.

    Raises:
        ConfigError: A key is unknown, or a value is invalid; nothing has changed.
        ProblemError: The caller may not set one of them, the supervisor refused the settings, or
            does not answer.
    """
    async with context.settings_lock:
        return await _change(context, by, changes)


async def _change(
    context: ApiContext,
    by: Caller,
    changes: Mapping[str, str | None],
    gpus: tuple[str, ...] = (),
) -> CommandReply:
    """Apply changes as :func:`change` does, for some GPUs; the caller holds the settings' lock."""
    _check(context, by, changes, gpus)
    run_time = with_changes(of_run_time(context.given), changes, gpus, flag_source)
    return check_accepted(await context.configure(by, run_time))


async def _change_and_save(
    context: ApiContext, by: Caller, changes: Mapping[str, str | None], gpus: tuple[str, ...]
) -> Settings:
    """Apply changes, and keep them in the daemon's own file.

    A value is saved once it was accepted: a daemon must not find one in its file that it refuses.

    Raises:
        ConfigError: As of :func:`change`; also if the file is invalid.
        ProblemError: As of :func:`change`; also if the file cannot be written. Nothing has changed
            then.
    """
    _check(context, by, changes, gpus)
    context.check_kept(by, changes)
    path = saved_file(context.spec)
    before, saved = of_run_time(context.given), await asyncio.to_thread(read_saved, path)
    # As it is, before a stressor is stopped for what could not be kept.
    await write_saved(path, saved)
    new = with_changes(saved, changes, gpus, partial(_saved_source, path))
    # In effect from the file; but a variable of the daemon overrides that, until it is unset.
    variables = {} if gpus else {key: variable_for(key) for key in changes}
    hidden = [key for key in changes if variables.get(key) is not None]
    above = {key: text if key in hidden else None for key, text in changes.items()}
    run_time = with_changes(before, above, gpus, flag_source)
    reply = check_accepted(await context.configure(by, run_time, new))
    try:
        await write_saved(path, new)
    except BaseException:
        await context.configure(by, before, saved)
        raise
    given = [] if gpus else [value.key for value in before if value.gpu is None]
    notes = [
        f"{variables[key]} is set for the daemon, and overrides what is saved of {key}."
        for key in hidden
    ]
    notes += [
        f"{flag_source(key, None)} was given before; a daemon that is started with it again does"
        f" not use what is saved of {key}."
        for key in changes
        if key in given and key not in hidden
    ]
    return Settings(
        text=reply.text,
        gpus=gpus,
        settings=changed(context.given, context.views, changes, gpus),
        saved=str(path),
        notes=tuple(notes),
    )


def _saved_source(path: Path, key: str, gpu: str | None) -> str:
    return f"{path}: {key}" if gpu is None else f"{path}: gpu.{gpu}.{key}"


def _check(
    context: ApiContext, by: Caller, changes: Mapping[str, str | None], gpus: tuple[str, ...]
) -> None:
    """Check the keys, also of what is removed, and what this client may set.

    Raises:
        ConfigError: A key is unknown, or a single GPU cannot have it.
        ProblemError: The caller may not set one of them.
    """
    check_keys(changes, single=bool(gpus))
    run_time = of_run_time(context.given)
    for gpu in gpus or (None,):
        before = {value.key: value.text for value in run_time if value.gpu == gpu}
        context.check_trust(by, changes, before)
