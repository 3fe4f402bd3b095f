"""The settings in effect: reread from all sources, changed by clients, and kept in a file."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from sentinel.api.bodies import ProblemError
from sentinel.api.snapshots import Views
from sentinel.api.supervisor_link import SupervisorLink, check_accepted
from sentinel.config.build import with_changes
from sentinel.config.gpu_selection import present, select_gpus
from sentinel.config.model import EFFECTS, SETTINGS
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
from sentinel.config.specs import parse_workload
from sentinel.errors import ConfigError, NoSuchGpuError
from sentinel.host.regular_file import replace_file
from sentinel.protocol.api_types import Settings
from sentinel.protocol.commands import ApiSpec, Caller, CommandReply, Configure, Given, Level
from sentinel.protocol.problem import Code
from sentinel.units import format_indices

#: The length of the beginning of a UUID in a source: `GPU-` and eight digits.
_UUID_LENGTH = 12
_BY_KEY = {setting.key: setting for setting in SETTINGS}
#: Why a client may not set something.
_TRUSTED = (
    "{what} names code or a file, so only the daemon's own user and root may set it, over the Unix"
    " socket."
)
#: Why a client may not save something.
_FIXED = (
    "{what} is fixed at the start of the daemon, so only the daemon's own user and root may save"
    " it, over the Unix socket."
)

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
        self, by: Caller, changes: Changes, gpus: tuple[str, ...] = (), *, save: bool = False
    ) -> Settings:
        """Reread the files and variables, and apply changes in addition to earlier ones.

        Args:
            by: The caller.
            changes: The new texts by key; None removes what was given.
            gpus: UUIDs; with none, the changes are for all GPUs.
            save: Whether the daemon's own file keeps the changes.

        Raises:
            ConfigError: A key is unknown, or a setting or a file is invalid; nothing has changed.
            ProblemError: The caller may not set one of them, the supervisor refused the settings,
                or the file cannot be written; nothing has changed. Or the supervisor does not
                answer; if it accepts later, the settings are taken over then.
        """
        async with self._lock:
            self._check(by, changes, gpus)
            if save:
                return await self._change_and_save(by, changes, gpus)
            reply = await self._configure(
                by, with_changes(self._of_run_time(), changes, gpus, _flag_source)
            )
            return Settings(
                text=reply.text,
                gpus=gpus,
                settings=self._changed(changes, gpus),
                effects=self._effects(changes, reply),
            )

    async def _change_and_save(
        self, by: Caller, changes: Changes, gpus: tuple[str, ...]
    ) -> Settings:
        """Apply changes, and keep them in the daemon's own file.

        A value is saved once it was accepted: a daemon must not find one in its file that it
        refuses.
        """
        _check_kept(by, changes)
        before, saved = self._of_run_time(), await asyncio.to_thread(read_saved, self._file)
        # As it is, before a stressor is stopped for what could not be kept.
        await self._write(saved)
        new = with_changes(saved, changes, gpus, partial(_saved_source, self._file))
        # In effect from the file; but a variable of the daemon overrides that, until it is unset.
        variables = {value.key: value.source for value in from_environment(os.environ)}
        hidden = [] if gpus else [key for key in changes if key in variables]
        # What is fixed at the start stays as it was given.
        now = {key: text for key, text in changes.items() if not _is_fixed(key)}
        above = {key: text if key in hidden else None for key, text in now.items()}
        run_time = with_changes(before, above, gpus, _flag_source)
        reply = await self._configure(by, run_time, new)
        try:
            await self._write(new)
        except BaseException:
            with contextlib.suppress(ProblemError):
                await self._configure(by, before, saved)
            raise
        given = [] if gpus else [value.key for value in before if value.gpu is None]
        notes = [
            f"{variables[key]} is set for the daemon, and overrides what is saved of {key}."
            for key in hidden
        ]
        notes += [
            f"{_flag_source(key, None)} was given before; a daemon that is started with it again"
            f" does not use what is saved of {key}."
            for key in changes
            if key in given and key not in hidden
        ]
        notes += [
            f"{key} is fixed while sentinel runs: what is saved of it counts from the next start"
            " (sentinel restart)."
            for key in changes
            if _is_fixed(key)
        ]
        if selector := changes.get("gpus"):
            try:
                select_gpus([selector], self._views.known())
            except NoSuchGpuError as error:  # the host may have more GPUs than the daemon
                why = "if the host has none either, the next start fails"
                notes.append(f"gpus: {error.what} among the daemon's; {why}.")
        return Settings(
            text=reply.text,
            gpus=gpus,
            settings=self._changed(changes, gpus),
            saved=str(self._file),
            notes=tuple(notes),
            effects=self._effects(changes, reply),
        )

    def _effects(self, keys: Iterable[str], reply: CommandReply) -> tuple[str, ...]:
        """Describe what keeps the former value of a setting, and which GPUs are released."""
        kept = {EFFECTS[key]: None for key in keys if key in EFFECTS}
        released = [gpu.index for gpu in self._views.gpus if gpu.uuid in reply.gpus]
        verb = "is" if len(released) == 1 else "are"
        text = f"GPU {format_indices(released)} {verb} released."
        return (*kept, *([text] if released else []))

    async def _configure(
        self, by: Caller, run_time: Iterable[Given], saved: Iterable[Given] | None = None
    ) -> CommandReply:
        """Read all sources again, and send the settings to the supervisor.

        Args:
            by: The caller.
            run_time: What flags and clients have given.
            saved: What clients will have saved; the default is what the file has.
        """

        def read() -> tuple[Given, ...]:
            # A file that was found at the start is reread; otherwise, there may be one now.
            home = Path(os.environ.get("HOME") or "/")
            file = find_file(self._spec.config, os.environ, home)
            kept = read_saved(self._file) if saved is None else saved
            checked(gather(run_time, os.environ, file, kept))  # as the next daemon reads it
            sources = gather(run_time, os.environ, file, self._of_this_run(kept))
            checked(sources)
            return sources.given

        def take_over(reply: CommandReply) -> None:
            if reply.refused is None:
                self.given = new

        new = await asyncio.to_thread(read)  # the files may be on a slow disk
        return check_accepted(
            await self._supervisor.request(Configure, take_over, by=by, given=new)
        )

    def _of_this_run(self, kept: Iterable[Given]) -> Iterator[Given]:
        """Replace saved values that are fixed at the start by those with which the daemon began."""
        yield from (value for value in kept if not _is_fixed(value.key))
        for value in self.given:
            if _is_fixed(value.key) and value.source == _saved_source(self._file, value.key, None):
                yield value

    async def _write(self, saved: Iterable[Given]) -> None:
        """Replace the file of saved settings; return once it is on disk."""
        try:  # in a thread: a disk can be slow
            await asyncio.to_thread(replace_file, self._file, text_of(saved))
        except OSError as error:
            why = f"{self._file}: cannot be written: {error.strerror}"
            raise ProblemError(Code.UNAVAILABLE, f"Nothing has changed: {why}.") from error

    def _of_run_time(self) -> tuple[Given, ...]:
        """Return what flags and clients have given, and neither a file nor a variable."""
        return tuple(value for value in self.given if value.by_flag)

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

    # --- permission --------------------------------------------------------------------------

    def _check(self, by: Caller, changes: Changes, gpus: tuple[str, ...]) -> None:
        """Check the keys, also of what is removed, and what this client may set."""
        check_keys(changes, single=bool(gpus))
        for gpu in gpus or (None,):
            before = {value.key: value.text for value in self._of_run_time() if value.gpu == gpu}
            self.check_trust(by, changes, before)

    def check_trust(self, by: Caller, changes: Changes, before: Mapping[str, str]) -> None:
        """Check what a client sets that might not run code as this user.

        Args:
            by: The caller.
            changes: The new texts by key; None removes one.
            before: The present texts of the same keys, which may stay.

        Raises:
            ProblemError: A new value names code or a file.
        """
        for key, text in changes.items():
            if not _BY_KEY[key].form.trusted or text in {None, before.get(key)}:
                continue
            if _BY_KEY[key].field == "workload":
                self.check_workload(by, str(text), key)
            elif by.level < Level.OWN:
                raise ProblemError(Code.FORBIDDEN, _TRUSTED.format(what=key))

    def check_workload(self, by: Caller, text: str, what: str) -> None:
        """Check a workload that a client sets who might not run code as this user.

        Args:
            by: The caller.
            text: The workload, as ``--workload`` takes it.
            what: What names it.

        Raises:
            ProblemError: The administrator has not listed it.
        """
        allowed = self._spec.access.workloads
        if by.level < Level.OWN and parse_workload(text)[0] not in allowed:
            why = _TRUSTED.format(what=what)
            why += f" Other clients may set {', '.join(allowed) or 'none'} (--access-workloads)."
            raise ProblemError(Code.FORBIDDEN, why)


def check_keys(keys: Iterable[str], *, single: bool = False) -> None:
    """Reject unknown keys; ignoring a misspelt setting is worse than an error.

    Args:
        keys: The keys.
        single: Whether they are for single GPUs.

    Raises:
        ConfigError: A key is unknown, or a single GPU cannot have it.
    """
    for key in keys:
        if key not in _BY_KEY:
            raise unknown_name(f"there is no setting {key!r}", key, _BY_KEY)
        if single and _BY_KEY[key].scope is not Scope.GPU:
            raise ConfigError(
                f"{key} cannot be set for single GPUs",
                "`sentinel session start --help-all` lists the settings that can.",
            )


def _check_kept(by: Caller, changes: Iterable[str]) -> None:
    """Check that a client may keep settings for the next daemon, which reads them at its start.

    What is fixed at the start would be kept over the administrator's file, whose next daemon is to
    have another value, for example fewer rights of this very client.

    Raises:
        ProblemError: One is fixed at the start, and the client is not the daemon's user.
    """
    kept = [key for key in changes if _is_fixed(key)]
    if by.level < Level.OWN and kept:
        raise ProblemError(Code.FORBIDDEN, _FIXED.format(what=kept[0]))


def _is_fixed(key: str) -> bool:
    """Check for a setting that is fixed at the start of the daemon."""
    return _BY_KEY[key].scope is Scope.START


def _flag_source(key: str, gpu: str | None) -> str:
    """Describe the source of what a client gives."""
    flag = _BY_KEY[key].flag
    return flag if gpu is None else f"{flag} for {gpu[:_UUID_LENGTH]}"


def _saved_source(path: Path, key: str, gpu: str | None) -> str:
    return f"{path}: {key}" if gpu is None else f"{path}: gpu.{gpu}.{key}"
