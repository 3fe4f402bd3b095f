"""``sentinel run`` warns of settings without an effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.cli.main import run_command_line


@pytest.mark.parametrize(
    ("arguments", "warns"),
    [(["--no-api"], True), (["--dry-run"], True), (["--no-api", "--notify-command", "off"], False)],
)
def test_notifications_that_are_not_sent_are_named(
    arguments: list[str],
    warns: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sentinel.supervisor.bootstrap.supervise", lambda *_: 0)
    file = tmp_path / "config.toml"
    file.write_text('notify.command = "/bin/true"\n')
    assert run_command_line(["run", "--simulate", "1", "--config", str(file), *arguments]) == 0
    error = capsys.readouterr().err
    assert (f"{file}: notify.command: no notification is sent, since" in error) is warns
    if warns:
        assert f"{arguments[0]} starts no API process" in error
