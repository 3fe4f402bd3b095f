"""The settings of what serves a daemon: its log, its API and history, access and notifications."""

from __future__ import annotations

import difflib
import fnmatch
import shlex
from dataclasses import dataclass
from urllib.parse import urlsplit

from sentinel.config.setting import (
    Form,
    one_of,
    parse_address,
    parse_file,
    parse_gpus,
    parse_names,
    parse_workload_names,
    setting,
    start_setting,
)
from sentinel.protocol.events import EVENTS
from sentinel.units import parse_duration, parse_size

#: The value of ``log.level`` with which each check of each GPU is logged.
DEBUG = "debug"

_ADDRESS = Form(parse=parse_address, metavar="[HOST:]PORT")
_GROUP = Form(parse=str, metavar="GROUP")
_SIZE = Form(parse=parse_size, metavar="SIZE")

#: What others may do, and what can be granted to those whom the administrator has chosen.
_USERS = one_of("none", "read", "operate")
_GRANTED = one_of("read", "operate", "administer")
_LIST = Form(parse=parse_workload_names, metavar="NAME,...", many=True)

#: The default: a GPU is free, and what an administrator has to look at.
_EVENTS = "gpu.idle,gpu.xid,gpu.unknown,stressor.f*,probe.hung,service.warning"

#: The time to split a longer command grows with the square of its longest word.
_MAX_COMMAND = 4096

#: A longer pattern names no event; the time to compile one grows with the square of its length.
_MAX_NAME = 100


def parse_webhook(text: str) -> str:
    """Parse the URL of a webhook, or the absolute path of a file with one.

    Raises:
        ValueError: It is neither.
    """
    if text.startswith("/"):
        return text
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError as error:
        raise ValueError(f"{text!r} is not a URL: {error}") from None
    if url.scheme not in {"http", "https"} or not url.hostname or not text.isprintable():
        raise ValueError(f"{text!r} is neither a URL with http or https nor the path of a file")
    if url.username is not None or " " in text:
        raise ValueError("a URL of a webhook has no user and no space: use notify.token")
    return text


def parse_command(text: str) -> tuple[str, ...]:
    """Parse a program with its arguments, as a shell splits them; no shell runs it.

    Raises:
        ValueError: It does not begin with an absolute path, a quote is open, or it is too long.
    """
    if len(text) > _MAX_COMMAND:
        raise ValueError(f"it has {len(text)} characters; at most {_MAX_COMMAND} are allowed")
    words = tuple(shlex.split(text))
    if not words or not words[0].startswith("/"):
        raise ValueError(f"{text!r} does not begin with the absolute path of a program")
    return words


def parse_path(text: str) -> str:
    """Parse the absolute path of a file.

    Raises:
        ValueError: It is not absolute.
    """
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is not an absolute path")
    return text


def parse_events(text: str) -> tuple[str, ...]:
    """Parse names of events; ``*`` stands for any part of a name.

    Raises:
        ValueError: A name is of no event.
    """
    names = parse_names(text)
    for name in names:
        if len(name) > _MAX_NAME or not fnmatch.filter(EVENTS, name):
            near = difflib.get_close_matches(name, EVENTS, 1)
            hint = f"; is it {near[0]}?" if near else ""
            raise ValueError(
                f"{name!r} is the name of no event{hint} docs/reference/events.md has all"
            )
    return names


_FILE = Form(parse=parse_path, metavar="FILE", trusted=True)


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """The settings of services; fixed at the start, but for the level of the log."""

    # --- the log ------------------------------------------------------------------------------

    log_file: str | None = start_setting(
        "Write the log to this file; by default `sentinel.log` in the state directory for a daemon,"
        " and none in the foreground.",
        Form(parse=parse_file, metavar="FILE", trusted=True).or_off(),
        key="log.file",
    )
    log_level: str = setting(
        "Debug adds the used memory of each GPU at every check.",
        one_of("info", DEBUG),
        "info",
        key="log.level",
    )

    # --- where clients are served, besides the socket of the user -----------------------------

    tcp: str | None = start_setting(
        "Also serve clients with the token at this address, such as 127.0.0.1:8765.",
        _ADDRESS.or_off(),
        key="api.tcp",
    )
    socket_group: str | None = start_setting(
        "Also allow this group to use the socket.", _GROUP.or_off(), key="api.group"
    )
    metrics: str | None = start_setting(
        "Serve metrics without a token at this address, such as 8766.",
        _ADDRESS.or_off(),
        key="metrics.address",
    )
    history_size: int | None = start_setting(
        "Keep a history of at most this size.",
        _SIZE.or_off().within("16MiB", "1TiB"),
        "256MiB",
        key="history.size",
    )

    # --- what other users and clients over TCP may do -----------------------------------------

    access_users: str = start_setting(
        "What every local user may do.", _USERS, "read", key="access.users"
    )
    access_group: str = start_setting(
        "What the members of --socket-group may do.", _GRANTED, "operate", key="access.group"
    )
    access_tcp: str = start_setting(
        "What holders of the token may do over TCP.", _GRANTED, "operate", key="access.tcp"
    )
    access_workloads: tuple[str, ...] = start_setting(
        "Workloads that a client other than the daemon's user or root may set.",
        _LIST,
        "gemm,elementwise,mixed,memtest,units,pulse,hold",
        key="access.workloads",
    )

    # --- which events are sent to whom --------------------------------------------------------

    notify_webhook: str | None = start_setting(
        "POST events to this URL, or to the one in this file.",
        Form(parse=parse_webhook, metavar="URL|FILE", trusted=True).or_off(),
        key="notify.webhook",
    )
    notify_token: str | None = start_setting(
        "Token for the webhook, sent as `Authorization: Bearer`.",
        _FILE.or_off(),
        key="notify.token",
    )
    notify_secret: str | None = start_setting(
        "Key of the webhook's signature (HMAC-SHA256).",
        _FILE.or_off(),
        key="notify.secret",
    )
    notify_command: tuple[str, ...] | None = start_setting(
        "Run this program for events, without a shell.",
        Form(parse=parse_command, metavar="COMMAND", trusted=True).or_off(),
        key="notify.command",
    )
    notify_events: tuple[str, ...] = start_setting(
        "Events to send; `*` is any part of a name.",
        Form(parse=parse_events, metavar="EVENT,...", many=True),
        _EVENTS,
        key="notify.events",
    )
    notify_gpus: tuple[str, ...] = start_setting(
        "Send events about these GPUs, and events that concern no GPU.",
        Form(parse=parse_gpus, metavar="GPU,...", many=True),
        "all",
        key="notify.gpus",
    )
    notify_every: float = start_setting(
        "Send each event of a GPU at most once in this time, with a count.",
        Form(parse=parse_duration, metavar="TIME").within("1s", "1d"),
        "30s",
        key="notify.every",
    )
