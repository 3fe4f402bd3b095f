"""Commands whose exit codes are verdicts, so that wrong usage needs another one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from sentinel.cli.options.option_groups import GroupedGroup
from sentinel.errors import ConfigError, ExitCode

#: How an error begins that is about the value of an option.
_OF_AN_OPTION = re.compile(r"--[\w-]+: ")


class VerdictCommand(click.Command):
    """A command that exits with 0 to 3 as a verdict, and with 64 on wrong usage.

    With ``--nagios`` and ``--npd`` wrong usage has the code of an unknown state there.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as any command; a value that an option refuses is wrong usage, too."""
        try:
            return super().parse_args(ctx, args)
        except ConfigError as error:
            raise click.UsageError(str(error), ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run as any command; a refused value of an option that the error names is wrong usage."""
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            if not _OF_AN_OPTION.match(error.what):
                raise
            raise click.UsageError(str(error), ctx) from error

    def usage_exit_code(self, arguments: Sequence[str]) -> int:
        """Choose the exit code of wrong usage."""
        if "--nagios" in arguments:
            return 3
        return 2 if "--npd" in arguments else int(ExitCode.VERDICT_USAGE)


class VerdictGroup(VerdictCommand, GroupedGroup):
    """Such a command that has settings and further commands, and runs by itself without one."""
