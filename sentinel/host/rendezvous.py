"""The private folder in which the stressors of a group find each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Self

from sentinel.protocol.stressor import Account

#: Where root puts it for another user, whose stressors may have a /tmp of their own.
_RUN = Path("/run")
_PREFIX = "sentinel-group-"
#: How often a folder is made: another start may remove it before it is locked.
_TRIES = 5


class Rendezvous:
    """A folder that only the user of the stressors can enter, with mode 0700; made when needed.

    A file there, unlike a port, is out of reach for other users. The folder ends with the block, or
    at the next start if its process was killed.

    Args:
        account: The user of the stressors, or None for this process's.
    """

    def __init__(self, account: Account | None) -> None:
        self._account = account
        self._folder: Path | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for where in dict.fromkeys((Path(tempfile.gettempdir()), self._parent())):
            with contextlib.suppress(OSError):
                for folder in where.glob(f"{_PREFIX}*"):
                    self._remove_if_left(folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def folder(self) -> Path | None:
        """Return the folder, or None if it cannot be made: then no group finds itself.

        A clean-up of /tmp removes it from a daemon that has run for days; then it is made again.
        """
        if self._folder is None or not self._is_own(self._folder):
            self._folder = None
            for _ in range(_TRIES):
                with contextlib.suppress(OSError):
                    made = self._make()
                    if self._is_own(made):
                        self._folder = made
                        break
        return self._folder

    def _is_own(self, folder: Path) -> bool:
        """Check that a folder is there, and not one that another user has put in its place."""
        try:
            found = folder.lstat()
        except OSError:
            return False
        uid = os.geteuid() if self._account is None else self._account.uid
        return stat.S_ISDIR(found.st_mode) and found.st_uid == uid

    def _parent(self) -> Path:
        """Return the folder to make it in."""
        for_other = self._account is not None and os.access(_RUN, os.W_OK)
        return _RUN if for_other else Path(tempfile.gettempdir())

    def _make(self) -> Path:
        account = self._account
        made = tempfile.TemporaryDirectory(
            prefix=_PREFIX, dir=self._parent(), ignore_cleanup_errors=True
        )
        path = Path(self._stack.enter_context(made))
        # Until it is locked, another start may take it for one that was left, and remove it.
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stack.callback(os.close, file)
        fcntl.flock(file, fcntl.LOCK_EX)
        if account is not None:
            os.chown(path, account.uid, account.gid)
        return path

    def _remove_if_left(self, folder: Path) -> None:
        """Remove a folder of this user that no process has locked."""
        if not self._is_own(folder):
            return
        with contextlib.suppress(OSError):
            file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(file)
