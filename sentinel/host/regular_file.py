"""Files and folders that are safe to open: regular, and written by no other user."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from sentinel.errors import ConfigError

T = TypeVar("T")

#: How often a lock is tried.
_RETRY_INTERVAL_S = 0.01

#: How many invalid files of one name are kept.
MAX_SET_ASIDE = 5

#: As many links as the kernel follows in one path.
_MAX_LINKS = 40

#: Tags and a permission in an access control list: linux/posix_acl.h.
_ACL_USER, _ACL_MASK, _ACL_WRITE = 0x02, 0x10, 0x02

#: The remedy for such a run.
BY_ITS_USER = (
    "The user who began the run can resume it; root, where each folder above is root's, and sticky"
    " (chmod +t) if all users may write it."
)


class _Folder(Protocol):
    @property
    def path(self) -> Path: ...


class File:
    """The path of a file, or of a folder, in the folder that a class describes.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: _Folder, _: object) -> Path:
        return folder.path / self._name


@contextlib.contextmanager
def file_errors(what: str, without_right: str = "") -> Iterator[None]:
    """Turn an error of the operating system in a block into one for people.

    Args:
        what: What cannot be done, such as ``FILE cannot be read``.
        without_right: The remedy if this user may not do it.

    Raises:
        ConfigError: The system has refused it; the message adds why.
    """
    try:
        yield
    except OSError as error:
        remedy = without_right if isinstance(error, PermissionError) else ""
        raise ConfigError(f"{what}: {error.strerror}", remedy) from error


def open_regular(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a regular file; without O_NOFOLLOW in ``flags``, a link to one is followed.

    One that may be created is one that is written: another user may have created it before, to
    read or to forge what this one writes. It must be this user's or root's, and no other user may
    write it. Only then is it truncated.

    Args:
        path: The file.
        flags: As for ``os.open``; O_CLOEXEC is added.
        mode: The mode of a file that is created.

    Raises:
        OSError: It cannot be opened, is not a regular file, or another user could have written it.
    """
    writes = flags & os.O_CREAT
    opened = (flags & ~os.O_TRUNC) if writes else flags
    try:
        file = os.open(path, opened | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a FIFO without a reader, or a socket
            raise _irregular(path) from error
        raise
    try:
        there = os.fstat(file)
        if not stat.S_ISREG(there.st_mode):
            raise _irregular(path)
        if writes:
            _check_unshared(file, there, path)
            if flags & os.O_TRUNC:
                os.ftruncate(file, 0)
    except OSError:
        os.close(file)
        raise
    return file


def _check_unshared(file: int, there: os.stat_result, path: Path) -> None:
    """Raise OSError if another user than root could write the open file."""
    trusted = {0, os.getuid()}
    if there.st_uid not in trusted:
        if there.st_uid != _created_owner(path.parent):
            raise OSError(errno.EPERM, f"it belongs to uid {there.st_uid}", str(path))
        trusted.add(there.st_uid)
    if there.st_mode & stat.S_IWOTH:
        raise OSError(errno.EPERM, "all users may write it", str(path))
    if (uid := _listed(file, trusted)) is not None:
        raise OSError(errno.EPERM, f"its access control list lets uid {uid} write it", str(path))


def read_regular(path: Path, limit: int, flags: int = 0) -> bytes:
    """Read a regular file of at most ``limit`` bytes.

    Raises:
        OSError: It cannot be read, is not a regular file, or is larger.
    """
    file = open_regular(path, os.O_RDONLY | flags)
    try:
        data = b""
        while piece := os.read(file, limit + 1 - len(data)):
            data += piece
            if len(data) > limit:
                raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
        return data
    finally:
        os.close(file)


def set_aside(path: Path) -> Path:
    """Rename an invalid file, so that its content is kept; return its new path.

    The names are ``PATH.bad``, ``PATH.bad.2`` and so on; beyond ``MAX_SET_ASIDE`` of them, the
    oldest is replaced.

    Raises:
        OSError: It cannot be renamed.
    """
    names = _names_aside(path)
    free = [name for name in names if not os.path.lexists(name)]
    chosen = free[0] if free else min(names, key=lambda name: name.lstat().st_ctime_ns)
    path.replace(chosen)
    return chosen


def files_set_aside(path: Path) -> list[Path]:
    """List the invalid files of this name that were set aside and are still there."""
    return [name for name in _names_aside(path) if os.path.lexists(name)]


def _names_aside(path: Path) -> list[Path]:
    """List the names that invalid files get."""
    numbered = [path.with_name(f"{path.name}.bad.{n}") for n in range(2, MAX_SET_ASIDE + 1)]
    return [path.with_name(f"{path.name}.bad"), *numbered]


def sync_folder(path: Path) -> None:
    """Write the entries of a folder to disk, so that a renamed file has its new name after a crash.

    Raises:
        OSError: The disk reports an error.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a file system that has no such thing
            raise
    finally:
        os.close(folder)


def replace_file(path: Path, text: str, mode: int = 0o600, *, temporary: str | None = None) -> None:
    """Replace the content of a file atomically, and return once it is on disk.

    Args:
        path: The file.
        text: Its new content.
        mode: The mode of the new file, less the umask.
        temporary: The name of the file that is renamed, where several processes may write at once.
            [default: that of the file and .new]

    Raises:
        OSError: It cannot be written. The file is unchanged or, if only the rename could not be
            written to the disk, has the new content.
    """
    new = path.with_name(temporary or f"{path.name}.new")
    try:
        # A link in its place could lead to any file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        descriptor = open_regular(new, flags, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


@contextlib.contextmanager
def locked(file: int, timeout: float, *, shared: bool = False) -> Iterator[int]:
    """Lock an open file against other processes for the block, and close it in the end.

    Args:
        file: Its descriptor.
        timeout: How long another process may keep it, in seconds.
        shared: Whether others may lock it so at the same time.

    Raises:
        OSError: It cannot be locked, or not in time.
    """
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        until = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise OSError(errno.EAGAIN, "another process keeps it locked") from None
                time.sleep(_RETRY_INTERVAL_S)
        yield file
    finally:
        os.close(file)


def load_or_set_aside(
    path: Path, read: Callable[[], T], *, empty: T, loss: str
) -> tuple[T, str | None]:
    """Read what a file has, and the problem with the file or None.

    A missing file is empty. An invalid file is set aside and counts as empty, so that a daemon
    starts and the content is kept.

    Args:
        path: The file.
        read: Reads and parses it, or raises OSError or ValueError.
        empty: What an empty file has.
        loss: What follows from a problem, such as ``its sessions are ignored``.
    """
    try:
        return read(), None
    except FileNotFoundError:
        return empty, None
    except OSError as error:
        return empty, f"{path}: cannot be read: {error.strerror}; {loss}"
    except ValueError as error:
        try:
            bad = set_aside(path)
        except OSError as failed:
            return empty, f"{path}: {error}; renaming it failed: {failed.strerror}"
        return empty, f"{path}: {error}; it was renamed to {bad}, and {loss}"


def _irregular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file", str(path))


def why_untrusted(
    folder: Path,
    mapped: tuple[int, int] | None = None,
    owners_of: Iterable[Path] = (),
    *,
    created: bool = False,
) -> str | None:
    """Say which user could replace a file in a folder by another, or None if only trusted ones can.

    Trusted are root, this user, the owners of the folders above its home, and the owner of ``/``,
    as which root appears in a user namespace. Each folder and link on the way must belong to one
    of them, and a folder that all users may write must be sticky. A group that may write is the
    administrator's choice.

    Args:
        folder: An absolute path.
        mapped: A disk (``st_dev``), and to whom root's files there belong; trusted there, too.
        owners_of: Folders whose owners are trusted besides.
        created: Whether to say, too, who could create a file in the folder, or the first part of
            the path that does not exist. Otherwise what does not exist is not checked.
    """
    above = [Path("/"), *Path(os.environ.get("HOME") or "/").absolute().parents, *owners_of]
    trusted = {0, os.getuid(), *_owners(above)}
    # No user can create a folder in a file.
    absent = (FileNotFoundError, NotADirectoryError) if created else FileNotFoundError
    done, names, links = Path("/"), list(folder.parts[1:]), 0
    while names:
        name = names.pop(0)
        done = done.parent if name == ".." else done / name
        try:
            there = done.lstat()
        except absent:
            return _why_creatable(done.parent, trusted) if created else None
        except OSError as error:
            return f"{done} cannot be examined: {error.strerror}"
        if there.st_uid not in trusted and (there.st_dev, there.st_uid) != mapped:
            kind = "link" if stat.S_ISLNK(there.st_mode) else "folder"
            return f"the {kind} {done} belongs to uid {there.st_uid}"
        if not _is_sticky(there) and (why := _why_listed(done, trusted)) is not None:
            return why
        if stat.S_ISLNK(there.st_mode):
            links += 1
            if links > _MAX_LINKS:
                return f"{folder} leads through too many links"
            target = done.readlink()
            names = [*target.parts[target.is_absolute() :], *names]
            done = Path("/") if target.is_absolute() else done.parent
        elif there.st_mode & stat.S_IWOTH and not there.st_mode & stat.S_ISVTX:
            change = "replace what is in the folder" if stat.S_ISDIR(there.st_mode) else "write"
            return f"all users may {change} {done}"
    return _why_creatable(done, trusted) if created else None


def _why_creatable(folder: Path, trusted: set[int]) -> str | None:
    """Say which other user could create a file in a folder, which a sticky one allows, too."""
    if (why := _why_listed(folder, trusted)) is not None:
        return why
    may_all = folder.lstat().st_mode & stat.S_IWOTH
    return f"all users may create files in the folder {folder}" if may_all else None


def _is_sticky(there: os.stat_result) -> bool:
    """Check whether users can replace no files of others in a folder."""
    return stat.S_ISDIR(there.st_mode) and bool(there.st_mode & stat.S_ISVTX)


def _why_listed(path: Path, trusted: set[int]) -> str | None:
    """Say which other user an access control list lets write a file or a folder, or None."""
    uid = _listed(path, trusted)
    return None if uid is None else f"the access control list of {path} lets uid {uid} write it"


def _listed(file: Path | int, trusted: set[int]) -> int | None:
    """Find another user that the access control list of a file or folder lets write it."""
    try:
        follow = isinstance(file, int)
        data = os.getxattr(file, "system.posix_acl_access", follow_symlinks=follow)
    except OSError:  # it has none
        return None
    # After the version: the tag, the permissions and the user of each entry (posix_acl_xattr.h).
    entries = list(struct.iter_unpack("<HHI", data[4:]))
    mask = next((allowed for tag, allowed, _ in entries if tag == _ACL_MASK), _ACL_WRITE)
    for tag, allowed, uid in entries:
        if tag == _ACL_USER and uid not in trusted and allowed & mask & _ACL_WRITE:
            return int(uid)
    return None


def why_replaceable(file: Path) -> str | None:
    """Say which other user could write a file or replace it, or None if only trusted ones can.

    On a shared disk, root's files may belong to another user.

    Args:
        file: An absolute path; a file that does not exist could be created.
    """
    why = why_foreign(file, new=True) if why_untrusted(file) else None
    return why and why.replace("the folder ", "")


def why_foreign(file: Path, *, new: bool = False) -> str | None:
    """Say which other user could have written a file, or None if only this one and root could.

    The file may name what is run. On a shared disk that takes root for another user, the files of
    root belong to that one; so does a file that is created beside them. For root, the folders above
    count, too: their owner could replace the file between this check and a use, by code or a link.

    Args:
        file: A file; one that does not exist was not written.
        new: Whether one that does not exist is about to be created: its folder is checked, too.
    """
    try:
        # A run is known by a link to its folder, too. Path.resolve() fails for a loop of links.
        folder = Path(os.path.realpath(file.parent))
        paths = [file.parent, folder, *([] if new and not os.path.lexists(file) else [file])]
        found = [(path, path.lstat()) for path in dict.fromkeys(paths)]
        if stat.S_ISLNK(found[-1][1].st_mode):
            return f"{file} is a link"
        for one, there in found:
            if there.st_uid not in {0, os.getuid()} and there.st_uid != _created_owner(file.parent):
                return f"{one} belongs to uid {there.st_uid}"
            if _is_sticky(there):
                continue
            if (why := _why_listed(one, {0, os.getuid()})) is not None:
                return why
            if there.st_mode & stat.S_IWOTH and not stat.S_ISLNK(there.st_mode):
                return f"all users may write {one}"
        if os.getuid() == 0:
            mapped = (found[-1][1].st_dev, _created_owner(folder) or 0)
            return why_untrusted(file.parent.absolute(), mapped)
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


def why_full(path: Path) -> str | None:
    """Explain why there is no room for a file in a folder, or return None."""
    try:
        room = os.statvfs(path)
    except OSError as error:
        return error.strerror
    blocks = room.f_bfree if os.geteuid() == 0 else room.f_bavail
    files = room.f_ffree if os.geteuid() == 0 else room.f_favail
    # Some file systems do not limit the number of files, and count none.
    return "its file system is full" if not blocks or (room.f_files and not files) else None
