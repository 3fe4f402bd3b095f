"""What daemons have found wrong with GPUs: those that run, and those that have ended."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

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


def acknowledge_stored(state: Path, uuids: Collection[str]) -> list[str]:
    """Take the XIDs that the last daemons knew as known; return the GPUs that had some.

    Args:
        state: The state directory that they share.
        uuids: The GPUs.

    Raises:
        ConfigError: A file is invalid.
        OSError: One cannot be written.
    """
    done: dict[str, None] = {}
    for path in _files(state):
        faults = _read(path)
        here = [one.gpu.uuid for one in faults if one.xids and one.gpu.uuid in uuids]
        if here:
            left = [replace(one, xids=()) if one.gpu.uuid in here else one for one in faults]
            kept = (one for one in left if one.lost or one.xids or one.unread)
            FAULTS.write(path, kept, Clocks.read())
        done |= dict.fromkeys(here)
    return list(done)


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
        raise ConfigError(f"{path} is no file of known faults: {error}") from None


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


@contextlib.contextmanager
def ignored_beside(running: Sequence[object]) -> Iterator[None]:
    """Ignore a file that is invalid if daemons run, which know their GPUs themselves.

    Raises:
        ConfigError: It is, and none runs.
    """
    try:
        yield
    except ConfigError:
        if not running:
            raise


def known_findings(state: Path, sockets: Sequence[str]) -> dict[str, Findings]:
    """Collect what the running daemon of each GPU, or else the last one, knows against it, by UUID.

    Args:
        state: The state directory.
        sockets: Of the daemons that share it.

    Raises:
        ConfigError: What earlier daemons have found cannot be read, and none runs.
    """
    running = [gpu for _, gpu in gpus_of(sockets, _DAEMON_TIMEOUT_S)]
    earlier: tuple[KnownFaults, ...] = ()
    stored: dict[str, verified_store.StoredWork] = {}
    with ignored_beside(running):
        earlier = stored_faults(state)
    with ignored_beside(running):
        stored = verified_store.read_for_command(state / verified_store.NAME)
    faults = {before.gpu.uuid: describe(before) for before in earlier}
    faults |= {gpu.uuid: gpu.faults or () for gpu in running}
    energy = {before.gpu.uuid: before.energy_j for before in earlier}
    energy |= dict.fromkeys(gpu.uuid for gpu in running)
    counts = {uuid: verified_store.proof_of(work).wrong for uuid, work in stored.items()}
    counts |= {gpu.uuid: gpu.verified.wrong for gpu in running if gpu.verified is not None}
    return {
        uuid: Findings(
            faults=tuple(f"{one.text}: {one.remedy}" for one in faults.get(uuid, ())),
            wrong=counts.get(uuid, 0),
            energy_j=energy.get(uuid),
        )
        for uuid in counts.keys() | faults.keys()
    }
