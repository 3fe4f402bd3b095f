"""The web page: files that are the same for everybody, with no secret in them."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response

#: What the page may do: load its own files and ask the daemon that it came from, nothing else.
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
    "cache-control": "no-cache",  # asked for each time, and answered in a line while it is the same
}
#: Named here and not guessed: what a host believes of file names is its own affair.
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class _File:
    """One file of the page, ready to be sent."""

    def __init__(self, name: str, body: bytes) -> None:
        self.body = body
        self.kind = _KINDS[PurePosixPath(name).suffix]
        self.tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _load() -> dict[str, _File]:
    """Return all files by their path: read once, so that no request waits for a disk."""
    folder = files(__name__)
    found = {}
    for place, prefix in ((folder, ""), (folder / "vendor", "vendor/")):
        for entry in place.iterdir():
            if entry.is_file() and PurePosixPath(entry.name).suffix in _KINDS:
                name = f"{prefix}{entry.name}"
                found[f"/page/{name}"] = _File(name, entry.read_bytes())
    return {"/": found["/page/index.html"], **found}


_FILES = _load()
#: The paths that need no token.
OPEN = frozenset(_FILES)

router = APIRouter(include_in_schema=False)


def _serve(path: str, file: _File) -> None:
    """Add the route of one file."""

    async def read(if_none_match: Annotated[str | None, Header()] = None) -> Response:
        headers = {**HEADERS, "etag": file.tag}
        if if_none_match == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers, media_type=file.kind)

    router.add_api_route(path, read, methods=["GET", "HEAD"], response_class=Response)


for _path, _file in _FILES.items():
    _serve(_path, _file)
