"""``sentinel run`` and ``burnin`` warn of settings without an effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.command_line import CommandLine
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
    cli: CommandLine,
) -> None:
    monkeypatch.setattr("sentinel.supervisor.bootstrap.supervise", lambda *_: 0)
    file = tmp_path / "config.toml"
    file.write_text('notify.command = "/bin/true"\n')
    error = cli("run", "--simulate", "1", "--config", str(file), *arguments).err
    assert (f"{file}: notify.command: no notification is sent, since" in error) is warns
    if warns:
        assert f"{arguments[0]} starts no API process" in error


def test_a_burn_in_without_a_daemon_names_notifications_that_are_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path))
    monkeypatch.setattr("sentinel.cli.daemon.burnin.follow_new_run", lambda *_, **__: 0)
    given = ["--simulate", "1", "--level", "screen", "--notify-webhook", "http://127.0.0.1/"]
    assert "--notify-webhook: no notification is sent, since" in cli("burnin", *given).err
