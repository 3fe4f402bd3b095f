"""Why nodes of a run have no report, as its engine knew it: ``missing.json`` in its folder."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from sentinel.fleet.records.run_file import FleetFolder, write_shared
from sentinel.host.files.regular_file import read_regular

#: A larger file is none of ours: 100,000 nodes with a line each have 20 MB.
_MAX_BYTES = 64 * 2**20


def read_reasons(folder: FleetFolder) -> dict[str, str]:
    """Read the reason of each node that has one; a file that cannot be read has none."""
    try:
        found = json.loads(read_regular(folder.missing, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {node: text for node, text in found.items() if isinstance(text, str) and text}


def record_reasons(
    folder: FleetFolder, missing: Collection[str], reasons: Mapping[str, str]
) -> None:
    """Write why nodes are missing; one without a new reason keeps the one that it has.

    The engine forgets a task some minutes after its end, and a later look finds no reason.

    Args:
        folder: The folder of the run.
        missing: All nodes that are missing now.
        reasons: What is known of them now.

    Raises:
        ConfigError: The file cannot be written.
    """
    before = read_reasons(folder)
    known = {**before, **reasons}
    found = {node: known[node] for node in sorted(missing) if node in known}
    if found != before:
        write_shared(folder.missing, json.dumps(found, indent=1))
