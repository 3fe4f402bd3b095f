"""``sentinel fleet``: burn many hosts in, follow the run, and judge it. Loads a command on use."""

from __future__ import annotations

import importlib

import click

#: The commands: the module and the name in it, and a summary.
COMMANDS = {
    "burnin": (
        "sentinel.cli.tools.fleet_runs:burnin",
        "Burn many hosts in, through their scheduler.",
    ),
    "report": (
        "sentinel.cli.tools.fleet_report:report",
        "Print the verdict; with --watch, follow the run to it.",
    ),
    "resume": (
        "sentinel.cli.tools.fleet_runs:resume",
        "Go on with a run on nodes that are missing.",
    ),
    "cancel": (
        "sentinel.cli.tools.fleet_runs:cancel",
        "End a run; its nodes report what they did.",
    ),
    "undrain": ("sentinel.cli.tools.fleet_runs:undrain", "Take back what --drain has drained."),
}
#: What only the tasks of a run call.
_HIDDEN = {"run-node": "sentinel.cli.tools.fleet_runs:run_node"}


class FleetGroup(click.Group):
    """A group that imports a command only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names in their order."""
        return [*super().list_commands(ctx), *COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        place = COMMANDS[cmd_name][0] if cmd_name in COMMANDS else _HIDDEN.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the summaries without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group("fleet", cls=FleetGroup)
def command() -> None:
    """Burn many hosts in, each by itself, and judge them together.

    The scheduler of the cluster distributes the work, and the nodes write results to a shared
    folder. There is no server.
    """
