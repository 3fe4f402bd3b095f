"""Whether another user could replace or write what is in a folder, and folders that none can."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

#: As many links as the kernel follows in one path.
_MAX_LINKS = 40


def why_untrusted(folder: Path) -> str | None:
    """Say which user could replace a file in a folder by another, or None if only trusted ones can.

    Trusted are root, this user, the owners of the folders above its home, and the owner of ``/``,
    as which root appears in a user namespace. Each folder and link on the way must belong to one
    of them, and a folder that all users may write must be sticky. A group that may write is the
    administrator's choice. What does not exist is not checked.

    Args:
        folder: An absolute path.
    """
    above = [Path("/"), *Path(os.environ.get("HOME") or "/").absolute().parents]
    trusted = {0, os.getuid(), *_owners(above)}
    done, names, links = Path("/"), list(folder.parts[1:]), 0
    while names:
        name = names.pop(0)
        done = done.parent if name == ".." else done / name
        try:
            there = done.lstat()
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{done} cannot be examined: {error.strerror}"
        if there.st_uid not in trusted:
            kind = "link" if stat.S_ISLNK(there.st_mode) else "folder"
            return f"the {kind} {done} belongs to uid {there.st_uid}"
        if stat.S_ISLNK(there.st_mode):
            links += 1
            if links > _MAX_LINKS:
                return f"{folder} leads through too many links"
            target = done.readlink()
            names = [*target.parts[target.is_absolute() :], *names]
            done = Path("/") if target.is_absolute() else done.parent
        elif there.st_mode & stat.S_IWOTH and not there.st_mode & stat.S_ISVTX:
            return f"all users may replace what is in the folder {done}"
    return None


def why_foreign(file: Path) -> str | None:
    """Say which other user could have written a file, or None if only this one and root could.

    The file may name what is run. On a shared disk that takes root for another user, the files of
    root belong to that one; so does a file that is created beside them.

    Args:
        file: A file; one that does not exist was not written.
    """
    try:
        found = [(one, one.lstat()) for one in (file.parent, file)]
        if stat.S_ISLNK(found[-1][1].st_mode):
            return f"{file} is a link"
        for one, there in found:
            if there.st_uid not in {0, os.getuid()} and there.st_uid != _created_owner(file.parent):
                return f"{one} belongs to uid {there.st_uid}"
            is_sticky = stat.S_ISDIR(there.st_mode) and there.st_mode & stat.S_ISVTX
            if there.st_mode & stat.S_IWOTH and not is_sticky:
                return f"all users may write {one}"
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{file} cannot be examined: {error.strerror}"
    return None


def _created_owner(folder: Path) -> int | None:
    """Find out to whom the files belong that this user creates in a folder; None if it cannot."""
    import tempfile  # a command that asks the daemon need not load it

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return None


def _owners(folders: Iterable[Path]) -> Iterator[int]:
    """Read the owners of folders; one that this user cannot examine adds none."""
    for folder in folders:
        with contextlib.suppress(OSError):
            yield folder.stat().st_uid


def make_private(folder: Path) -> None:
    """Create a folder, and those above it, for this user alone; existing ones stay as they are.

    Raises:
        OSError: One of them cannot be created, or is no folder.
    """
    for part in (*reversed(folder.parents), folder):
        if not part.is_dir():
            part.mkdir(mode=0o700, exist_ok=True)
