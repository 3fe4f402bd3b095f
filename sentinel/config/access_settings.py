"""The settings of access: what other users and clients over TCP may do."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.config.parsers import one_of, parse_workload_names
from sentinel.config.setting import Form, start_setting

#: What others may do, and what can be granted to those whom the administrator has chosen.
_USERS = one_of("none", "read", "operate")
_GRANTED = one_of("read", "operate", "administer")
_LIST = Form(parse=parse_workload_names, metavar="NAME,...", many=True)


@dataclass(frozen=True, kw_only=True)
class AccessSettings:
    """What other users and clients over TCP may do; fixed at the start."""

    access_users: str = start_setting(
        "What every local user may do over the socket.", _USERS, "read", key="access.users"
    )
    access_group: str = start_setting(
        "What the members of --socket-group may do.", _GRANTED, "operate", key="access.group"
    )
    access_tcp: str = start_setting(
        "What holders of the token may do over TCP.", _GRANTED, "operate", key="access.tcp"
    )
    access_workloads: tuple[str, ...] = start_setting(
        "The registered workloads that a client may set without being the daemon's user or root.",
        _LIST,
        "gemm,elementwise,mixed,memtest,pulse,hold",
        key="access.workloads",
    )
