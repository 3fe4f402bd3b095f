"""The application of the API: all routes, the files of the page, and the OpenAPI document."""

from __future__ import annotations

import asyncio
import hashlib
import json
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Request
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.responses import Response

from sentinel.api import bodies
from sentinel.api.access import needed_level
from sentinel.api.context import ApiContext
from sentinel.api.routes import compat, control, history, reservations, settings, status
from sentinel.api.routes.compat_schemas import Monitoring
from sentinel.api.undeclared import check_declared
from sentinel.protocol.events import EVENTS
from sentinel.protocol.problem import Problem
from sentinel.protocol.rules import FAULT_STATES, GPU_STATES

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

page = APIRouter(include_in_schema=False)

#: In the order of the OpenAPI document.
_ROUTERS = (
    status.state,
    control.control,
    *reservations.ROUTERS,
    control.burnin,
    *settings.ROUTERS,
    status.events,
    compat.router,
    history.router,
    page,
)


class _File:
    """One file of the page, in memory."""

    def __init__(self, name: str, body: bytes) -> None:
        self.body = body
        self.media_type = _MEDIA_TYPES[PurePosixPath(name).suffix]
        self.etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _load_files() -> dict[str, _File]:
    """Read all files, by path, so that no request waits for a disk."""
    folder = files("sentinel.web")
    loaded = {}
    for source, prefix in ((folder, ""), (folder / "vendor", "vendor/")):
        for entry in source.iterdir():
            if entry.is_file() and PurePosixPath(entry.name).suffix in _MEDIA_TYPES:
                name = f"{prefix}{entry.name}"
                loaded[f"/page/{name}"] = _File(name, entry.read_bytes())
    for name, content in (
        ("EVENTS", _event_types()),
        ("LINKS", _links()),
        ("STATES", GPU_STATES | FAULT_STATES),
    ):
        script = f"export const {name} = {json.dumps(content)};\n"
        path = f"{name.lower()}.js"
        loaded[f"/page/{path}"] = _File(path, script.encode())
    return {"/": loaded["/page/index.html"], **loaded}


def _event_types() -> dict[str, Any]:
    """Describe the events of the catalogue."""
    return {
        event.name: {"word": event.word, "kind": event.kind, "sentence": event.sentence}
        for event in EVENTS.values()
    }


def _links() -> list[list[str]]:
    """List the project's addresses, as its package declares them."""
    try:
        declared = metadata(_PACKAGE).get_all("Project-URL") or []
    except PackageNotFoundError:  # a copy of the source that is not installed
        declared = []
    named = [[part.strip() for part in entry.split(",", 1)] for entry in declared]
    return [pair for pair in named if pair[-1].startswith("https://")]


_FILES = _load_files()
#: The paths that need no token.
PUBLIC_PATHS = frozenset(_FILES)


def _serve_file(path: str, file: _File) -> None:
    """Add the route of one file."""

    async def read(if_none_match: Annotated[str | None, Header()] = None) -> Response:
        headers = {**HEADERS, "etag": file.etag}
        if if_none_match == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers, media_type=file.media_type)

    page.add_api_route(path, read, methods=["GET", "HEAD"], response_class=Response)


for _path, _file in _FILES.items():
    _serve_file(_path, _file)


def make_app(context: ApiContext | None = None) -> FastAPI:
    """Build the application; without a context, only its OpenAPI document can be read."""
    app = FastAPI(
        title="sentinel",
        version="1",
        openapi_url=None,  # FastAPI's own document has another format of errors
        redirect_slashes=False,
    )
    app.state.context = context
    app.state.monitoring = Monitoring()
    bodies.install(app, {compat.PREFIX: compat.encode_error})
    for router in _ROUTERS:
        app.include_router(router, dependencies=[Depends(check_declared)])
    app.add_route("/openapi.json", _read_document, include_in_schema=False)
    return app


async def _read_document(request: Request) -> Response:
    # In a thread: the first one takes 0.1 s.
    text = await asyncio.to_thread(document, request.app)
    return Response(text, media_type="application/json")


@cache
def document(app: FastAPI) -> str:
    """Write the OpenAPI document of an application."""
    body = get_openapi(
        title=app.title,
        version=app.version,
        summary="Keep idle NVIDIA GPUs busy, and yield each one when a foreign process appears.",
        routes=app.routes,
    )
    for path, operations in body["paths"].items():
        for method, operation in operations.items():
            operation["x-level"] = needed_level(method.upper(), path).name.lower()
    schemas = body["components"]["schemas"]
    schemas |= _problem_schemas()
    body["components"]["schemas"] = dict(sorted(schemas.items()))
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def _problem_schemas() -> dict[str, Any]:
    """Write the schemas of Problem and its parts, which routes name by PROBLEM_REFERENCE."""
    template = "#/components/schemas/{model}"
    schema = TypeAdapter(Problem).json_schema(ref_template=template, mode="serialization")
    return {**schema.pop("$defs"), "Problem": schema}
