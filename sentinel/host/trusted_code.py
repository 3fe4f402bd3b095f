"""Say which other user could change code that this process is about to import.

Imports run with the rights of this process. So a folder of code must belong to root, to this user,
or to an owner of the folders above its home, as must every folder above it; and no other user may
create files in it. The same holds for each file that is imported from it.
"""

from __future__ import annotations

import functools
import importlib
import os
import stat
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType

from sentinel.errors import ConfigError
from sentinel.host.process_setup import is_thread_refused
from sentinel.host.regular_file import why_untrusted

#: The folder of this program: a user that could change that could change this check as well.
_OWN = Path(__file__).resolve().parents[2]
#: The folders of this program and of the interpreter, whose code is trusted, without links.
_TRUSTED = tuple(
    f"{os.path.realpath(place)}/"
    for place in (_OWN, sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
)

#: How the names of modules end.
_MODULES = {".py", ".pyc", ".so"}

#: The maximum length of a plugin's error text.
_MAX_ERROR_LENGTH = 1000

#: Why folders are not searched by this process.
_left_out: list[str] = []


class UntrustedCodeError(ImportError):
    """Another user could change what was about to be imported."""


def _is_trusted(path: str) -> bool:
    """Check whether a file or folder is of this program or the interpreter, not only linked."""
    return f"{os.path.realpath(path)}/".startswith(_TRUSTED)


def why_untrusted_code(folder: Path) -> str | None:
    """Say which other user could change or create what is imported from a folder, or None.

    Args:
        folder: An absolute path, which need not exist.
    """
    return why_untrusted(folder, owners_of=map(Path, _TRUSTED), created=True)


def _why_untrusted_file(file: Path) -> str | None:
    """Say which other user could change a file or create it, or None."""
    if (why := why_untrusted_code(file.parent)) is not None:
        return why
    # Who owns the interpreter can change all that it runs.
    if (why := why_untrusted(file, owners_of=map(Path, _TRUSTED))) is not None:
        return why.replace("the folder ", "")
    return f"all users may write {file}" if _may_all_write(file) else None


def _may_all_write(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH)


class _TrustedFinder:
    """Finds what the other finders do, and refuses files that others could change."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module; raises UntrustedCodeError if others could change it."""
        others = [one for one in sys.meta_path if one is not cls and hasattr(one, "find_spec")]
        for finder in others:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _check_files(spec)
                return spec
        return None


def _check_files(spec: ModuleSpec) -> None:
    """Check the file of a module and its compiled one, or the archive that it is in as a folder."""
    source = spec.origin if spec.has_location else None
    if source is None or _is_trusted(source):
        return
    file = Path(source).absolute()
    if file.is_file():
        found = [_why_untrusted_file(file)]
        if spec.cached:
            found.append(_why_untrusted_file(Path(spec.cached).absolute()))
    else:
        found = [why_untrusted_code(place) for place in file.parents if place.is_file()]
    for why in filter(None, found):
        raise UntrustedCodeError(why, name=spec.name, path=source)


def leave_out_untrusted() -> list[str]:
    """Take the folders out of ``sys.path`` whose code others could change, and refuse such files.

    The interpreter's own and that of this program stay: they are imported already.

    Returns:
        Why, for each that this process has left out.
    """
    if _TrustedFinder not in sys.meta_path:
        sys.meta_path.insert(0, _TrustedFinder)
    found = dict(_untrusted_entries())
    if sys.pycache_prefix in found:
        sys.pycache_prefix = None
    _left_out.extend(f"{Path(entry).absolute()} is not searched: {found[entry]}" for entry in found)
    sys.path[:] = [entry for entry in sys.path if entry not in found]
    return list(_left_out)


def search_first(folder: str) -> None:
    """Search a folder for modules before all others.

    Args:
        folder: An absolute path.

    Raises:
        UntrustedCodeError: Another user could change what is imported from it.
    """
    if (why := why_untrusted_code(Path(folder))) is not None:
        raise UntrustedCodeError(why)
    sys.path.insert(0, folder)


def _untrusted_entries() -> Iterator[tuple[str, str]]:
    """Yield each entry of ``sys.path`` whose code others could change, and why.

    The folder of compiled modules, if there is one for all (PYTHONPYCACHEPREFIX), is one as well.
    """
    prefixes = {sys.pycache_prefix} - {None, os.devnull}
    for entry in (*sys.path, *filter(None, prefixes)):
        if _is_trusted(entry):
            continue
        folder = Path(entry).absolute()  # as the interpreter does, also of an empty entry
        if (why := why_untrusted_code(folder)) is not None:
            yield entry, why


def _untrusted_first_imports() -> Iterator[tuple[str, str]]:
    """Yield each entry of ``sys.path`` with a module that an interpreter takes from it too early.

    It does so before :class:`_TrustedFinder` is there. Only the name of a module that it imports
    by itself, or with its own library, is looked up then.
    """
    early = {*sys.stdlib_module_names, "sitecustomize", "usercustomize"}
    for entry in sys.path:
        if _is_trusted(entry) or not Path(entry).is_dir():
            continue
        for found in Path(entry).absolute().iterdir():
            if found.name.partition(".")[0] not in early:
                continue
            file = found / "__init__.py" if found.is_dir() else found
            if file.suffix not in _MODULES or not file.exists():
                continue
            compiled = [Path(cache_from_source(file))] if file.suffix == ".py" else []
            for why in filter(None, map(_why_untrusted_file, (file, *compiled))):
                yield entry, why


@functools.cache
def check_search_path() -> None:
    """Check, once, that no other user could change what the interpreters of root's children import.

    An interpreter imports from these folders (``sitecustomize``, ``encodings``) before any code of
    this program runs. Other users leave such folders out: :func:`leave_out_untrusted`.

    Raises:
        ConfigError: This process is root's, and another user could.
    """
    if os.getuid() != 0:
        return
    for entry, why in (*_untrusted_entries(), *_untrusted_first_imports()):
        elsewhere = "" if Path(entry).is_absolute() else "Start it from another folder. Or: "
        raise ConfigError(
            f"root starts no process that searches {Path(entry).absolute()} for modules: {why}",
            f"{elsewhere}"
            "Take the folder out of PYTHONPATH (or of PYTHONPYCACHEPREFIX, or the .pth file or HOME"
            " that adds it), or give it to root (chown, chmod go-w, setfacl -b). A workload needs"
            " no search path: name it as /FOLDER/module:attribute, and run it as its owner with"
            " --stressor-user.",
        )


def describe_error(error: BaseException, importer: str) -> str:
    """Describe an error of foreign code, and where it was raised, in one line of limited length.

    Args:
        error: The error.
        importer: The file that imported the code, whose lines say nothing about the error.
    """
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - a plugin's exception whose __str__ raises
        text = ""
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if len(line) > _MAX_ERROR_LENGTH:
        line = line[:_MAX_ERROR_LENGTH] + " ..."
    if text and is_thread_refused(error):
        line += "; see `ulimit -u`"
    own = {importlib.__file__, importer}
    places = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen ") and frame.filename not in own
    ]
    if not places:
        return line
    last = places[-1]
    return f"{line} ({Path(last.filename).name}:{last.lineno} in {last.name})"
