"""Say which other user could change code that this process is about to import.

Imports run with the rights of this process. So a folder of code must belong to root, to this user,
or to an owner of the folders above its home, as must every folder above it; and no other user may
create files in it.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path

from sentinel.errors import ConfigError
from sentinel.host.regular_file import why_untrusted

#: The folder of this program: a user that could change that could change this check as well.
_OWN = Path(__file__).resolve().parents[2]


def why_untrusted_code(folder: Path, module: str | None = None) -> str | None:
    """Say which other user could change what is imported from a folder, or None.

    Args:
        folder: An absolute path.
        module: A module of that folder, whose file counts as well.
    """
    if (why := why_untrusted(folder)) is not None:
        return why
    if _may_all_write(folder):
        return f"all users may create files in the folder {folder}"
    for path in _files_of(folder, module) if module is not None else ():
        if (why := why_untrusted(path)) is not None:
            return why.replace("the folder ", "")
        if _may_all_write(path):
            return f"all users may write {path}"
    return None


def _files_of(folder: Path, module: str) -> list[Path]:
    """List the files of a module and its packages, compiled ones as well."""
    place, found = folder, []
    for name in module.split("."):
        place /= name
        for source in (place / "__init__.py", place.with_suffix(".py")):
            compiled = Path(cache_from_source(str(source)))
            found += [place, source, compiled.parent, compiled]
    return found


def _may_all_write(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH)


#: Why folders are not searched by this process.
_left_out: list[str] = []


def leave_out_untrusted() -> list[str]:
    """Take the folders out of ``sys.path`` whose code others could change.

    The interpreter's own and that of this program stay: they are imported already.

    Returns:
        Why, for each that this process has left out.
    """
    found = dict(_untrusted_entries())
    _left_out.extend(f"{Path(entry).absolute()} is not searched: {found[entry]}" for entry in found)
    sys.path[:] = [entry for entry in sys.path if entry not in found]
    return list(_left_out)


def _untrusted_entries() -> Iterator[tuple[str, str]]:
    """Yield each entry of ``sys.path`` whose code others could change, and why."""
    own = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, _OWN)
    for entry in sys.path:
        folder = Path(entry).absolute()  # as the interpreter does, also of an empty entry
        if not any(folder.is_relative_to(place) for place in own):
            why = why_untrusted_code(folder)
            if why is not None:
                yield entry, why


@functools.cache
def check_search_path() -> None:
    """Check, once, that no other user could change what the interpreters of root's children import.

    An interpreter imports from these folders (``sitecustomize``, ``encodings``) before any code of
    this program runs. Other users leave such folders out: :func:`leave_out_untrusted`.

    Raises:
        ConfigError: This process is root's, and another user could.
    """
    for entry, why in _untrusted_entries() if os.getuid() == 0 else ():
        raise ConfigError(
            f"root starts no process that searches {Path(entry).absolute()} for modules: {why}",
            "Take the folder out of PYTHONPATH (or of the .pth file or HOME that adds it), or give"
            " it to root (chown, chmod go-w). A workload needs no search path: name it as"
            " /FOLDER/module:attribute, and run it as its owner with --stressor-user.",
        )
