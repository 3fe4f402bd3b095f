"""A browser can open the address of the web page; the token follows a #."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from sentinel.cli.tools.web import address
from sentinel.client import DaemonInfo, Status
from sentinel.errors import AccessDeniedError, ConfigError


def status(tcp: str | None, token: Path | None) -> Status:
    daemon = DaemonInfo(
        pid=1,
        version="1",
        phase="waiting",
        since=datetime.now(UTC),
        driver="580",
        simulated=True,
        workload="gemm",
        socket="/run/s",
        tcp=tcp,
        token=None if token is None else str(token),
    )
    return Status(daemon=daemon, gpus=(), reservations=())


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
    assert address(status(tcp, token)) == f"http://{host}/#token=secret"


def test_without_tcp_the_error_names_the_setting() -> None:
    with pytest.raises(ConfigError, match="--tcp"):
        address(status(None, None))


@pytest.mark.parametrize("content", [None, "schlüssel"])
def test_an_unreadable_token_is_an_error_with_its_path(tmp_path: Path, content: str | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)
    with pytest.raises(AccessDeniedError, match=str(token)):
        address(status("127.0.0.1:1", token))
