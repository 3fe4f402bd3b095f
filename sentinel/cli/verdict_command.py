"""Commands whose exit codes are verdicts, so that wrong usage needs another one."""

from __future__ import annotations

from collections.abc import Sequence

import click

from sentinel.errors import ExitCode


class VerdictCommand(click.Command):
    """A command that exits with 0 to 3 as a verdict, and with 64 on wrong usage.

    With ``--nagios`` and ``--npd`` wrong usage has the code of an unknown state there.
    """

    def usage_exit_code(self, arguments: Sequence[str]) -> int:
        """Choose the exit code of wrong usage."""
        if "--nagios" in arguments:
            return 3
        return 2 if "--npd" in arguments else int(ExitCode.VERDICT_USAGE)


class VerdictGroup(VerdictCommand, click.Group):
    """Such a command that has further commands, and runs by itself without one."""
