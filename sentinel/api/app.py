"""The API's application: all routes, without a socket, and its OpenAPI document."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.responses import Response

from sentinel.api import bodies, page
from sentinel.api.access import needed_level
from sentinel.api.context import ApiContext
from sentinel.api.routes import compat, control, history, reservations, settings, status
from sentinel.api.routes.compat_schemas import Monitoring
from sentinel.protocol.problem import Problem

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
    page.router,
)


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
        app.include_router(router)
    app.add_route("/openapi.json", _read_document, include_in_schema=False)
    return app


async def _read_document(request: Request) -> Response:
    return Response(document(request.app), media_type="application/json")


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
