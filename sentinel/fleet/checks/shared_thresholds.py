"""One file of thresholds for nodes and fleets, and the copy of it in the folder of a run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.burnin.checks.own_checks import own_limits, registered_checks
from sentinel.burnin.checks.table import CHECKS
from sentinel.burnin.checks.thresholds import Thresholds, parse
from sentinel.errors import ConfigError
from sentinel.fleet.checks import fleet_checks
from sentinel.fleet.records.run_file import FleetFolder, FleetRun
from sentinel.host.files.regular_file import read_regular

#: A larger file is not read, in bytes.
_MAX_FILE_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class SharedThresholds:
    """What a file replaces, by what applies it."""

    #: For the checks of a node: of Sentinel, of packages, and XIDs.
    node: Thresholds = field(default_factory=Thresholds)
    #: For the comparisons of a fleet.
    fleet: Thresholds = field(default_factory=Thresholds)
    #: The text of the file; empty without one.
    text: str = ""

    @property
    def hash(self) -> str | None:
        """The hash of the text, or None without a file."""
        return _hash(self.text) if self.text else None


def read_thresholds(path: Path) -> SharedThresholds:
    """Read a file of thresholds; it may also change the checks of other packages.

    Raises:
        OSError: It cannot be read, or is larger than 1 MiB.
        UnicodeDecodeError: It is not UTF-8 text.
        ConfigError: It has something that is not allowed, or two packages have the same check.
    """
    text = read_regular(path, _MAX_FILE_BYTES).decode()
    own = own_limits(registered_checks(CHECKS.ids | fleet_checks.CHECKS.ids))
    found = parse(text, str(path), {**CHECKS.limits, **own, **fleet_checks.CHECKS.limits})
    node = found.replaced.keys() - fleet_checks.CHECKS.ids
    return SharedThresholds(
        node=found.only(node, xids=True),
        fleet=found.only(found.replaced.keys() & fleet_checks.CHECKS.ids, xids=False),
        text=text,
    )


def read_run_thresholds(folder: FleetFolder, run: FleetRun) -> SharedThresholds:
    """Read the thresholds with which a run was begun; the defaults if it was begun without a file.

    Raises:
        ConfigError: Its copy of the file is missing, was changed or cannot be used here.
    """
    if run.thresholds_hash is None:
        return SharedThresholds()
    check_copy(folder, run)
    try:
        return read_thresholds(folder.thresholds)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder.thresholds} cannot be read: {error}") from None


def check_copy(folder: FleetFolder, run: FleetRun) -> None:
    """Check that the thresholds of a run are those with which it was begun, if it has any.

    Raises:
        ConfigError: They are not.
    """
    if run.thresholds_hash is None:
        return
    path = folder.thresholds
    try:
        found = _hash(read_regular(path, _MAX_FILE_BYTES).decode())
    except (OSError, UnicodeDecodeError) as error:
        what = f"{path}: the thresholds of run {run.id} cannot be read: {error}"
        raise ConfigError(what, "Restore the file, or begin a new run.") from None
    if found != run.thresholds_hash:
        what = f"{path}: it was changed since run {run.id} began"
        why = f"its hash is {found}, and that of the run {run.thresholds_hash}"
        raise ConfigError(f"{what}: {why}", "Restore the file, or begin a new run.")


def _hash(text: str) -> str:
    """Compute the hash of a file; the newlines at its end are not counted."""
    return hashlib.sha256(text.rstrip("\n").encode()).hexdigest()[:16]
