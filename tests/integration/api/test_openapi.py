"""The API's document is what is committed, and what the service does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.api_harness import Front, ask

COMMITTED = Path(__file__).resolve().parents[3] / "docs/openapi.json"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with Front(tmp_path_factory.mktemp("service"), tcp=True) as front:
        yield front


def test_the_committed_document_is_what_the_service_says(front: Front) -> None:
    said = ask(front, "GET", "/openapi.json").body
    # If not: python docs/generate.py
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
