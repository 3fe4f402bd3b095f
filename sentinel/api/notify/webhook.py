"""Send a notification to a webhook by HTTP POST, within a time limit.

A request of its own over asyncio, because the blocking clients of the standard library limit each
read, but not a whole request to a server that sends a byte now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import re
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from sentinel.api.notify.delivery import DeliveryError
from sentinel.config.notify_settings import parse_webhook
from sentinel.host.files.regular_file import read_regular
from sentinel.protocol.version import __version__

#: The time for one attempt, from the lookup of the name to the status line, in seconds.
TIMEOUT_S = 10.0
#: The largest line or head of a response.
_MAX_HEAD_BYTES = 16 * 1024
#: The largest file with a URL, a token or a key.
_MAX_FILE_BYTES = 4096
_STATUS = re.compile(rb"HTTP/1\.[01] (?P<status>[1-5][0-9][0-9])(?: [^\r\n]*)?\r?\n")
#: Statuses after which the same request may succeed: Request Timeout, Too Early, Too Many Requests.
_RETRIED = {408, 425, 429}


class Webhook:
    """A webhook.

    Args:
        url: The URL, or the file with it.
        token: The file with a bearer token, or None.
        secret: The file with the key of the signature, or None.
    """

    def __init__(self, url: str, token: str | None, secret: str | None) -> None:
        self._url = url
        self._token = token
        self._secret = secret
        self._tls: ssl.SSLContext | None = None
        # A lookup cannot be cancelled; it must not take a thread that others wait for.
        self._lookups = ThreadPoolExecutor(1, "webhook-dns")

    async def send(self, name: str, id_: str, body: bytes) -> None:
        """Send one notification.

        Args:
            name: The name of the event.
            id_: Identifies the notification; the same in each attempt.
            body: The JSON.

        Raises:
            DeliveryError: It was not accepted.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status = await self._exchange(name, id_, body)
        except TimeoutError:
            raise DeliveryError(f"no response within {TIMEOUT_S:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise DeliveryError(f"its certificate is not valid: {error.verify_message}") from error
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise DeliveryError(f"the connection failed: {reason}") from error
        if status in range(300, 400):
            why = f"it answers with status {status}: redirects are not followed"
            raise DeliveryError(why, final=True)
        if status not in range(200, 300):
            final = status < 500 and status not in _RETRIED  # noqa: PLR2004 - HTTP's classes
            raise DeliveryError(f"it answers with status {status}", final=final)

    async def _exchange(self, name: str, id_: str, body: bytes) -> int:
        """Send the request, and read the status of the response."""
        given = self._read(self._url) if self._url.startswith("/") else self._url
        try:
            url = urlsplit(parse_webhook(given))
        except ValueError:  # without the text, which is a secret
            raise DeliveryError(f"there is no URL in {self._url}") from None
        host, secure = url.hostname or "", url.scheme == "https"
        headers = {
            "Host": url.netloc,
            "User-Agent": f"sentinel/{__version__}",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            "X-Sentinel-Event": name,
            "X-Sentinel-Delivery": id_,
        }
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._read(self._token)}"
        if self._secret is not None:
            key = self._read(self._secret).encode()
            digest = hmac.new(key, body, hashlib.sha256).hexdigest()
            headers["X-Sentinel-Signature-256"] = f"sha256={digest}"
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        reader, writer = await self._connect(host, url.port or (443 if secure else 80), secure)
        try:
            writer.write(head.encode() + b"\r\n" + body)
            with contextlib.suppress(ConnectionError):  # it may have answered without reading
                await writer.drain()
            return await _status(reader)
        finally:
            writer.transport.abort()

    async def _connect(
        self,
        host: str,
        port: int,
        secure: bool,  # noqa: FBT001 - private
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first address that accepts."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        tls: dict[str, object] = {}
        if secure:
            self._tls = self._tls or ssl.create_default_context()
            tls = {"ssl": self._tls, "server_hostname": host}
        last: OSError | None = None
        for *_, address in found:
            try:
                return await asyncio.open_connection(
                    str(address[0]),
                    port,
                    limit=_MAX_HEAD_BYTES,
                    **tls,  # type: ignore[arg-type]
                )
            except ssl.SSLError:
                raise
            except OSError as error:
                last = error
        raise last or OSError("there is no address")

    def _read(self, path: str) -> str:
        """Read a file of one line.

        Raises:
            DeliveryError: It cannot be read, or is empty.
        """
        try:
            text = read_regular(Path(path), _MAX_FILE_BYTES).decode().strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DeliveryError(f"{path} cannot be read: {reason}") from error
        if not text or not text.isprintable() or not text.isascii():
            raise DeliveryError(f"{path} has no line of ASCII text")
        return text


async def _status(reader: asyncio.StreamReader) -> int:
    """Read the status of a response, after those that only announce it."""
    while True:
        line = await reader.readuntil(b"\n")
        found = _STATUS.fullmatch(line)
        if found is None:
            raise DeliveryError("it does not answer with HTTP")
        status = int(found["status"])
        if status >= 200:  # noqa: PLR2004 - 1xx is not the response
            return status
        while (await reader.readuntil(b"\n")).strip():
            pass
