"""A journal for tests: a real datagram socket that decodes what is sent to it."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.harness.timing import TIMEOUT_S

_ALL_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def decode(data: bytes) -> dict[str, bytes]:
    """Decode the fields of an entry, as the protocol defines them."""
    fields = {}
    while data:
        line, _, rest = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack_from("<Q", rest)
            value, rest = rest[8 : 8 + size], rest[8 + size :]
            assert rest[:1] == b"\n"
            rest = rest[1:]
        fields[name.decode()] = value
        data = rest
    return fields


class FakeJournal:
    """Receives entries at a path.

    Args:
        path: The socket.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(TIMEOUT_S)

    def take(self) -> Mapping[str, str]:
        """Wait for the next entry."""
        data, ancillary, _, _ = self._socket.recvmsg(2**20, socket.CMSG_SPACE(4))
        for level, kind, content in ancillary:
            assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            (file,) = array.array("i", content)
            assert data == b""
            assert fcntl.fcntl(file, fcntl.F_GET_SEALS) & _ALL_SEALS == _ALL_SEALS
            data = os.pread(file, os.fstat(file).st_size, 0)
            os.close(file)
        return {name: value.decode() for name, value in decode(data).items()}

    def take_until(self, event: str) -> list[Mapping[str, str]]:
        """Wait for the entries up to the first one of an event."""
        taken = [self.take()]
        while taken[-1].get("SENTINEL_EVENT") != event:
            taken.append(self.take())
        return taken

    def waiting(self) -> list[Mapping[str, str]]:
        """Take the entries that have come."""
        self._socket.setblocking(False)
        taken = []
        try:
            while True:
                taken.append(self.take())
        except BlockingIOError:
            return taken
        finally:
            self._socket.settimeout(TIMEOUT_S)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@contextmanager
def fake_journal(path: Path) -> Iterator[FakeJournal]:
    """Receive entries at a path."""
    journal = FakeJournal(path)
    try:
        yield journal
    finally:
        journal.close()
