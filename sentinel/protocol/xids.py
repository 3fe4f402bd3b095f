"""The XIDs of NVIDIA's driver as data: what each says about the hardware, and what to do."""

from __future__ import annotations

import pkgutil
import tomllib
from dataclasses import dataclass
from enum import StrEnum

#: The source of the table: "Analyzing Xid Errors with the Xid Catalog".
CATALOG = "NVIDIA's Xid Catalog"


class XidMeaning(StrEnum):
    """What an XID says about the hardware."""

    FAIL = "fail"
    WARN = "warn"
    #: A fault under Sentinel's own load, else a warning: the counter behind it may be of before.
    LOAD = "load"
    #: Of the application: no evidence, unless it repeats in a process of Sentinel's own.
    APPLICATION = "application"
    #: No evidence at all.
    PASS = "pass"  # noqa: S105 - not a password


@dataclass(frozen=True, kw_only=True)
class Xid:
    """One XID."""

    number: int
    name: str
    #: NVIDIA's bucket of immediate actions.
    bucket: str
    meaning: XidMeaning
    source: str = CATALOG


@dataclass(frozen=True, kw_only=True)
class OwnEnd:
    """The end that Sentinel gave one of its processes: by a kill, or by asking it to end."""

    pid: int
    #: When it was killed or asked, or shortly before its exit.
    at: float


def _load() -> dict[int, Xid]:
    """Load the XIDs by number, in ascending order."""
    text = (pkgutil.get_data("sentinel.protocol", "xids.toml") or b"").decode()
    found = [
        Xid(
            number=int(number),
            name=name,
            bucket=bucket,
            meaning=XidMeaning(group["meaning"]),
            source="; ".join(filter(None, (CATALOG, group.get("note")))),
        )
        for group in tomllib.loads(text)["group"]
        for number, (name, bucket) in group["xids"].items()
    ]
    return {xid.number: xid for xid in sorted(found, key=lambda xid: xid.number)}


#: All XIDs by number.
XIDS = _load()
