"""The OpenAPI document of the API, as a JSON object."""

from __future__ import annotations

import json
from typing import Any

from sentinel.api.app import make_app
from sentinel.api.openapi import document

DOCUMENT: dict[str, Any] = json.loads(document(make_app()))
