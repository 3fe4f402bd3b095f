"""The files of the web page; they are public and contain no secret."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import PackageNotFoundError, metadata
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response

from sentinel.protocol.events import EVENTS

#: The page may load its own files and send requests to its own origin only.
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",  # revalidated each time, by its ETag
}
#: Listed here, since the host's own table of file types may differ.
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

#: The distribution that declares the addresses of the project.
_PACKAGE = "gpu-sentry"


class _File:
    """One file of the page, in memory."""

    def __init__(self, name: str, body: bytes) -> None:
        self.body = body
        self.media_type = _MEDIA_TYPES[PurePosixPath(name).suffix]
        self.etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _load() -> dict[str, _File]:
    """Read all files, by path, so that no request waits for a disk."""
    folder = files("sentinel.web")
    loaded = {}
    for source, prefix in ((folder, ""), (folder / "vendor", "vendor/")):
        for entry in source.iterdir():
            if entry.is_file() and PurePosixPath(entry.name).suffix in _MEDIA_TYPES:
                name = f"{prefix}{entry.name}"
                loaded[f"/page/{name}"] = _File(name, entry.read_bytes())
    loaded["/page/events.js"] = _File("events.js", _event_types())
    loaded["/page/links.js"] = _File("links.js", _links())
    return {"/": loaded["/page/index.html"], **loaded}


def _event_types() -> bytes:
    """Encode the event catalogue as a script of the page."""
    types = {
        event.name: {"word": event.word, "kind": event.kind, "sentence": event.sentence}
        for event in EVENTS.values()
    }
    return f"export const EVENTS = {json.dumps(types)};\n".encode()


def _links() -> bytes:
    """Encode the project's addresses, as its package declares them, as a script of the page."""
    try:
        declared = metadata(_PACKAGE).get_all("Project-URL") or []
    except PackageNotFoundError:  # a copy of the source that is not installed
        declared = []
    named = [[part.strip() for part in one.split(",", 1)] for one in declared]
    links = [one for one in named if one[-1].startswith("https://")]
    return f"export const LINKS = {json.dumps(links)};\n".encode()


_FILES = _load()
#: The paths that need no token.
PUBLIC_PATHS = frozenset(_FILES)

router = APIRouter(include_in_schema=False)


def _serve(path: str, file: _File) -> None:
    """Add the route of one file."""

    async def read(if_none_match: Annotated[str | None, Header()] = None) -> Response:
        headers = {**HEADERS, "etag": file.etag}
        if if_none_match == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers, media_type=file.media_type)

    router.add_api_route(path, read, methods=["GET", "HEAD"], response_class=Response)


for _path, _file in _FILES.items():
    _serve(_path, _file)
