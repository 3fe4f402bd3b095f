"""Sessions in a file, so that they outlive the daemon and a reboot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sentinel.host.stores.timed_file import (
    Clocks,
    Stored,
    TimedFile,
    restored_fields,
    stored_fields,
)
from sentinel.protocol.views import Session


@dataclass(frozen=True, kw_only=True)
class StoredSession(Stored):
    """One session in the file."""

    name: str
    gpus: tuple[str, ...]
    #: The texts of its settings, by key.
    settings: Mapping[str, str]


def _store(one: Session, clocks: Clocks) -> StoredSession:
    return StoredSession(
        name=one.name, gpus=one.gpus, settings=one.settings, **stored_fields(one, clocks)
    )


def _restore(one: StoredSession, clocks: Clocks) -> Session:
    return Session(
        name=one.name, gpus=one.gpus, settings=one.settings, **restored_fields(one, clocks)
    )


#: The file of sessions.
SESSIONS = TimedFile[Session, StoredSession](
    name="sessions.json",
    what="sessions",
    kind=StoredSession,
    store=_store,
    restore_one=_restore,
    version=1,
)
