"""Read the file of ``--thresholds``, for the commands that judge."""

from __future__ import annotations

from pathlib import Path

import click

from sentinel.errors import ConfigError
from sentinel.fleet.node_files import SharedThresholds, read_thresholds


def load_thresholds(file: str | None) -> SharedThresholds:
    """Read a file of thresholds: one file serves nodes and fleets.

    Args:
        file: Its path, or None for the defaults.

    Raises:
        click.UsageError: It cannot be read, or has something that is not allowed.
    """
    if file is None:
        return SharedThresholds()
    try:
        return read_thresholds(Path(file))
    except OSError as error:
        why = error.strerror or str(error)
        message = f"--thresholds {file}: {why}; allowed is a regular TOML file of at most 1 MiB"
        raise click.UsageError(message) from error
    except UnicodeDecodeError as error:
        message = f"--thresholds {file}: it is not UTF-8 text; allowed is a TOML file"
        raise click.UsageError(message) from error
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
