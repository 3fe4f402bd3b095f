"""What daemons have found wrong with GPUs: those that run, and those that have ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sentinel.burnin.checks.evidence import Findings
from sentinel.client import connect
from sentinel.core.faults import describe
from sentinel.errors import ConfigError, SentinelError
from sentinel.host import verified_store
from sentinel.host.daemon_lookup import daemons_sharing, find_shared, locate
from sentinel.host.paths import SOCKETS
from sentinel.host.regular_file import files_set_aside
from sentinel.host.timed_file import FAULTS, Clocks
from sentinel.protocol.api_types import GpuStatus
from sentinel.protocol.views import KnownFaults

#: A plugin may take five seconds in all.
_DAEMON_TIMEOUT_S = 1.0


def places_of(socket: str | None, folder: Path | None) -> tuple[Path, list[str]]:
    """Find the state directory, and the sockets of the daemons that share it.

    Args:
        socket: The path that a user or a script gave.
        folder: The folder of the simulated GPUs, if they are used.

    Raises:
        SentinelError: They cannot be found.
    """
    state = find_shared(folder, socket)
    if socket is not None:
        return state, [socket]
    sockets = daemons_sharing(state, folder)
    with contextlib.suppress(SentinelError):  # several run, and all of them are listed
        sockets.append(locate(None, folder).socket)
    return state, list(dict.fromkeys(sockets))


def gpus_of(sockets: Sequence[str], timeout: float = 10.0) -> Iterator[tuple[str, GpuStatus]]:
    """Yield the GPUs of running daemons, each with the socket; one that does not answer has none.

    Args:
        sockets: Of the daemons.
        timeout: Seconds until each has answered.
    """
    for socket in sockets:
        with contextlib.suppress(SentinelError):
            yield from ((socket, gpu) for gpu in connect(socket, timeout=timeout).status().gpus)


def stored_faults(state: Path) -> tuple[KnownFaults, ...]:
    """Read the faults that the last daemons knew: those of this boot, until a reset.

    Args:
        state: The state directory that they share.

    Raises:
        ConfigError: A file is invalid.
    """
    found: dict[str, KnownFaults] = {}
    for one in (one for path in _files(state) for one in _read(path)):
        before = found.get(one.gpu.uuid)
        found[one.gpu.uuid] = one if before is None else _joined(before, one)
    return tuple(found.values())


def acknowledge_stored(state: Path, uuids: Collection[str]) -> None:
    """Take the XIDs that the last daemons knew as known.

    Args:
        state: The state directory that they share.
        uuids: The GPUs.

    Raises:
        ConfigError: A file is invalid.
        OSError: One cannot be written.
    """
    for path in _files(state):
        faults = _read(path)
        left = [replace(one, xids=()) if one.gpu.uuid in uuids else one for one in faults]
        if left != [*faults]:
            kept = (one for one in left if one.lost or one.xids or one.unread)
            FAULTS.write(path, kept, Clocks.read())


def why_forgotten(state: Path) -> str | None:
    """Explain why what was found earlier is not known, or return None.

    A file of faults that was set aside matters until the boot that it was of has ended.

    Args:
        state: The state directory that daemons share.

    Raises:
        ConfigError: The files cannot be listed.
    """
    now = Clocks.read()
    for kept in (kept for path in _files(state) for kept in files_set_aside(path)):
        with contextlib.suppress(OSError):  # removed meanwhile
            if kept.lstat().st_mtime >= now.wall - now.monotonic:
                return (
                    f"{kept} is damaged: the faults that it had are not known until it is removed"
                )
    return verified_store.why_forgotten(state / verified_store.NAME)


def _files(state: Path) -> list[Path]:
    """List where daemons store faults; those with sockets of their own have folders of their own.

    Raises:
        ConfigError: They cannot be listed.
    """
    try:
        own = sorted((state / SOCKETS).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        own = []
    except OSError as error:
        raise ConfigError(f"{state / SOCKETS} cannot be read: {error.strerror}") from None
    return [folder / FAULTS.name for folder in (state, *own)]


def _read(path: Path) -> tuple[KnownFaults, ...]:
    """Read one of the files.

    Raises:
        ConfigError: It is invalid.
    """
    try:
        return FAULTS.read(path, Clocks.read())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        remedy = "Read it, then remove it: the faults that it has do not count any more."
        raise ConfigError(f"{path} is no file of known faults: {error}", remedy) from None


def _joined(first: KnownFaults, second: KnownFaults) -> KnownFaults:
    """Join what two daemons knew of a GPU; a reset is one only if it came after both."""
    energy = [one for one in (first.energy_j, second.energy_j) if one is not None]
    return replace(
        second,
        lost=first.lost or second.lost,
        xids=tuple(sorted({*first.xids, *second.xids})),
        energy_j=min(energy) if len(energy) > 1 else None,
        unread=first.unread or second.unread,
    )


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the daemons that run, and those that have ended, know of GPUs."""

    #: The GPUs of those that run, each with the socket of its daemon.
    running: tuple[tuple[str, GpuStatus], ...]
    #: What those that have ended knew.
    faults: tuple[KnownFaults, ...] = ()
    #: The verified work of all, by UUID.
    stored: Mapping[str, verified_store.StoredWork] = field(default_factory=dict)
    #: Why what was found earlier is not known of any GPU, or None.
    forgotten: str | None = None
    #: Why it is not known of a GPU that no running daemon has, or None.
    unread: str | None = None


def look_up(state: Path, sockets: Sequence[str], timeout: float = 10.0) -> Known:
    """Collect what daemons know of GPUs.

    Args:
        state: The state directory.
        sockets: Of the daemons that share it.
        timeout: Seconds until each has answered.

    Raises:
        ConfigError: A file of what earlier daemons have found is invalid, and no daemon runs, which
            knows its GPUs itself.
    """
    known = Known(running=tuple(gpus_of(sockets, timeout)), forgotten=why_forgotten(state))
    reads: dict[str, Callable[[], Any]] = {
        "faults": lambda: stored_faults(state),
        "stored": lambda: verified_store.read_for_command(state / verified_store.NAME),
    }
    for name, read in reads.items():
        try:
            known = replace(known, **{name: read()})
        except ConfigError as error:
            if not known.running:
                raise
            known = replace(known, unread=error.what)
    return known


def known_findings(state: Path, sockets: Sequence[str]) -> dict[str, Findings]:
    """Collect what the running daemon of each GPU, or else the last one, knows against it, by UUID.

    Args:
        state: The state directory.
        sockets: Of the daemons that share it.

    Returns:
        The findings; those of "" are of any other GPU.

    Raises:
        ConfigError: What earlier daemons have found cannot be read, and none runs.
    """
    known = look_up(state, sockets, _DAEMON_TIMEOUT_S)
    running = {gpu.uuid: gpu for _, gpu in known.running}
    faults = {before.gpu.uuid: describe(before) for before in known.faults}
    faults |= {uuid: gpu.faults or () for uuid, gpu in running.items()}
    energy = {before.gpu.uuid: before.energy_j for before in known.faults}
    counts = {uuid: verified_store.proof_of(work).wrong for uuid, work in known.stored.items()}
    counts |= {uuid: gpu.verified.wrong for uuid, gpu in running.items() if gpu.verified}
    unknown = known.forgotten or known.unread
    return {
        uuid: Findings(
            faults=tuple(f"{one.text}: {one.remedy}" for one in faults.get(uuid, ())),
            wrong=counts.get(uuid, 0),
            unknown=known.forgotten if uuid in running else unknown,
            energy_j=None if uuid in running else energy.get(uuid),
        )
        for uuid in (*counts.keys() | faults.keys(), *([""] if unknown else ()))
    }
