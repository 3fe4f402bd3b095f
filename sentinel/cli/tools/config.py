"""``sentinel config``: show, check and begin the configuration."""

from __future__ import annotations

import json
import os
import shlex
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from sentinel.cli.options.command_classes import GroupedOptions
from sentinel.cli.options.command_options import Printed, prints, with_client
from sentinel.cli.options.setting_options import (
    config_option,
    flag_of,
    flags,
    read_sources,
    saved_file,
    simulate_option,
)
from sentinel.client import Client
from sentinel.config.build import build_config, without_effect
from sentinel.config.changes import file_lines
from sentinel.config.model import SETTINGS, Config
from sentinel.config.plan import toml_value
from sentinel.config.setting import Scope, Setting
from sentinel.config.sources import NAME, Sources, checked, file_to_write, in_effect, read_file
from sentinel.config.specs import unusable
from sentinel.errors import (
    ConfigError,
    DriverUnavailableError,
    ExitCode,
    NoSuchGpuError,
    NotRunningError,
)
from sentinel.host.daemon_lookup import simulated_folder
from sentinel.host.paths import check_log, places
from sentinel.host.unprivileged import find_account
from sentinel.protocol.commands import Given
from sentinel.protocol.probe import NVML
from sentinel.protocol.stressor import Account
from sentinel.supervisor.single_instance import check_address, find_group
from sentinel.units import format_count

_HEAD = """\
# The settings of sentinel. Each line that is commented out has the default; remove the # to change
# one, and check the file with: sentinel config check. Options and SENTINEL_ variables override it.
"""
_SINGLE = """\
# Settings of single GPUs, by index, range such as 0-3, UUID or PCI address, as far as they are
# marked "for each GPU".
# [gpu.0]
# memory.target = "50%"
"""
_WIDTH = 100


# --- a new file ------------------------------------------------------------------------------


def new_file_text() -> str:
    """Return a file with every setting, its default and its meaning, all commented out.

    A setting without a default has its form in angle brackets.
    """
    tables: dict[str, list[Setting]] = {}
    for setting in SETTINGS:
        tables.setdefault(setting.key.rpartition(".")[0], []).append(setting)
    lines = [_HEAD]
    for table, settings in tables.items():
        if table:
            lines.append(f"[{table}]\n")
        lines += [f"{_described(setting)}\n" for setting in settings]
    return "\n".join([*lines, _SINGLE])


def _described(setting: Setting) -> str:
    """Return the lines of one setting."""
    notes = [setting.help.replace("`", "")]
    if setting.limits:
        notes.append(f"Allowed is {setting.limits}.")
    if setting.form.words:
        notes.append(f"Allowed: {', '.join(setting.form.words)}.")
    if setting.scope is Scope.GPU:
        notes.append("For each GPU.")
    if setting.scope is Scope.START:
        notes.append("It takes effect at the next start.")
    text = setting.default or f"<{setting.form.metavar}>"
    comment = textwrap.wrap(" ".join(notes), _WIDTH - 2, break_on_hyphens=False)
    name = setting.key.rpartition(".")[2]
    return "\n".join([*(f"# {line}" for line in comment), f"# {name} = {json.dumps(text)}"])


@click.group("config")
def command() -> None:
    """Show the settings with their sources, check a file, or write a new one."""


@command.command("show", cls=GroupedOptions, short_help="Show every setting with its source.")
@click.option("--offline", is_flag=True, help="Show what a new daemon would take, with no request.")
@prints
@config_option
@with_client
@flags
def show(client: Client, config: str | None, offline: bool, given: Mapping[str, str]) -> Printed:
    """Show every setting of the running daemon with its source, as an equivalent file.

    With --offline those of a new run, from the file, the variables and the given options. Exit code
    3 if no daemon runs.
    """
    if offline:
        simulated = bool(click.get_current_context().params["simulated"])
        where = places(os.environ, os.getuid(), simulated_folder(chosen=simulated))
        sources = read_sources(given, config, where.state / NAME)
        checked(sources)
        values, file = in_effect(sources.given), sources.file
    elif given or config is not None:
        name = flag_of(next(iter(given))) if given else "--config"
        raise ConfigError(f"{name} is for --offline: a running daemon has its settings already")
    else:
        values, file = _running(client), None
    named = {"file": str(file) if file else None} if offline else {}
    return Printed(
        json={"running": not offline, **named, **settings_as_json(values)},
        lines=file_lines(values, setting_line),
    )


@command.command("check", short_help="Check a file, or all settings that `run` would take.")
@click.argument("file", metavar="[FILE]", required=False)
@simulate_option("Look GPUs up among N simulated GPUs, instead of those of this host.")
@prints
@config_option
def check(file: str | None, config: str | None, simulate: int | None) -> Printed:
    """Check a file, or by default all that `run` would take; report everything that is wrong.

    Without FILE these are the file that `run` reads, what is saved, and SENTINEL_* variables.
    Workloads with options are imported by another process, as before a start, and GPUs that are
    named are looked up. Exit code 2 if `run` would reject them; without any, it is 0.
    """
    errors: list[ConfigError] = []
    if named := _named(file, config):
        sources = Sources(given=read_file(Path(named), errors.append), file=Path(named))
    else:
        sources = read_sources({}, None, saved_file(simulate), errors.append)
    built = build_config(sources.given, errors.append)
    errors += _not_found(built, sources)
    unmatched = _wrong_gpus(built, sources, simulate, errors.append)
    if errors:
        from sentinel.diagnostics.workload_catalog import joined

        raise joined(errors)
    count = len(sources.given)
    warnings = [*without_effect(sources.given), *unmatched, *unusable()]
    files = {str(sources.file): None} if sources.file is not None else {}
    read = files | dict.fromkeys(value.source.partition(": ")[0] for value in sources.given)
    text = f"{', '.join(read)}: {format_count(count, 'setting')}, all valid"
    if not read:
        text = "there is no configuration file, and every setting has its default"
        text += "; to write one: sentinel config init"
    return Printed(
        json={"file": sources.file, "settings": count, "warnings": warnings},
        lines=[text],
        notes=[f"sentinel: warning: {warning}" for warning in warnings],
    )


def _named(file: str | None, config: str | None) -> str | None:
    """Return the file that an argument or an option names.

    Raises:
        ConfigError: Both name one.
    """
    if file is not None and config is not None:
        raise ConfigError(f"two files are given: {file}, and --config {config}", "Name one.")
    return file or config


@command.command("init", short_help="Write a file with every setting, commented out.")
@click.argument("file", metavar="[FILE]", required=False)
@config_option
def init(file: str | None, config: str | None) -> int:
    """Write a file with every setting, its default and its meaning, all commented out.

    The default is the file that `run` reads: /etc/sentinel/config.toml for root, and that of the
    user for others. `-` prints it. A file that exists is not overwritten.
    """
    named = _named(file, config)
    if named == "-":
        click.echo(new_file_text(), nl=False)
        return int(ExitCode.OK)
    path = Path(named) if named else file_to_write(os.environ, os.getuid())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as opened:
            opened.write(new_file_text())
    except FileExistsError:
        raise ConfigError(f"{path} exists and is not overwritten", "Name another.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    how = f"to check it: sentinel config check {shlex.quote(str(path))}"
    click.echo(f"{path}: every setting has its default; {how}")
    return int(ExitCode.OK)


# --- the settings of a running daemon --------------------------------------------------------


def _running(client: Client) -> tuple[Given, ...]:
    """Read the settings of the running daemon."""
    try:
        values = client.settings().settings
        simulated = client.status().daemon.simulated
    except NotRunningError as error:
        remedy = "What a new one would take: sentinel config show --offline"
        raise NotRunningError(error.what, remedy) from error
    if not simulated:
        return values
    # `driver` is ignored, and no setting stands for what is used instead.
    driver = Given(key="driver", text="", source="the GPUs are simulated: --simulate")
    return in_effect((*values, driver))


# --- what only this host knows ---------------------------------------------------------------


def _not_found(config: Config, sources: Sources) -> list[ConfigError]:
    """Look up what the settings name beside GPUs: users, groups, files, addresses, workloads."""
    from sentinel.cli.daemon.run import absolute_log
    from sentinel.diagnostics.workload_catalog import workload_errors, workloads_of

    accounts: list[Account] = []
    errors: list[ConfigError] = []
    named: dict[str, tuple[str | None, Callable[[str, str], object]]] = {
        "stressor.user": (
            config.stressor_user,
            lambda user, source: accounts.append(find_account(user, source)),
        ),
        "api.group": (config.socket_group, lambda group, _: find_group(group)),
        "log.file": (
            config.log_file,
            lambda file, source: check_log(absolute_log(file, source)),
        ),
        "api.tcp": (config.tcp, check_address),
        "metrics.address": (config.metrics, check_address),
    }
    for key, (text, look_up) in named.items():
        source = sources.source_of(key)
        try:
            if text is not None:
                look_up(text, source)
        except ConfigError as error:
            what = error.what.removeprefix(f"{source}: ")
            errors.append(ConfigError(f"{source}: {what}", error.remedy))
    return [*errors, *workload_errors(workloads_of(sources.given), *accounts)]


def _wrong_gpus(
    config: Config, sources: Sources, simulate: int | None, report: Callable[[ConfigError], None]
) -> tuple[str, ...]:
    """Look up the driver and the GPUs that the settings name, as a start does.

    Returns:
        A warning for each setting that matches no GPU, or the reason that the GPUs are not known.
    """
    from sentinel.diagnostics.survey import inventory  # starts processes
    from sentinel.supervisor.discovery import Options

    own = simulate is None and config.driver != NVML.name
    if not (config.gpus or own or any(value.gpu is not None for value in sources.given)):
        return ()
    try:
        found = inventory(Options(config=config, given=sources.given, simulate=simulate))
        return tuple(f"{value.source} matches no GPU of this host" for value in found.unused)
    except DriverUnavailableError as error:
        if not own:
            return (f"the GPUs that are named are not looked up: {error.what}",)
        report(ConfigError(f"{sources.source_of('driver')}: {error.what}", error.remedy))
    except (ConfigError, NoSuchGpuError) as error:
        named = f"{sources.source_of('driver')}:" if own else "driver:"
        report(ConfigError(error.what.replace("driver:", named, 1), error.remedy))
    return ()


# --- output ----------------------------------------------------------------------------------


def settings_as_json(values: Iterable[Given]) -> dict[str, Any]:
    """Return settings with their texts and sources: for all GPUs, and by selector."""
    found: dict[str, Any] = {"settings": [], "gpu": {}}
    for value in values:
        rows = found["gpu"].setdefault(value.gpu, []) if value.gpu else found["settings"]
        rows.append({"key": value.key, "value": value.text or None, "origin": value.source})
    return found


def setting_line(value: Given, name: str) -> str:
    """Return a setting as in a file, with its source as a comment."""
    text = f"{name} = {toml_value(value.text)}" if value.text else f"# {name} is not set"
    return f"{text:<32}  # {value.source}"
