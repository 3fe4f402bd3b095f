"""The fleet runs that this user has begun here: a link to the folder of each, by its id."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from sentinel.errors import ConfigError
from sentinel.fleet.records.run_file import FleetFolder
from sentinel.host.daemons.registry import records_folder

#: How many links are kept.
MAX_KNOWN = 100


def known_folder(environ: Mapping[str, str], uid: int) -> Path:
    """Compute the folder of the links, beside the records of this user's daemons."""
    return records_folder(environ, uid).with_name("fleet")


def remember(known: Path, run_id: str, folder: FleetFolder) -> None:
    """Link a run by its id; without the link, it is named by its folder."""
    with contextlib.suppress(OSError):
        known.mkdir(mode=0o700, parents=True, exist_ok=True)
        (known / run_id).symlink_to(folder.path)
        for link in _newest_first(known)[MAX_KNOWN:]:
            link.unlink()


def find_fleet(known: Path, name: str | None) -> FleetFolder:
    """Find the folder of a run.

    Args:
        known: The folder of the links.
        name: Its folder, or its id; None for the last one that was begun here.

    Raises:
        ConfigError: There is none.
    """
    if name is None:
        links = _newest_first(known)
        if not links:
            raise ConfigError("no fleet run was begun here by this user", "Name its folder.")
        return FleetFolder(path=links[0].readlink())
    folder = FleetFolder(path=Path(name).absolute())
    link = known / name
    if not folder.run_file.exists() and "/" not in name and link.is_symlink():
        return FleetFolder(path=link.readlink())
    return folder


def _newest_first(known: Path) -> list[Path]:
    """List the links by the time of their creation."""
    links = [path for path in known.glob("*") if path.is_symlink()]
    return sorted(links, key=lambda link: link.lstat().st_mtime_ns, reverse=True)
