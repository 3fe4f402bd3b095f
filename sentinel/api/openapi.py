"""The OpenAPI document of the API."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.responses import Response

from sentinel.api.access import needed_level
from sentinel.protocol.problem import Problem

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
