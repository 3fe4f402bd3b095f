"""Write what clients have saved of the settings to the daemon's own file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sentinel.api.http.errors import ProblemError
from sentinel.config.saved_settings import text_of
from sentinel.config.sources import Sources
from sentinel.host.files.regular_file import replace_file
from sentinel.protocol.problem import Code


async def write_saved(path: Path, saved: Sources) -> None:
    """Replace the file of saved settings; return once it is on disk.

    Raises:
        ProblemError: It cannot be written.
    """
    try:  # in a thread: a disk can be slow
        await asyncio.to_thread(replace_file, path, text_of(saved))
    except OSError as error:
        why = f"{path}: cannot be written: {error.strerror}"
        raise ProblemError(Code.UNAVAILABLE, f"Nothing has changed: {why}.") from error
