"""The web page links to the addresses that the package declares, and to no others."""

from __future__ import annotations

from email.message import Message
from importlib.metadata import PackageNotFoundError

import pytest

from sentinel.api import app


def links(monkeypatch: pytest.MonkeyPatch, *declared: str) -> list[list[str]]:
    """Return the links of the page for these declarations."""
    found = Message()
    for one in declared:
        found["Project-URL"] = one
    monkeypatch.setattr(app, "metadata", lambda _: found)
    return app._links()


def test_declared_addresses_are_links(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = ("Documentation, https://example.org/a,b", "Issues,https://example.org/issues")
    assert links(monkeypatch, *declared) == [
        ["Documentation", "https://example.org/a,b"],
        ["Issues", "https://example.org/issues"],
    ]


def test_only_secure_addresses_are_links(monkeypatch: pytest.MonkeyPatch) -> None:
    assert links(monkeypatch, "Home, http://example.org", "Run, javascript:alert(1)", "odd") == []


def test_without_an_installed_package_there_are_no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Message:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(app, "metadata", missing)
    assert app._links() == []
