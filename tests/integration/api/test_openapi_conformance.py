"""The API's responses match its OpenAPI document, for generated requests."""

from __future__ import annotations

import contextlib
import http.client
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.harness.api_harness import ApiServer
from tests.harness.openapi_document import openapi_document

schema = schemathesis.openapi.from_dict(openapi_document())
Case = schemathesis.Case[Any]
#: Streams have no end.
FINITE = schema.exclude(path=["/v1/events", "/v1/watch"])

pytestmark = pytest.mark.long


@FINITE.parametrize()
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=(Phase.generate,),  # shrinking takes minutes
    database=None,
)
def test_the_api_conforms_to_its_document(api: ApiServer, case: Case) -> None:
    api.reset()
    token = Path(api.spec.token or "").read_text().strip()
    response = case.call(
        base_url=f"http://127.0.0.1:{api.port}", headers={"Authorization": f"Bearer {token}"}
    )
    # 503 and 504 are valid responses; 500 is a fault of the API.
    assert response.status_code != HTTPStatus.INTERNAL_SERVER_ERROR
    checks = [
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]
    if (
        response.status_code != HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    ):  # this response is a refusal as well
        checks.append(negative_data_rejection)
    case.validate_response(response, checks=checks)


METHODS = frozenset({"GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"})


@pytest.mark.parametrize(("path", "operations"), sorted(openapi_document()["paths"].items()))
def test_other_methods_are_refused_with_those_that_are_allowed(
    api: ApiServer, path: str, operations: dict[str, object]
) -> None:
    allowed = {name.upper() for name in operations} & METHODS
    token = Path(api.spec.token or "").read_text().strip()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", api.port)) as connection:
        for method in sorted(METHODS - allowed):
            address = re.sub(r"\{\w+\}", "0", path)
            connection.request(method, address, headers={"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            response.read()
            given = {name.strip() for name in (response.headers["Allow"] or "").split(",")}
            assert (method, response.status, given) == (method, 405, allowed)
