"""The API's document is what is committed, and what the service does."""

from __future__ import annotations

import json
from collections.abc import Iterator
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

from tests.harness.api_harness import Front, ask

COMMITTED = Path(__file__).resolve().parents[3] / "docs/openapi.json"

schema = schemathesis.openapi.from_dict(json.loads(COMMITTED.read_text()))
Case = schemathesis.Case[Any]
#: Streams have no end.
FINITE = schema.exclude(path=["/v1/events", "/v1/watch"])


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with Front(tmp_path_factory.mktemp("service"), tcp=True) as front:
        yield front


def test_the_committed_document_is_what_the_service_says(front: Front) -> None:
    said = ask(front, "GET", "/openapi.json").body
    # If not: python -m sentinel.api.openapi > docs/openapi.json
    assert json.loads(COMMITTED.read_text()) == said


def test_every_path_has_a_version_and_every_error_the_one_shape() -> None:
    body = json.loads(COMMITTED.read_text())
    for path, operations in body["paths"].items():
        if path.startswith("/api/gpu/"):  # another system's, whose clients know another shape
            continue
        assert path.startswith("/v1/")
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert list(response["content"]) == ["application/problem+json"]


@FINITE.parametrize()
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=(Phase.generate,),  # to make a failure smaller takes minutes
    database=None,
)
def test_the_service_does_what_its_document_says(front: Front, case: Case) -> None:
    front.reset()
    token = Path(front.spec.token or "").read_text().strip()
    response = case.call(
        base_url=f"http://127.0.0.1:{front.port}", headers={"Authorization": f"Bearer {token}"}
    )
    # 503 and 504 are answers; this is the one that says that the service is wrong.
    assert response.status_code != HTTPStatus.INTERNAL_SERVER_ERROR
    checks = [
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]
    if response.status_code != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:  # which is a refusal, too
        checks.append(negative_data_rejection)
    case.validate_response(response, checks=checks)
