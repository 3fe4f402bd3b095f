"""Read what packages register as entry points, whatever is wrong with one of them.

Nothing is imported. A malformed entry point is a registration with a problem, so that it fails
alone; the standard library raises for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
#: ``module:attribute``, and the extras of the package that the object needs.
_TARGET = re.compile(rf"({_DOTTED})\s*:\s*({_DOTTED})\s*(\[.*\])?")

#: Where the entry points of a distribution are, in the folder of its metadata.
_FILE = "entry_points.txt"


@dataclass(frozen=True, kw_only=True)
class Registration:
    """One name that a package registers in a group."""

    name: str
    #: The object as ``module:attribute``; as it is written if that is malformed.
    target: str
    #: The distribution, or None if its metadata has no name.
    package: str | None
    version: str | None
    #: Why it cannot be used, or None.
    problem: str | None = None

    @property
    def owner(self) -> str:
        """The package and its version."""
        return _owner(self.package, self.version)

    @property
    def origin(self) -> str:
        """The package, its version and the object."""
        return f"{self.owner} ({self.target})"


def read_registrations(group: str) -> tuple[Registration, ...]:
    """Return what all packages register in a group, sorted by name and object."""
    found = map(_registration, _entries(group))
    return tuple(sorted(found, key=lambda one: (one.name, one.target)))


def unreadable_packages() -> Iterator[str]:
    """Yield a sentence about each package whose entry points cannot be read."""
    if _read_all("") is None:
        for package in distributions():
            if (why := _why_unreadable(package)) is not None:
                yield f"the entry points of {_owner(*_named(package))} cannot be read: {why}"


def _registration(entry: EntryPoint) -> Registration:
    match = _TARGET.fullmatch(entry.value)
    package, version = _named(entry.dist)
    return Registration(
        name=entry.name,
        target=f"{match[1]}:{match[2]}" if match else entry.value,
        package=package,
        version=version,
        problem=None if match else f"its entry point {entry.value!r} is not module:attribute",
    )


def _entries(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, without those of unreadable packages."""
    found = _read_all(group)
    if found is None:
        readable = {
            _named(package): package
            for package in distributions()
            if _why_unreadable(package) is None
        }
        found = [
            entry
            for package in readable.values()
            for entry in package.entry_points
            if entry.group == group
        ]
    return found


def _read_all(group: str) -> list[EntryPoint] | None:
    """Return the entry points of a group, or None if those of one package cannot be read."""
    try:
        return list(entry_points(group=group))
    except Exception:  # noqa: BLE001 - its parser raises whatever the text makes it raise
        return None


def _why_unreadable(package: Distribution) -> str | None:
    """Say why the entry points of a package cannot be read, or None if they can."""
    try:
        list(package.entry_points)
    except UnicodeDecodeError:
        return f"its {_FILE} is not UTF-8"
    except Exception:  # noqa: BLE001 - as above
        return f"its {_FILE} has a line that is not NAME = module:attribute"
    return None


def _named(package: Distribution | None) -> tuple[str | None, str | None]:
    """Return the name and the version of a package; None for what its metadata lacks."""
    try:
        return (package.name, package.version) if package else (None, None)
    except Exception:  # noqa: BLE001 - it differs between Pythons
        return None, None


def _owner(package: str | None, version: str | None) -> str:
    return f"{package} {version}" if package else "a package without a name"
