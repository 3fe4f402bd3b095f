"""The private folder in which the stressors of a group find each other."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sentinel.protocol.stressor import Account

#: Where root puts it for another user, whose stressors may have a /tmp of their own.
_RUN = Path("/run")


@contextlib.contextmanager
def rendezvous_folder(account: Account | None) -> Iterator[Path]:
    """Provide an empty folder that only the user of the stressors can enter, with mode 0700.

    A file there, unlike a port, is out of reach for other users.

    Args:
        account: The user of the stressors, or None for this process's.

    Raises:
        OSError: It cannot be created.
    """
    where = _RUN if account is not None and os.access(_RUN, os.W_OK) else None
    with tempfile.TemporaryDirectory(
        prefix="sentinel-group-", dir=where, ignore_cleanup_errors=True
    ) as name:
        if account is not None:
            os.chown(name, account.uid, account.gid)
        yield Path(name)
