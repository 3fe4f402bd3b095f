"""Access control lists of files, as setfacl(1) sets them."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

_NOBODY = 0xFFFFFFFF


def allow(path: Path, uid: int, *, permissions: int, mask: int = 7) -> None:
    """Give a user permissions on a file; skip the test where the file system has no lists."""
    owner, user, group, limit, others = 0x01, 0x02, 0x04, 0x10, 0x20
    entries = [
        *((owner, 7, _NOBODY), (user, permissions, uid), (group, 5, _NOBODY)),
        *((limit, mask, _NOBODY), (others, 5, _NOBODY)),
    ]
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", data)
    except OSError as error:
        if error.errno in {errno.ENOTSUP, errno.EINVAL}:
            pytest.skip("no access control lists here, or none for users without a mapping")
        raise
