"""What each client may do, and what each request needs."""

from __future__ import annotations

import os

from sentinel.api.http.auth import Peer
from sentinel.protocol.caller import Level
from sentinel.protocol.commands import AccessPolicy

#: Methods that change nothing.
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
#: Requests for administrators: they concern all GPUs, or the daemon itself.
_ADMINISTRATION = frozenset(
    {
        ("POST", "/v1/start"),
        ("POST", "/v1/stop"),
        ("POST", "/v1/shutdown"),
        ("POST", "/v1/restart"),
        ("POST", "/v1/reload"),
        ("PATCH", "/v1/settings"),
        ("POST", "/v1/burnin"),
        ("DELETE", "/v1/burnin"),
        ("POST", "/v1/sessions"),
        ("POST", "/v1/acknowledge"),
        ("PUT", "/api/gpu/config"),
    }
)
#: The beginning of the path of a session, which administrators end: sessions are settings.
_SESSION = "/v1/sessions/"


def needed_level(method: str, path: str) -> Level:
    """Determine the level that a request needs; the supervisor may refuse it nevertheless.

    It refuses, for example, to end the reservation of another user.
    """
    if method in _READING:
        return Level.READ
    ends_session = method == "DELETE" and path.startswith(_SESSION)
    administers = ends_session or (method, path) in _ADMINISTRATION
    return Level.ADMINISTER if administers else Level.OPERATE


def local_level(peer: Peer, policy: AccessPolicy) -> Level:
    """Determine what a peer may do over the Unix socket."""
    if peer.uid in {0, os.getuid()}:
        return Level.OWN
    if policy.gid is not None and policy.gid in peer.groups:
        return max(policy.group, policy.users)
    return policy.users


def why_forbidden(peer: Peer, level: Level, needed: Level) -> str:
    """Explain a rejection: the needed level, that of the peer, and the settings that grant it."""
    wants = f"This needs the level `{needed.name.lower()}`"
    if peer.via == "tcp":
        # Nothing grants more to the token of readers.
        return (
            f"{wants}, and this token has `{level.name.lower()}`; --access-tcp sets the"
            " level of the token in the file `token`, and of no other."
        )
    settings = "--socket-group and --access-group set it"
    if needed <= Level.OPERATE:  # the highest that --access-users takes
        settings = "--access-users, --socket-group and --access-group set it"
    return f"{wants}, and {peer.caller(level)} has `{level.name.lower()}`; {settings}."
