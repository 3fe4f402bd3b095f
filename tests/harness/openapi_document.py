"""The OpenAPI document of the API, as a JSON object."""

from __future__ import annotations

import json
from functools import cache
from typing import Any


@cache
def openapi_document() -> dict[str, Any]:
    """Build the document. This imports FastAPI, which most tests do not need."""
    from sentinel.api.app import document, make_app

    return dict(json.loads(document(make_app())))
