"""New settings for a daemon that goes on: read anew, given, or single ones changed."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter

from sentinel.api.context import ApiContext
from sentinel.api.requests import EmptyRequest, RestartRequest, SettingsChange
from sentinel.api.routes.dependencies import By, ContextDep, may
from sentinel.api.state.settings_reload import check_keys
from sentinel.api.state.supervisor_link import accepted
from sentinel.config.model import SETTINGS
from sentinel.config.setting import Scope
from sentinel.protocol.api_types import Code, Outcome, Settings, SettingValue
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import CommandReply, GivenSetting, Resume

router = APIRouter(tags=["settings"])


@router.get("/v1/settings", responses=may())
async def read_settings(context: ContextDep) -> Settings:
    """Show all settings, and by whom each was set."""
    held = context.settings.held
    given = _values(held.given)
    defaults = {one.key: SettingValue(text=one.default, source=None) for one in SETTINGS}
    singles = {one.selector: _values(one.given) for one in held.overrides}
    return Settings(settings={**defaults, **given}, gpus=singles)


@router.patch("/v1/settings", responses=may(Code.INVALID, Code.CONFLICT))
async def change_settings(context: ContextDep, by: By, wish: SettingsChange) -> Outcome:
    """Change single settings, and keep all others; null takes a flag back.

    The file is read anew. Stressors for which nothing changes go on, and nothing else is occupied
    than before. Where a setting is wrong, or does not fit the others, all goes on as before.
    """
    return Outcome(text=(await change(context, by, wish.settings)).text)


@router.post("/v1/reload", responses=may(Code.INVALID, Code.CONFLICT))
async def reload(context: ContextDep, by: By, _: EmptyRequest | None = None) -> Outcome:
    """Read the settings anew, and take over all of them or, where one is wrong, none."""
    return Outcome(text=(await change(context, by, {})).text)


@router.post("/v1/restart", responses=may(Code.INVALID, Code.CONFLICT))
async def restart(context: ContextDep, by: By, wish: RestartRequest | None = None) -> Outcome:
    """Take over new settings, and occupy anew with them.

    Stressors for which they change something end, and start again. Where a setting is wrong, all
    goes on as before.
    """
    new_flags = (wish or RestartRequest()).settings
    async with context.reconfiguring:
        held = context.settings.flags
        # What is settled for as long as the daemon lives need not be said again.
        settled = {
            one.key: held[one.key]
            for one in SETTINGS
            if one.scope is Scope.START and one.key in held
        }
        flags = held if new_flags is None else settled | new_flags
        answer = accepted(await context.configure(by, flags))
        await context.channel.order(Resume, by=by)
    return Outcome(text=answer.text)


async def change(
    context: ApiContext, by: Caller, changes: Mapping[str, str | None]
) -> CommandReply:
    """Take over these flags over those that hold; ``None`` takes one back.

    Raises:
        ConfigError: A key is none, or a value is not allowed; nothing has changed.
        ProblemError: The supervisor refused, or does not answer.
    """
    async with context.reconfiguring:
        check_keys(changes)  # also of those that are to be taken back
        merged = {**context.settings.flags, **changes}
        flags = {key: text for key, text in merged.items() if text is not None}
        return accepted(await context.configure(by, flags))


def _values(given: tuple[GivenSetting, ...]) -> dict[str, SettingValue]:
    return {value.key: SettingValue(text=value.text, source=value.source) for value in given}
