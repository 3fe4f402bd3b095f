"""The OpenAPI document of the API."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from sentinel.api.http.errors import MEDIA_TYPE

router = APIRouter()


@router.get("/openapi.json", include_in_schema=False)
async def read_document(request: Request) -> Response:
    """Read this document."""
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
    for path in body["paths"].values():
        for operation in path.values():
            for response in operation["responses"].values():
                _set_problem_type(response)
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def _set_problem_type(response: dict[str, Any]) -> None:
    """Give a problem its own media type."""
    for body in response.get("content", {}).values():
        if body.get("schema", {}).get("$ref", "").endswith("/Problem"):
            response["content"] = {MEDIA_TYPE: body}
            return
