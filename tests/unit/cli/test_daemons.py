"""A browser can open the address of the web page; the token follows a #."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.cli.daemon.status import page_address
from sentinel.errors import AccessDeniedError, ConfigError


@pytest.mark.parametrize(
    ("tcp", "host"),
    [
        ("127.0.0.1:8765", "127.0.0.1:8765"),
        ("0.0.0.0:1", "127.0.0.1:1"),
        ("[::]:8765", "[::1]:8765"),
        ("[fd00::7]:80", "[fd00::7]:80"),
        ("node-17:8765", "node-17:8765"),
    ],
)
def test_a_browser_can_open_the_address(tmp_path: Path, tcp: str, host: str) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    assert page_address(tcp, str(token)) == f"http://{host}/#token=secret"


def test_without_tcp_the_error_names_the_setting() -> None:
    with pytest.raises(ConfigError, match="--tcp"):
        page_address(None, None)


@pytest.mark.parametrize("content", [None, "schlüssel"])
def test_an_unreadable_token_is_an_error_with_its_path(tmp_path: Path, content: str | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)
    with pytest.raises(AccessDeniedError, match=str(token)):
        page_address("127.0.0.1:1", str(token))
