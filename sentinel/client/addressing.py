"""Find the daemon that a client talks to: a socket, or a TCP address with its token."""

from __future__ import annotations

from pathlib import Path

from sentinel.client.transport import Address
from sentinel.errors import ConfigError
from sentinel.host.daemons.daemon_lookup import find_socket


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
        return Address(socket=find_socket(None if socket is None else str(socket), simulated))
    host, _, port = tcp.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"{tcp!r} is not an address; write one such as 127.0.0.1:8765")
    host = host.removeprefix("[").removesuffix("]")
    return Address(host=host, port=int(port), token=_read_token(token))


def _read_token(file: str | Path | None) -> str | None:
    if file is None:
        return None
    try:
        token = Path(file).read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"the token cannot be read from {file}: {error}") from error
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError(f"there is no token in {file}")
    return token
