"""The settings of the process that serves clients: its addresses, and its history."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.config.parsers import parse_address
from sentinel.config.setting import Form, start_setting
from sentinel.units import parse_size

_ADDRESS = Form(parse=parse_address, metavar="[HOST:]PORT")
_GROUP = Form(parse=str, metavar="GROUP")
_SIZE = Form(parse=parse_size, metavar="SIZE")


@dataclass(frozen=True, kw_only=True)
class ApiSettings:
    """Where clients are served, besides the socket of the user, and how much history is kept."""

    tcp: str | None = start_setting(
        "Also serve clients that have the token at this address, such as 127.0.0.1:8765.",
        _ADDRESS.or_off(),
        key="api.tcp",
    )
    socket_group: str | None = start_setting(
        "Also allow this group to use the socket.", _GROUP.or_off(), key="api.group"
    )
    metrics: str | None = start_setting(
        "Serve Prometheus metrics without a token at this address, such as 8766.",
        _ADDRESS.or_off(),
        key="metrics.address",
    )
    history_size: int | None = start_setting(
        "Keep the history in a file of at most this size; `off` disables the history.",
        _SIZE.or_off().within("16MiB", "1TiB"),
        "256MiB",
        key="history.size",
    )
