"""``sentinel install-unit``: install the systemd unit of this installation, or print it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from sentinel.errors import AccessDeniedError, ConfigError, ConflictError, ExitCode
from sentinel.host.packages import shipped_file

#: Where an administrator's units are; systemd prefers them to those of packages.
UNIT = Path("/etc/systemd/system/sentinel.service")
#: The command in the shipped unit.
_SHIPPED_COMMAND = "/usr/local/bin/sentinel"


@click.command("install-unit")
@click.option("--print", "only_print", is_flag=True, help="Print the unit, and change nothing.")
@click.option("--force", is_flag=True, help="Replace a unit with another text.")
def command(only_print: bool, force: bool) -> int:
    """Install the systemd unit of the daemon, with the paths of this installation.

    Root writes /etc/systemd/system/sentinel.service; the daemon is neither enabled nor started.
    Settings belong in /etc/sentinel/config.toml, and changes of the unit in `systemctl edit
    sentinel`, so that this command can replace it after an upgrade.
    """
    text = unit(this_command())
    if only_print:
        click.echo(text, nl=False)
        return int(ExitCode.OK)
    if os.geteuid() != 0:
        raise AccessDeniedError(
            f"only root can write {UNIT}",
            "Use sudo, or print the unit: sentinel install-unit --print",
        )
    changed = _write(text, force=force)
    click.echo(f"{UNIT} is {'written' if changed else 'up to date'}")
    click.echo("systemctl daemon-reload")
    click.echo("systemctl enable --now sentinel    # after an upgrade: systemctl restart sentinel")
    return int(ExitCode.OK)


def unit(words: tuple[str, ...]) -> str:
    """Return the shipped unit with the words of this command.

    Raises:
        ConfigError: The installation lacks the unit, or a path cannot be written in a unit.
    """
    text = shipped_file("sentinel.service").read_text()
    ours = " ".join(_quoted(word) for word in words)
    if f"ExecStart={_SHIPPED_COMMAND} " not in text:
        raise ConfigError(f"the shipped unit does not start {_SHIPPED_COMMAND}")
    return text.replace(f"ExecStart={_SHIPPED_COMMAND} ", f"ExecStart={ours} ")


def this_command() -> tuple[str, ...]:
    """Return the command that starts this installation: its script, or its Python."""
    script = Path(sys.executable).parent / "sentinel"
    return (str(script),) if os.access(script, os.X_OK) else (sys.executable, "-m", "sentinel")


def _quoted(word: str) -> str:
    """Write a path as systemd reads it in a command line (systemd.service(5), systemd.unit(5)).

    Raises:
        ConfigError: It has a character that systemd refuses in the path of an executable.
    """
    if not word.isprintable() or any(letter in word for letter in "\\\"'$"):
        raise ConfigError(
            f"{word!r} has a character that systemd refuses in the path of a command",
            "Install sentinel elsewhere.",
        )
    plain = word.replace("%", "%%")  # a specifier
    return f'"{plain}"' if " " in plain or ";" in plain else plain


def _write(text: str, *, force: bool) -> bool:
    """Write the unit; return whether it changed.

    Raises:
        ConflictError: There is a unit with another text.
        AccessDeniedError: It cannot be written.
    """
    try:
        present = UNIT.read_text() if UNIT.exists() else None
        if present == text:
            return False
        if present is not None and not force:
            raise ConflictError(
                f"{UNIT} has another text",
                f"Compare: sentinel install-unit --print | diff {UNIT} -    Replace it: --force",
            )
        new = UNIT.with_name(f"{UNIT.name}.new")
        new.write_text(text)
        new.chmod(0o644)
        new.replace(UNIT)
    except OSError as error:
        raise AccessDeniedError(f"{UNIT} cannot be written: {error.strerror}") from error
    return True
