"""The message for an unknown option, with the nearest options of the same command."""

from __future__ import annotations

import click

from sentinel.config.model import SETTINGS
from sentinel.config.sources import nearest

#: The options that name a daemon.
_OF_CLIENTS = {"--connect", "--token", "--socket", "--simulated"}


def explain(name: str, context: click.Context) -> str:
    """Return the message for an option that a command does not have."""
    params = context.command.get_params(context)
    shown = [
        text
        for option in params
        if isinstance(option, click.Option) and not option.hidden
        for text in (*option.opts, *option.secondary_opts)
    ]
    what = f"`{context.command_path}` has no option {name}"
    if context.info_name == "run" and name in _OF_CLIENTS:  # before a command, options are of run
        return f"{what}; it follows a command, as in `sentinel status {name}`"
    setting = next((one for one in SETTINGS if one.flag == name), None)
    if setting is not None and context.info_name in {"set", "start", "restart", "reload"}:
        return f"{what}; to change it: sentinel set {name.removeprefix('--')}=VALUE"
    near = nearest(name, shown)
    return f"{what}; did you mean {' or '.join(near)}?" if near else what
