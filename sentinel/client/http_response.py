"""Read one HTTP/1.1 response from a socket; http.client would double the cost of ``status``.

http.client imports the e-mail and TLS packages, which a client of a Unix socket never uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

#: The limits of http.client, which also bound a malicious response.
_MAX_LINE_BYTES = 65536
_MAX_HEADERS = 100


class InvalidResponseError(Exception):
    """The peer sent something that is not HTTP/1."""


class CutShortError(Exception):
    """The peer closed the connection within its response."""


def request_bytes(
    method: str, target: str, host: str, headers: Mapping[str, str], body: bytes | None
) -> bytes:
    """Build a request.

    Raises:
        ValueError: A part has a control character, which would end its line.
    """
    length = {} if body is None else {"Content-Length": str(len(body))}
    if body is None and method not in {"GET", "DELETE"}:
        length = {"Content-Length": "0"}
    fields = {"Host": host, **headers, **length}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if not all(line.isprintable() for line in lines):
        raise ValueError("a header of the request has a control character")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class Response:
    """A response: its status, and its body as bytes or lines.

    Args:
        file: The socket's file; reading it blocks, and raises TimeoutError at the deadline.

    Raises:
        InvalidResponseError: The head is not that of HTTP/1.
        CutShortError: The connection ended before or within the head.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.status = self._read_status()
        headers = self._read_headers()
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length", "")
        if length and not (length.isascii() and length.isdecimal()):
            raise InvalidResponseError(f"the length {length[:20]!r}")
        #: None if the end of the connection is the end of the body.
        self._length = int(length) if length and not self._chunked else None

    def read(self, most: int) -> bytes:
        """Read the body, at most ``most`` bytes of it.

        Raises:
            InvalidResponseError: The body is not in the announced form.
            CutShortError: The connection ended within the body.
        """
        parts, size = [], 0
        for part in self._parts(most):
            parts.append(part[: most - size])
            size += len(parts[-1])
            if size >= most:
                break
        return b"".join(parts)

    def lines(self, most: int, before_wait: Callable[[], None]) -> Iterator[bytes]:
        """Yield the lines of the body without their ends; a longer one than ``most`` is split.

        Args:
            most: The longest line in bytes.
            before_wait: Called before each read, which may wait for the peer.

        Raises:
            InvalidResponseError: The body is not in the announced form.
            CutShortError: The connection ended within the body.
        """
        rest = b""
        before_wait()
        for part in self._parts(most, as_lines=True):
            *whole, rest = (rest + part).split(b"\n")
            yield from whole
            if len(rest) >= most:
                yield rest
                rest = b""
            before_wait()
        if rest:
            yield rest

    def _parts(self, most: int, *, as_lines: bool = False) -> Iterator[bytes]:
        """Yield the body as it comes."""
        if self._chunked:
            yield from self._chunks(most)
        elif self._length is not None:
            left = min(self._length, most)
            while left:
                part = self._file.readline(left) if as_lines else self._file.read(left)
                if not part:
                    raise CutShortError
                left -= len(part)
                yield part
        else:
            while part := self._file.readline(most) if as_lines else self._file.read(most):
                yield part

    def _chunks(self, most: int) -> Iterator[bytes]:
        while True:
            text = self._line().split(b";", 1)[0].strip()
            try:
                size = int(text, 16)
            except ValueError:
                raise InvalidResponseError(f"the chunk size {text[:20]!r}") from None
            if size == 0:
                while self._line():  # the trailers
                    pass
                return
            if not 0 < size <= most:
                raise InvalidResponseError(f"a chunk of {size} bytes")
            part = self._file.read(size)
            if len(part) < size:
                raise CutShortError
            yield part
            if self._line():
                raise InvalidResponseError("a chunk without its end")

    def _read_status(self) -> int:
        line = self._line()
        version, _, rest = line.partition(b" ")
        number = rest[:3]
        if not version.startswith(b"HTTP/1.") or not number.isdigit() or len(number) < 3:  # noqa: PLR2004
            raise InvalidResponseError(f"the first line {line[:40]!r}")
        return int(number)

    def _read_headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for _ in range(_MAX_HEADERS):
            line = self._line()
            if not line:
                return headers
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon:
                raise InvalidResponseError(f"the header {name[:40]!r}")
            headers[name.strip().lower()] = value.strip()
        raise InvalidResponseError("too many headers")

    def _line(self) -> bytes:
        """Read one line of the head, without its end."""
        line = self._file.readline(_MAX_LINE_BYTES + 1)
        if len(line) > _MAX_LINE_BYTES:
            raise InvalidResponseError("a line without an end")
        if not line.endswith(b"\n"):
            if (
                line
                and not line.startswith(b"HTTP/1."[: len(line)])
                and not hasattr(self, "status")
            ):
                raise InvalidResponseError(f"the first line {line[:40]!r}")
            raise CutShortError
        return line.rstrip(b"\r\n")
