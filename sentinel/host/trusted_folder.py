"""Whether another user could replace what is in a folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def why_untrusted(folder: Path) -> str | None:
    """Say which user could replace a file in a folder by another, or None if only trusted ones can.

    Trusted are root, this user, and the owner of ``/``, as which root appears in a user namespace.
    Each folder and link on the way must belong to one of them, and a folder that all users may
    write must be sticky. A group that may write is the administrator's choice. What does not
    exist is not checked.

    Args:
        folder: An absolute path.
    """
    trusted = {0, os.getuid(), os.lstat("/").st_uid}
    for part in (*reversed(folder.parents), folder):
        try:
            there = part.lstat()
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{part} cannot be examined: {error.strerror}"
        if there.st_uid not in trusted:
            kind = "link" if stat.S_ISLNK(there.st_mode) else "folder"
            return f"the {kind} {part} belongs to uid {there.st_uid}"
        if stat.S_ISLNK(there.st_mode):
            if (why := why_untrusted(Path(os.path.realpath(part)))) is not None:
                return why
        elif there.st_mode & stat.S_IWOTH and not there.st_mode & stat.S_ISVTX:
            return f"all users may replace what is in the folder {part}"
    return None
