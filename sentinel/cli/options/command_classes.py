"""Kinds of commands: with settings in groups of the help, and plugins of monitoring systems.

The rare settings are behind ``--help-all``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import click

from sentinel.errors import ConfigError, ExitCode

#: By title: the fields of Config that the help shows, and those that only ``--help-all`` shows.
GROUPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "What runs, and on which GPUs": (
        ("gpus", "workload", "memory", "util", "power", "duty"),
        ("chunk", "keep_free", "goldens", "util_tolerance", "util_every", "util_samples"),
    ),
    "When a GPU is occupied": (
        ("rearm", "idle_wait", "idle_gate", "ignore", "yield_to", "max_gpus", "leave_idle"),
        ("rearm_longest", "idle_memory", "idle_utilization", "starts_per_second"),
    ),
    "How long": (("hours", "quiet", "run_for", "until"), ()),
    "Health": (
        ("throttle",),
        (
            *("temp_normal_from", "temp_throttled_from", "temp_critical_from"),
            *("temp_overheating_from", "memory_normal_from", "memory_throttled_from"),
            *("memory_critical_from", "hysteresis", "cooldown", "critical_pause"),
        ),
    ),
    "Memory for allocations": (("budget_limit",), ("keep_unallocated",)),
    "Who may connect": (
        ("socket_group", "tcp", "metrics"),
        ("access_users", "access_group", "access_tcp", "access_workloads"),
    ),
    "Notifications": (
        ("notify_webhook", "notify_command"),
        (
            *("notify_events", "notify_gpus", "notify_every"),
            *("notify_token", "notify_secret"),
        ),
    ),
    "How the daemon runs": (
        ("stressor_user", "log_file", "log_level"),
        (
            *("driver", "poll", "watch_interval", "unwatched_after", "start_timeout", "hang_after"),
            *("yield_how", "yield_grace", "grace", "standby", "status_every", "history_size"),
            "expect_gpus",
        ),
    ),
}

_OTHER = "Options"
_ALL = "--help-all"
#: How an error begins that is about the value of an option.
_OF_AN_OPTION = re.compile(r"--[\w-]+: ")


@functools.cache
def _fields() -> frozenset[str]:
    """Return the names of all settings; commands such as `status` do without the import."""
    from sentinel.config.model import SETTINGS

    return frozenset(setting.field for setting in SETTINGS)


def _show_all(context: click.Context, _: click.Parameter, given: bool) -> None:
    """Print the help with all options, and exit."""
    if given and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


class GroupedOptions(click.Command):
    """A command whose help shows the options of settings in groups.

    Args:
        arguments: Those of a command.
        shown: The names of the options that a short help without groups shows; by default all,
            but for the rare ones.
        more: Those of a command.
    """

    def __init__(self, *arguments: Any, shown: Collection[str] = (), **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._shown = frozenset(shown)
        self.params.append(
            click.Option(
                [_ALL],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show this message with the rare options, too, and exit.",
            )
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options: those of the command itself, and those of settings by group."""
        params = self.get_params(ctx)
        if ctx.meta.get(_ALL, False) or not self._shown:
            self._write_groups(ctx, formatter, params)
        else:
            shown = (
                param for param in params if param.name in self._shown or "--help" in param.opts
            )
            _write(formatter, _OTHER, ctx, shown)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        if not ctx.meta.get(_ALL, False):
            self._write_others(ctx, formatter, params)

    def _write_groups(
        self, ctx: click.Context, formatter: click.HelpFormatter, params: Sequence[click.Parameter]
    ) -> None:
        everything = ctx.meta.get(_ALL, False)
        own = [
            param
            for param in params
            if isinstance(param, click.Option) and param.name not in _fields()
        ]
        _write(formatter, _OTHER, ctx, own)
        by_name = {param.name: param for param in params if param.name in _fields()}
        for title, (common, rare) in GROUPS.items():
            names = (*common, *rare) if everything else common
            _write(formatter, title, ctx, (by_name[name] for name in names if name in by_name))

    def _write_others(
        self, ctx: click.Context, formatter: click.HelpFormatter, params: Sequence[click.Parameter]
    ) -> None:
        """Write where the help of the other options is."""
        what = "the rare options, too"
        if self._shown:
            flags = {param.name: param.opts[0] for param in params if not _is_hidden(param)}
            common = [name for names, _ in GROUPS.values() for name in names]
            others = [flags[name] for name in common if name in flags.keys() - self._shown]
            what = f"the rest, such as {' and '.join(others[:2])}"
        with formatter.section("More"):
            formatter.write_text(f"{ctx.command_path} {_ALL} shows {what}.")


class GroupedGroup(GroupedOptions, click.Group):
    """Such a command that has further commands."""


def _is_hidden(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and param.hidden


def _write(
    formatter: click.HelpFormatter,
    title: str,
    ctx: click.Context,
    params: Iterable[click.Parameter],
) -> None:
    """Write the options that have a help text; nothing if there are none."""
    rows = [record for param in params if (record := param.get_help_record(ctx)) is not None]
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


class WholeNumber(click.IntRange):
    """A whole number within limits, with an error and a help that name them in words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert a text to a number.

        Raises:
            BadParameter: It is no number, or out of range.
        """
        try:
            return int(super().convert(value, param, ctx))
        except click.UsageError:
            text = f"{str(value)!r} is not a whole number {self._describe_range()}"
            raise click.BadParameter(text, ctx, param) from None

    def _describe_range(self) -> str:
        return f"from {self.min}" + ("" if self.max is None else f" to {self.max}")


class PluginCommand(click.Command):
    """A command that is also a plugin: wrong usage has the code of an unknown state there."""

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
        return int(ExitCode.USAGE)  # unknown with --npd
