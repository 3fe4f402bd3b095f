"""The API's own document, as OpenAPI has it: what it takes, what it answers.

``python -m sentinel.api.openapi`` prints it; ``docs/openapi.json`` is what that printed last.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from sentinel.api.http.errors import MEDIA_TYPE

router = APIRouter()


@router.get("/openapi.json", include_in_schema=False)
async def read_document(request: Request) -> Response:
    """Return this document."""
    return Response(document(request.app), media_type="application/json")


@cache
def document(app: FastAPI) -> str:
    """Return the document of an application as text."""
    body = get_openapi(
        title=app.title,
        version=app.version,
        summary="Keep idle NVIDIA GPUs busy, and give each one back when somebody needs it.",
        routes=app.routes,
    )
    for path in body["paths"].values():
        for operation in path.values():
            for response in operation["responses"].values():
                _name_problems(response)
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def _name_problems(response: dict[str, Any]) -> None:
    """Give errors the media type that they have."""
    for body in response.get("content", {}).values():
        if body.get("schema", {}).get("$ref", "").endswith("/Problem"):
            response["content"] = {MEDIA_TYPE: body}
            return


if __name__ == "__main__":
    from sentinel.api.app import make_app

    sys.stdout.write(document(make_app()))
