"""The metrics for Prometheus, with the API's access rules."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from sentinel.api.metrics_page import PATH
from sentinel.api.routes.dependencies import ContextDep

router = APIRouter()


# Not in the OpenAPI document: path, versions and formats are Prometheus's.
@router.get(PATH, include_in_schema=False)
async def read_metrics(context: ContextDep, request: Request) -> Response:
    """Read all metrics in one of Prometheus's formats."""
    return context.metrics.respond(request.headers)
