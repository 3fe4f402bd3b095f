"""The settings in effect: reread from all sources, changed by clients, and kept in a file."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from sentinel.api.bodies import ProblemError
from sentinel.api.snapshots import Views
from sentinel.api.supervisor_link import SupervisorLink, check_accepted
from sentinel.config.changes import ChangePlan, Present, describe_changes, plan_change, renamed
from sentinel.config.gpu_selection import present
from sentinel.config.model import EFFECTS
from sentinel.config.sources import (
    NAME,
    Sources,
    checked,
    find_file,
    from_environment,
    in_effect,
    read_file,
    read_saved,
)
from sentinel.errors import ConfigError
from sentinel.host.regular_file import replace_file
from sentinel.protocol.api_types import Settings
from sentinel.protocol.commands import ApiSpec, Caller, CommandReply, Configure, Given, Level
from sentinel.protocol.problem import Code
from sentinel.units import format_indices

Changes = Mapping[str, str | None]


class DaemonSettings:
    """The settings of the daemon, and their changes, one at a time.

    Args:
        spec: The specification of this process.
        views: The supervisor's state, with the GPUs and the sessions.
        supervisor: The channel by which the supervisor gets new settings.
    """

    def __init__(self, spec: ApiSpec, views: Views, supervisor: SupervisorLink) -> None:
        #: The settings that the supervisor has accepted; the files may differ.
        self.given = spec.given
        self._spec = spec
        self._views = views
        self._supervisor = supervisor
        #: Held while settings are read and sent, so that each change starts from the last one.
        self._lock = asyncio.Lock()
        #: The file of what clients have saved.
        self._file = Path(spec.state) / NAME

    def in_effect(self) -> tuple[Given, ...]:
        """Return all settings, also those with defaults; those of sessions are the last."""
        of_sessions = (
            value
            for session in self._views.sessions
            if session.suspended is None
            for uuid in session.gpus
            for value in session.given(uuid)
        )
        return in_effect((*self.given, *of_sessions))

    # --- changes -----------------------------------------------------------------------------

    async def change(
        self,
        by: Caller,
        changes: Changes,
        gpus: tuple[str, ...] = (),
        *,
        save: bool = False,
        names: Mapping[str, str] | None = None,
    ) -> Settings:
        """Reread the files and variables, and apply changes in addition to earlier ones.

        Args:
            by: The caller.
            changes: The new texts by key; None removes what was given.
            gpus: UUIDs; with none, the changes are for all GPUs.
            save: Whether the daemon's own file keeps the changes.
            names: The client's own names of settings by key, for errors.

        Raises:
            ConfigError: A key is unknown, or a setting or a file is invalid; nothing has changed.
            AccessDeniedError: The caller may not set one of them; nothing has changed.
            ProblemError: The supervisor refused the settings, or the file cannot be written;
                nothing has changed. Or the supervisor does not answer; if it accepts later, the
                settings are taken over then.
        """
        known = self._views.known()

        def read_and_plan() -> ChangePlan:
            # A file that was found at the start is reread; otherwise, there may be one now.
            file = find_file(self._spec.config, os.environ)
            sources = Present(
                given=self.given,
                file=() if file is None else read_file(file),
                variables=from_environment(os.environ),
                path=str(self._file),
                saved=read_saved(self._file),
                gpus=known,
                workloads=self.allowed_workloads(by),
            )
            plan = plan_change(changes, gpus, sources, save=save)
            for given in (plan.next_given, plan.given):
                checked(Sources(given=given))
            return plan

        async with self._lock:
            try:
                plan = await asyncio.to_thread(read_and_plan)  # the files may be on a slow disk
            except ConfigError as error:
                raise renamed(error, changes, names or {}) from error
            if plan.texts is None:
                reply = await self._configure(by, plan.given)
            else:
                reply = await self._configure_and_save(by, plan.given, *plan.texts)
            return Settings(
                text=reply.text,
                gpus=gpus,
                settings=self._changed(changes, gpus),
                saved=None if plan.texts is None else str(self._file),
                notes=plan.notes,
                effects=self._effects(changes, reply),
            )

    def allowed_workloads(self, by: Caller) -> tuple[str, ...] | None:
        """Return the workloads that a client may set; None if it may run code as this user."""
        return None if by.level >= Level.OWN else self._spec.access.workloads

    async def _configure_and_save(
        self, by: Caller, given: tuple[Given, ...], present_text: str, text: str
    ) -> CommandReply:
        """Send the settings to the supervisor, and keep them in the daemon's own file.

        They are saved once they were accepted: a daemon must not find a value in its file that it
        refuses.
        """
        # As it is, before a stressor is stopped for what could not be kept.
        await self._write(present_text)
        before = self.given
        reply = await self._configure(by, given)
        try:
            await self._write(text)
        except BaseException:
            with contextlib.suppress(ProblemError):
                await self._configure(by, before)
            raise
        return reply

    def _effects(self, keys: Iterable[str], reply: CommandReply) -> tuple[str, ...]:
        """Describe what keeps the former value of a setting, and which GPUs are released."""
        kept = {EFFECTS[key]: None for key in keys if key in EFFECTS}
        released = [gpu.index for gpu in self._views.gpus if gpu.uuid in reply.gpus]
        verb = "is" if len(released) == 1 else "are"
        text = f"GPU {format_indices(released)} {verb} released."
        return (*kept, *([text] if released else []))

    async def _configure(self, by: Caller, given: tuple[Given, ...]) -> CommandReply:
        """Send settings to the supervisor, and take them over once it accepts them."""

        def take_over(reply: CommandReply) -> None:
            if reply.refused is None:
                self.given = given

        changed = describe_changes(self.given, given, self._views.known())
        return check_accepted(
            await self._supervisor.request(
                Configure, take_over, by=by, given=given, changed=changed
            )
        )

    async def _write(self, text: str) -> None:
        """Replace the file of saved settings; return once it is on disk."""
        try:  # in a thread: a disk can be slow
            await asyncio.to_thread(replace_file, self._file, text)
        except OSError as error:
            why = f"{self._file}: cannot be written: {error.strerror}"
            raise ProblemError(Code.UNAVAILABLE, f"Nothing has changed: {why}.") from error

    def _changed(self, keys: Iterable[str], gpus: tuple[str, ...]) -> tuple[Given, ...]:
        """Return some settings as they are in effect, those of single GPUs by UUID.

        Args:
            keys: The settings.
            gpus: All values of these GPUs; with none, those for all GPUs, and those of each GPU
                that has its own.
        """
        wanted = tuple(keys)
        values = [value for value in self.in_effect() if value.key in wanted]
        common = tuple(value for value in values if value.gpu is None)
        found = () if gpus else common
        for gpu in self._views.known():
            if gpus and gpu.uuid not in gpus:
                continue
            own = {value.key: value for value in (common if gpus else ())}
            own |= {v.key: v for v in values if v.gpu is not None and present(v.gpu, (gpu,))}
            found += tuple(replace(value, gpu=gpu.uuid) for value in own.values())
        return found
