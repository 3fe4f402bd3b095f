"""The settings of a running daemon: read, reload, replace, or change single ones."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter

from sentinel.api.context import ApiContext
from sentinel.api.requests import EmptyRequest, RestartRequest, SettingsChange
from sentinel.api.routes.dependencies import By, ContextDep, problems
from sentinel.api.state.settings_reload import check_keys
from sentinel.api.state.supervisor_link import check_accepted
from sentinel.config.model import SETTINGS
from sentinel.protocol.api_types import Outcome, Settings, SettingValue
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import CommandReply, GivenSetting, Resume
from sentinel.protocol.problem import Code

router = APIRouter(tags=["settings"])

_CHANGE = problems(Code.INVALID, Code.CONFLICT)


@router.get("/v1/settings", responses=problems())
async def read_settings(context: ContextDep) -> Settings:
    """Read all settings, and the source of each."""
    current = context.settings.current
    defaults = {one.key: SettingValue(text=one.default, source=None) for one in SETTINGS}
    overrides = {one.selector: _values(one.given) for one in current.overrides}
    return Settings(settings={**defaults, **_values(current.given)}, gpus=overrides)


@router.patch("/v1/settings", responses=_CHANGE)
async def change_settings(context: ContextDep, by: By, body: SettingsChange) -> Outcome:
    """Change single settings and keep all others; null removes a flag.

    The file is reread. Stressors whose settings do not change continue, and no further GPU is
    occupied. If a setting is invalid, alone or with the others, nothing changes.
    """
    return Outcome(text=(await change(context, by, body.settings)).text)


@router.post("/v1/reload", responses=_CHANGE)
async def reload(context: ContextDep, by: By, _: EmptyRequest | None = None) -> Outcome:
    """Reread the settings, and apply all of them or, if one is invalid, none."""
    return Outcome(text=(await change(context, by, {})).text)


@router.post("/v1/restart", responses=_CHANGE)
async def restart(context: ContextDep, by: By, body: RestartRequest | None = None) -> Outcome:
    """Change single settings and keep all others, and occupy GPUs; null removes a flag.

    The file is reread. Stressors with changed settings end, and start again. If a setting is
    invalid, nothing changes.
    """
    changes = (body or RestartRequest()).settings or {}
    async with context.settings_lock:
        reply = await _change(context, by, changes)
        await context.supervisor.execute(Resume, by=by)
    return Outcome(text=reply.text)


async def change(
    context: ApiContext, by: Caller, changes: Mapping[str, str | None]
) -> CommandReply:
    """Apply these flags in addition to the current ones; ``None`` removes a flag.

    Raises:
        ConfigError: A key is unknown, or a value is invalid; nothing has changed.
        ProblemError: The supervisor refused the settings, or does not answer.
    """
    async with context.settings_lock:
        return await _change(context, by, changes)


async def _change(
    context: ApiContext, by: Caller, changes: Mapping[str, str | None]
) -> CommandReply:
    """Apply changes as :func:`change` does; the caller holds the lock of the settings."""
    check_keys(changes)  # removed flags have a key, too
    merged = {**context.settings.flags, **changes}
    flags = {key: text for key, text in merged.items() if text is not None}
    return check_accepted(await context.configure(by, flags))


def _values(given: tuple[GivenSetting, ...]) -> dict[str, SettingValue]:
    return {value.key: SettingValue(text=value.text, source=value.source) for value in given}
