"""The API serves its OpenAPI document, whose paths and errors have one shape."""

from __future__ import annotations

import pytest

from tests.harness.api_harness import ApiServer, ask
from tests.harness.openapi_document import openapi_document


@pytest.mark.long
def test_the_served_document_is_the_generated_one(api: ApiServer) -> None:
    assert ask(api, "GET", "/openapi.json").body == openapi_document()


def test_every_path_has_a_version_and_all_errors_have_one_shape() -> None:
    for path, operations in openapi_document()["paths"].items():
        if path.startswith("/api/gpu/"):  # the errors of another system, with its own shape
            continue
        assert path.startswith("/v1/")
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert list(response["content"]) == ["application/problem+json"]
