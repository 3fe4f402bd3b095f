"""Send a request to the daemon, and decode the response or view it; the base of all verbs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from sentinel.client.transport import Address, describe, send
from sentinel.errors import ConfigError, ConnectionLostError, ServiceError, TimedOutError
from sentinel.host.daemon_lookup import find_socket
from sentinel.protocol import SCHEMA_VERSION
from sentinel.units import MAX_TIME_S

#: The default time for the daemon to release or find GPUs, in seconds.
WAIT_S = 30.0

#: How often a lost request is sent again, and the pause before, in seconds; the daemon keeps its
#: place for LEASE_S. A connection that lasted so long was not lost to a failure that repeats.
_MAX_RETRIES, _RETRY_PAUSE_S, _LASTING_S = 5, 0.5, 30.0

#: The fields that are times, in ISO 8601.
_TIMES = {"since", "until", "last", "at"}
T = TypeVar("T")
#: A selection of GPUs, by index or range of them, UUID or its unique prefix, or PCI address.
Gpus = Sequence[str | int] | str | int
_NAMES = "Give an index, a UUID or its unique prefix, or a PCI address."


def find_address(
    socket: str | Path | None = None,
    *,
    tcp: str | None = None,
    token: str | Path | None = None,
    simulated: Path | None = None,
) -> Address:
    """Find the address of a daemon; see :func:`sentinel.client.connect` for the arguments.

    Raises:
        ConfigError: ``tcp`` is not an address, or the token cannot be read.
    """
    if tcp is None:
        folder = None if simulated is None else Path(text_of(simulated, "simulated"))
        path = None if socket is None else text_of(socket, "socket")
        return Address(socket=find_socket(path, folder))
    host, _, port = text_of(tcp, "tcp").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"{tcp!r} is not an address; write one such as 127.0.0.1:8765")
    host = host.removeprefix("[").removesuffix("]")
    return Address(host=host, port=int(port), token=_read_token(token))


def _read_token(file: str | Path | None) -> str | None:
    if file is None:
        return None
    try:
        token = Path(text_of(file, "token")).read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"the token cannot be read from {file}: {error}") from error
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError(f"there is no token in {file}")
    return token


class Verbs:
    """The base of the verbs of an API: how a request is sent, and its response decoded."""

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wait: float = 0.0
    ) -> dict[str, Any]:
        """Send any request, and parse the JSON object of the response.

        Raises:
            SentinelError: As for every verb; one of the types in :mod:`sentinel.errors`.
        """
        raise NotImplementedError

    def fetch(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        wait: float = 0.0,
    ) -> T:
        """Send a request, and decode the response into a ``kind``.

        Fields of the body that are None are left out.

        Raises:
            SentinelError: As for every verb.
        """
        given = body and {name: value for name, value in body.items() if value is not None}
        return decode(kind, self.request(method, path, given, wait=wait))

    def put(self, kind: type[T], path: str, body: Mapping[str, Any], *, wait: float) -> T:
        """Send a request that waits, again if the daemon's API process ends meanwhile.

        A PUT changes nothing if it has been executed before, and continues at its place. Fields of
        the body that are None are sent as null.

        Raises:
            SentinelError: As for every verb.
        """
        deadline, left = time.monotonic() + number_of(wait, "wait"), wait

        def ask() -> T:
            nonlocal left
            limit = {"wait_s": None if left > MAX_TIME_S else left}
            try:
                return decode(kind, self.request("PUT", path, {**body, **limit}, wait=left))
            finally:
                left = max(0.0, deadline - time.monotonic())

        return ask_again(ask, deadline)


def ask_again(ask: Callable[[], T], deadline: float = math.inf) -> T:
    """Call what sends an idempotent request, again while the daemon's API process is replaced.

    The next process may start after a pause, in which no request is answered: after a lost
    connection, a late response before ``deadline`` is that of the request that precedes a wait.

    Args:
        ask: Sends the request.
        deadline: When the wait of the request ends, of the monotonic clock.

    Raises:
        SentinelError: As for every verb.
    """
    retries = 0
    while True:
        began = time.monotonic()
        try:
            return ask()
        except (ConnectionLostError, TimedOutError) as error:
            late = isinstance(error, TimedOutError)
            if late and (not retries or time.monotonic() >= deadline):
                raise
            retries = 1 if time.monotonic() - began > _LASTING_S else retries + 1
            if retries > _MAX_RETRIES:
                raise
        time.sleep(_RETRY_PAUSE_S)


class Requester(Verbs):
    """Sends requests to one daemon; safe to use from many threads.

    Args:
        address: The daemon's address.
        timeout: Seconds until a response must be complete, in addition to the wait of a verb.
    """

    def __init__(self, address: Address, *, timeout: float = 10.0) -> None:
        self.address = address
        self._timeout = number_of(timeout, "timeout")

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wait: float = 0.0
    ) -> dict[str, Any]:
        """Send any request, and parse the JSON object of the response; see :class:`Verbs`."""
        if number_of(wait, "wait") > self._timeout:
            # A daemon that answers nothing at all must not cost the whole wait.
            send(self.address, "GET", "/v1/status", None, self._timeout)
        response = send(self.address, method, path, body, self._timeout + wait)
        version = response.get("schema_version")
        if version != SCHEMA_VERSION:
            raise ServiceError(
                f"the daemon at {self.address} uses version {version!r} of the API; this client "
                f"supports version {SCHEMA_VERSION}",
                "Use the client that was installed with the daemon.",
            )
        return response


def decode(kind: type[T], response: Mapping[str, Any]) -> T:
    """Decode a response.

    Raises:
        ServiceError: A field is missing or of a wrong type.
    """
    from sentinel.protocol.codec import DecodeError, from_json  # not needed by `sentinel status`

    try:
        return from_json(kind, response)
    except DecodeError as error:
        raise ServiceError(
            f"invalid response from the daemon: {error}",
            "Client and daemon may be of different versions: sentinel --version; sentinel status",
        ) from error


def text_of(value: object, what: str) -> str:
    """Convert text, a number or a path into text.

    Args:
        value: What a script gave.
        what: The name of the argument, for the error.

    Raises:
        ConfigError: It is something else, such as a function.
    """
    if isinstance(value, str | int | float | PathLike) and not isinstance(value, bool):
        return str(value)
    remedy = "Write it as text."
    if what == "workload" and hasattr(value, "__qualname__"):
        module = value.__module__.replace("__main__", "my_module")
        remedy = f"Write it as text: {module}:{value.__qualname__}"
    raise ConfigError(f"{what}: {describe(value)} is not text", remedy)


def texts_of(settings: object) -> dict[str, str | None]:
    """Convert the values of settings into texts; None stays.

    Raises:
        ConfigError: They are no mapping, or a value is neither text nor a number.
    """
    if not isinstance(settings, Mapping):
        what = f"settings: {describe(settings)} is not a mapping"
        raise ConfigError(what, "Write one such as {'memory.target': '1GiB'}.")
    return {
        text_of(key, "settings"): None if value is None else text_of(value, key)
        for key, value in settings.items()
    }


def query_of(**parameters: object) -> str:
    """Encode the query of a request, with its question mark; None is left out.

    Raises:
        ConfigError: A value is neither text nor a number nor a time.
    """
    from urllib.parse import urlencode  # as in path_part()

    texts = {
        name: value.astimezone().isoformat()
        if isinstance(value, datetime)
        else text_of(value, name)
        for name, value in parameters.items()
        if value is not None
    }
    return f"?{urlencode(texts)}" if texts else ""


def path_part(value: object, what: str) -> str:
    """Quote a name or an id as a part of a path.

    Raises:
        ConfigError: It is empty, has a slash, which would name another route, or is no text.
    """
    from urllib.parse import quote  # slow to import, and `sentinel status` needs none

    text = text_of(value, what)
    if not text:
        raise ConfigError(f"{what}: it is empty")
    if "/" in text:
        raise ConfigError(f"{what}: {describe(value)} has a slash, and nothing here is named so")
    return quote(text, safe="")


def selector_of(gpu: object, what: str = "gpu") -> str:
    """Convert one GPU into the API's selector.

    Args:
        gpu: What a script gave.
        what: The name of the argument, for the error.

    Raises:
        ConfigError: It is neither text nor an index.
    """
    if isinstance(gpu, str | int) and not isinstance(gpu, bool):
        return str(gpu)
    raise ConfigError(f"{what}: {describe(gpu)} names no GPU", _NAMES)


def number_of(
    value: object, what: str, kind: str = "a number of seconds", *, least: float = 0
) -> float:
    """Check a number.

    Args:
        value: What a script gave.
        what: The name of the argument, for the error.
        kind: What the argument is.
        least: The smallest number that is allowed.

    Raises:
        ConfigError: It is no number, or below ``least``.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= least:
        return value
    raise ConfigError(f"{what}: {describe(value)} is not {kind} from {least} on")


def selectors(gpus: Gpus | None, what: str = "gpus") -> list[str] | None:
    """Convert GPUs into the API's selectors; commas separate several in one text.

    Returns:
        None for None, which is every GPU.

    Raises:
        ConfigError: No GPU is named: an empty list is no GPU, never all of them.
    """
    return None if gpus is None else named(gpus, what, "Leave it out, or give None, for all.")


def named(gpus: Gpus, what: str = "gpus", remedy: str = _NAMES) -> list[str]:
    """Convert GPUs into the API's selectors, where None is not every GPU.

    Raises:
        ConfigError: No GPU is named.
    """
    listed = gpus if isinstance(gpus, Iterable) and not isinstance(gpus, str) else [gpus]
    found = [part.strip() for gpu in listed for part in selector_of(gpu, what).split(",")]
    if not any(found):
        raise ConfigError(f"{what}: {describe(gpus)} names no GPU", remedy)
    return found


class JsonView:
    """A JSON object with its fields as attributes; a missing one is None, as an unknown one is.

    Args:
        fields: The parsed object. Objects in it become views, and lists become tuples.
    """

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols of Python, such as those of copy
            raise AttributeError(name)
        value = _view(name, self._fields.get(name))
        self.__dict__[name] = value
        return value


def _view(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return JsonView(value)
    if isinstance(value, list):
        return tuple(_view("", item) for item in value)
    if name in _TIMES and isinstance(value, str):
        return datetime.fromisoformat(value)
    return value
