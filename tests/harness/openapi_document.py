"""The OpenAPI document of the API, as a JSON object."""

from __future__ import annotations

import json
from functools import cache
from typing import Any


@cache
def openapi_document() -> dict[str, Any]:
    """Build the document; that imports FastAPI, which most test runs do without."""
    from sentinel.api.app import make_app
    from sentinel.api.openapi import document

    return dict(json.loads(document(make_app())))
