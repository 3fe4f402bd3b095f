"""Read the file of ``--thresholds``, for the commands that judge."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import click

from sentinel.burnin.checks.own_checks import own_limits, registered_checks
from sentinel.burnin.checks.thresholds import Limits, Thresholds, parse
from sentinel.errors import ConfigError
from sentinel.host.regular_file import read_regular

#: A larger file is not read, in bytes.
_MAX_FILE_BYTES = 2**20


def load_thresholds(
    file: str | None, known: Mapping[str, Limits], built_in: Collection[str]
) -> Thresholds:
    """Read a file of thresholds; it may also change the checks of other packages.

    Args:
        file: Its path, or None for the defaults.
        known: The default limits of Sentinel's checks.
        built_in: The ids of all of these.

    Raises:
        click.UsageError: It cannot be read, or has something that is not allowed.
        ConfigError: The checks of two packages have the same id.
    """
    if file is None:
        return Thresholds()
    known = {**known, **own_limits(registered_checks(built_in))}
    try:
        return parse(read_regular(Path(file), _MAX_FILE_BYTES).decode(), file, known)
    except OSError as error:
        why = error.strerror or str(error)
        message = f"--thresholds {file}: {why}; allowed is a regular TOML file of at most 1 MiB"
        raise click.UsageError(message) from error
    except UnicodeDecodeError as error:
        message = f"--thresholds {file}: it is not UTF-8 text; allowed is a TOML file"
        raise click.UsageError(message) from error
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
