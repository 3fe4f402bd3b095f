"""Deliver a notification to a webhook or to a program, without a shell, within a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import hmac
import json
import os
import re
import signal
import socket
import ssl
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sentinel.config.services import parse_webhook
from sentinel.host.regular_file import read_regular
from sentinel.protocol import __version__
from sentinel.units import format_exit

#: The time for one run, in seconds; then its process group is killed.
COMMAND_TIMEOUT_S = 30.0
#: The longest value of a variable, in characters.
_MAX_VALUE = 4096
#: As many links as the kernel follows in one path.
_MAX_LINKS = 40
#: Variables that are the daemon's alone.
_OWN = ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "MALLOC_ARENA_MAX")

#: The time for one attempt, from the lookup of the name to the status line, in seconds.
WEBHOOK_TIMEOUT_S = 10.0
#: The largest line or head of a response.
_MAX_HEAD_BYTES = 16 * 1024
#: The largest file with a URL, a token or a key.
_MAX_FILE_BYTES = 4096
_STATUS = re.compile(rb"HTTP/1\.[01] (?P<status>[1-5][0-9][0-9])(?: [^\r\n]*)?\r?\n")
#: Statuses after which the same request may succeed: Request Timeout, Too Early, Too Many Requests.
_RETRIED = {408, 425, 429}


class DeliveryError(Exception):
    """A notification was not accepted.

    Args:
        why: The reason, without secrets.
        final: Whether another attempt cannot succeed.
    """

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


class CommandHook:
    """A program that gets each notification as JSON on its standard input, and in variables.

    It runs as the daemon's own user.

    Args:
        command: The absolute path of the program, and its arguments.
    """

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command

    async def send(self, name: str, id_: str, body: bytes) -> None:
        """Run the program for one notification.

        Args:
            name: The name of the event.
            id_: Identifies the notification; the same in each attempt.
            body: The JSON.

        Raises:
            DeliveryError: The program cannot be run, or did not succeed.
        """
        path = self._command[0]
        why = why_unsafe(path)
        if why is not None:
            raise DeliveryError(f"{path} is not run: {why}", final=True)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                env=environment(name, id_, json.loads(body)),
                cwd="/",
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DeliveryError(f"{path} cannot be run: {reason}") from error
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                await process.communicate(body + b"\n")  # a program may append it to a file
        except TimeoutError:
            raise DeliveryError(f"{path} did not end within {COMMAND_TIMEOUT_S:g} s") from None
        finally:
            if process.returncode is None:  # also if this process ends
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.shield(process.wait())
        if process.returncode != 0:
            raise DeliveryError(f"{path} {format_exit(process.returncode or 0)}")


def why_unsafe(path: str) -> str | None:
    """Explain why a program must not be run by this user, or return None.

    Root runs only what no other user can change: a path of a file is not yet a program of root's.
    Nor is a link, which its owner may turn to another program at any time.
    """
    if os.getuid() != 0:
        return None
    try:
        for step in _way_to(Path(path)):
            there = step.lstat()
            shared = there.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            sticky = stat.S_ISDIR(there.st_mode) and there.st_mode & stat.S_ISVTX
            open_to_all = shared and not sticky and not stat.S_ISLNK(there.st_mode)
            if there.st_uid != 0 or open_to_all:
                return f"users other than root can change {step}"
    except OSError as error:
        return str(error.strerror)
    return None


def _way_to(path: Path) -> Iterator[Path]:
    """Yield each folder and each link on the way to a file, and the file.

    Raises:
        OSError: One does not exist, or there are too many links.
    """
    done, names, links = Path("/"), list(path.parts[1:]), 0
    yield done
    while names:
        name = names.pop(0)
        if name == "..":
            done = done.parent
            continue
        yield done / name
        try:
            target = (done / name).readlink()
        except OSError as error:
            if error.errno != errno.EINVAL:  # it is no link
                raise
            done /= name
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        done = Path("/") if target.is_absolute() else done
        names = [*target.parts[target.is_absolute() :], *names]


def environment(name: str, id_: str, body: Mapping[str, Any]) -> dict[str, str]:
    """Build the variables of the program: those of the daemon, and the fields of the event."""
    variables = {key: text for key, text in os.environ.items() if not key.startswith(_OWN)}
    variables = {
        key: text for key, text in variables.items() if not key.startswith("SENTINEL_EVENT_")
    }
    event = {f"EVENT_{key}".upper(): value for key, value in body["event"].items()}
    event |= {"EVENT_NAME": name, "EVENT_DELIVERY": id_, "EVENT_HOST": body["host"]}
    event |= {"EVENT_COUNT": body["count"]}
    event.pop("EVENT_EVENT", None)
    for key, value in event.items():
        text = value if isinstance(value, str) else json.dumps(value)
        variables[f"SENTINEL_{key}"] = text.replace("\0", "")[:_MAX_VALUE]
    return variables


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
            async with asyncio.timeout(WEBHOOK_TIMEOUT_S):
                status = await self._exchange(name, id_, body)
        except TimeoutError:
            raise DeliveryError(f"no response within {WEBHOOK_TIMEOUT_S:g} s") from None
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
