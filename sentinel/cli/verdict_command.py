"""Commands whose exit codes are verdicts, so that wrong usage needs another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from sentinel.burnin.thresholds import Limits, Thresholds, parse
from sentinel.errors import ConfigError, ExitCode
from sentinel.host.regular_file import read_regular

#: A larger file of thresholds is not read, in bytes.
_MAX_FILE_BYTES = 2**20


class VerdictCommand(click.Command):
    """A command that exits with 0 to 3 as a verdict, and with 64 on wrong usage.

    With ``--nagios`` and ``--npd`` wrong usage has the code of an unknown state there.
    """

    def usage_exit_code(self, arguments: Sequence[str]) -> int:
        """Choose the exit code of wrong usage."""
        if "--nagios" in arguments:
            return 3
        return 2 if "--npd" in arguments else int(ExitCode.VERDICT_USAGE)


def load_thresholds(file: str | None, known: Mapping[str, Limits]) -> Thresholds:
    """Read a file of thresholds.

    Args:
        file: Its path, or None for the defaults.
        known: The default limits of the checks that it may change.

    Raises:
        click.UsageError: It cannot be read, or has something that is not allowed.
    """
    if file is None:
        return Thresholds()
    try:
        return parse(read_regular(Path(file), _MAX_FILE_BYTES).decode(), file, known)
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file} cannot be read: {error}") from error
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
