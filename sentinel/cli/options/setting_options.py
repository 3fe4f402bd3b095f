"""Command-line options for the settings, and those for plans, thresholds and the log format."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sentinel.cli.display.output import Word
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_classes import WholeNumber
from sentinel.cli.options.command_options import together, warn_of_simulated_gpus
from sentinel.config.expectation import Expectation, expect_gpus, parse_expectation
from sentinel.config.model import SETTINGS, Config
from sentinel.config.setting import Scope, Setting
from sentinel.config.sources import (
    EXPECTATION_VARIABLE,
    NAME,
    Sources,
    find_file,
    from_flags,
    gather,
    key_elsewhere,
    read_saved,
    unknown_name,
    unknown_variables,
)
from sentinel.config.specs import parse_workload
from sentinel.config.toml_text import decode_toml
from sentinel.errors import ConfigError, raise_error
from sentinel.host.paths import SIMULATED, places
from sentinel.host.regular_file import read_regular, why_replaceable
from sentinel.host.simulation import default_folder
from sentinel.protocol.commands import Given

if TYPE_CHECKING:  # the daemon does without
    from sentinel.fleet.node_files import SharedThresholds

_Function = Callable[..., Any]

#: What a node must be, where nothing else is named.
HOSTS_EXPECTATION = Path("/etc/sentinel/node.toml")
#: A larger file is none of them, in bytes.
_MAX_FILE_BYTES = 2**20
#: The largest number of simulated GPUs.
_MAX_SIMULATED = 64

#: Adds the argument ``plan``: a level or a file, whose plan each GPU goes through again and again.
plan_option = click.option(
    "--plan",
    metavar="LEVEL|FILE",
    shell_complete=value_completion.plans,
    help="Go through this burn-in plan again and again, instead of one workload.",
)

#: Adds the option ``--config``.
config_option = click.option(
    "--config",
    metavar="FILE",
    help="Read settings from this TOML file; flags and SENTINEL_* variables override it.",
)


def _checked_count(_: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Parse the number of simulated GPUs."""
    if text is None:
        return None
    try:
        count = int(text)
    except ValueError:
        why = f"{text!r} is not a number; allowed is from 1 to {_MAX_SIMULATED}"
        raise click.BadParameter(why) from None
    check_range(option.opts[0], count, 1, _MAX_SIMULATED)
    return count


def simulate_option(text: str) -> Callable[[_Function], _Function]:
    """Return the option ``--simulate``; without it, ``$SENTINEL_SIM_DIR`` selects its GPUs.

    The command gets the number as ``simulate``, or None for real GPUs.
    """

    def add(function: _Function) -> _Function:
        @functools.wraps(function)
        def counted(*, simulate: int | None, **rest: Any) -> Any:
            if simulate is None and click.get_current_context().invoked_subcommand is None:
                simulate = _count_of_environment()
                warn_of_simulated_gpus("--simulate N", strict=rest.get("strict", False))
            return function(simulate=simulate, **rest)

        return click.option("--simulate", metavar="N", callback=_checked_count, help=text)(counted)

    return add


def _count_of_environment() -> int | None:
    """Count the GPUs of ``$SENTINEL_SIM_DIR``: those of its daemon, or else all; None if not set.

    Raises:
        UsageError: It has no simulated GPUs.
    """
    if not os.environ.get(SIMULATED):
        return None
    from sentinel.host import (
        registry,  # slow to import, and seldom needed
        simulation,
    )

    folder = simulation.default_folder().absolute()
    records = registry.read_all(registry.records_folder(os.environ, os.getuid()))
    for record in records:
        if record.simulated == str(folder) and record.simulate is not None and record.alive:
            return record.simulate
    count = len(simulation.Registry(folder).gpus())
    if not count:
        raise click.UsageError(
            f"{SIMULATED}={folder} has no simulated GPUs:"
            f" create N of them by --simulate N, or unset {SIMULATED} for real GPUs"
        )
    return count


def check_range(flag: str, value: int, least: int, most: int) -> None:
    """Check the value of an option.

    Raises:
        ConfigError: It is out of range.
    """
    if not least <= value <= most:
        raise ConfigError(f"{flag}: {value} is out of range", f"allowed is from {least} to {most}")


def log_format(function: _Function) -> _Function:
    """Add ``--log-format`` and ``--json``; pass whether to print ``text`` instead of JSON."""

    @functools.wraps(function)
    def chosen(*, log_format: str, as_json: bool, **rest: Any) -> Any:
        return function(text=log_format == "text" and not as_json, **rest)

    return together(
        click.option(
            "--log-format",
            type=Word(["text", "json"]),
            default="text",
            help="Text or JSON lines, also for a pipe or a file.  [default: text]",
        ),
        click.option("--json", "as_json", is_flag=True, help="The same as --log-format json."),
    )(chosen)


def settings_of_daemon(function: _Function) -> _Function:
    """Add one option per setting and ``--config``; pass ``sources``, with what clients saved."""

    @functools.wraps(function)
    def gathered(
        *, given: Mapping[str, str], config: str | None, simulate: int | None, **rest: Any
    ) -> Any:
        sources = read_sources(given, config, saved_file(simulate))
        return function(sources=sources, simulate=simulate, **rest)

    return config_option(_with_settings(gathered))


def saved_file(simulate: int | None) -> Path:
    """Return the file with what clients of the default daemon have saved, also if it is missing."""
    folder = default_folder() if simulate is not None else None
    return places(os.environ, os.getuid(), folder).state / NAME


def settings_without(*refused: str) -> Callable[[_Function], _Function]:
    """Return a decorator that adds one option per setting and ``--config``; passes ``sources``.

    Args:
        refused: The fields of Config that the help does not list, since the command refuses them.
    """

    def add(function: _Function) -> _Function:
        @functools.wraps(function)
        def gathered(*, given: Mapping[str, str], config: str | None, **rest: Any) -> Any:
            return function(sources=read_sources(given, config), **rest)

        # A burn-in has an --expect-gpus of its own, which fails the node.
        settings = [setting for setting in SETTINGS if setting.field != "expect_gpus"]
        return config_option(_with_settings(gathered, settings, hidden=refused))

    return add


def read_sources(
    given: Mapping[str, str],
    config: str | None,
    saved: Path | None = None,
    report: Callable[[ConfigError], None] = raise_error,
) -> Sources:
    """Combine flags, variables and files; print a warning for each unknown variable.

    Args:
        given: The texts of the given flags, by key.
        config: The named file, or None.
        saved: The file with what clients of the daemon have saved, or None.
        report: Called with what is wrong with that file, and with each key of the other that is.

    Raises:
        ConfigError: A file cannot be read, or a key is unknown.
    """
    if variable := os.environ.get("SENTINEL_WORKLOAD"):  # a daemon inherits it
        os.environ["SENTINEL_WORKLOAD"] = for_daemon("workload", variable)
    file = find_file(config, os.environ)
    kept: tuple[Given, ...] = ()
    try:
        kept = read_saved(saved) if saved is not None else ()
    except ConfigError as error:
        report(error)
    sources = gather(from_flags(given), os.environ, file, kept, report)
    for warning in unknown_variables(os.environ):
        click.echo(f"sentinel: warning: {warning}", err=True)
    return sources


def key_of(name: str, where: str = "", *, saves: bool = False) -> str:
    """Return the key of a setting that is named by its key or by its option.

    Args:
        name: Such as ``memory.target``, ``memory`` or ``--memory``.
        where: Where it was given, for the error, such as ``--unset: ``.
        saves: Whether it is also saved, for the next daemon.

    Raises:
        ConfigError: There is no such setting, or a running daemon cannot change it.
    """
    names = {setting.flag.removeprefix("--"): setting for setting in SETTINGS}
    names |= {setting.key: setting for setting in SETTINGS}
    found = names.get(name.removeprefix("--"))
    if found is None:
        what = f"{where}there is no setting {name!r}"
        if meant := key_elsewhere(name):
            raise ConfigError(what, f"Did you mean {meant}?")
        allowed = [one for one, row in names.items() if saves or row.scope is not Scope.START]
        raise unknown_name(what, name, allowed)
    if found.scope is Scope.START and not saves:
        raise ConfigError(
            f"{where}{found.key} takes effect only at a start",
            f"Use `sentinel set --save {found.key}=VALUE`, then `sentinel restart`.",
        )
    return found.key


def flag_of(key: str) -> str:
    """Return the flag of a setting."""
    return next(setting.flag for setting in SETTINGS if setting.key == key)


def for_daemon(key: str, text: str) -> str:
    """Return the text of a setting for a daemon, whose working directory is another one."""
    if key == "workload":
        return _with_folder(text)
    relative = key in {"goldens", "log.file"} and text != "off"
    relative = relative and not text.startswith(("/", "~/"))
    return str(Path(text).absolute()) if relative else text


def _with_folder(text: str) -> str:
    """Return a workload with the current folder, if that has the module; `-P` makes no difference.

    What is imported already, such as sentinel itself, is found everywhere.
    """
    with contextlib.suppress(ConfigError):  # reported where it is used
        place, colon, _ = parse_workload(text)[0].partition(":")
        top = Path(place.partition(".")[0])
        found = top.with_suffix(".py").is_file() or any(top.glob("*.py"))
        if colon and not top.is_absolute() and found and str(top) not in sys.modules:
            with_folder = f"{Path.cwd()}/{text.strip()}"
            parse_workload(with_folder)  # no setting can name a folder with a colon or a comma
            return with_folder
    return text


def _with_settings(
    function: _Function,
    settings: Sequence[Setting] = SETTINGS,
    *,
    defaults: bool = True,
    hidden: Collection[str] = (),
) -> _Function:
    """Add one option per setting; pass the texts of the given ones by key as ``given``."""

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        given = {}
        for setting in settings:
            value = values.pop(setting.field)
            text = ",".join(value) if setting.form.many and value else value
            if text is not None and text != ():
                given[setting.key] = for_daemon(setting.key, text)
        return function(given=given, **values)

    for setting in reversed(settings):
        default = f"  [default: {setting.default}]" if setting.default and defaults else ""
        command = click.option(
            setting.flag,
            setting.field,
            metavar=setting.form.metavar,
            multiple=setting.form.many,
            shell_complete=value_completion.of_setting(setting.key, setting.form.metavar),
            help=setting.help + default,
            hidden=setting.field in hidden,
        )(command)
    return command


#: Adds one option per setting; passes the texts of the given ones by key as ``given``.
flags = functools.partial(_with_settings, defaults=False)
#: The same for the settings that a single GPU may have.
single_gpu_flags = functools.partial(
    _with_settings,
    settings=[setting for setting in SETTINGS if setting.scope is Scope.GPU],
    defaults=False,
)


def warn_of_no_notifications(config: Config, sources: Sources, why: str) -> None:
    """Print a warning for each recipient of notifications that the settings name in vain.

    Args:
        config: The settings.
        sources: Where they come from.
        why: Why nothing is sent.
    """
    recipients = {"notify.webhook": config.notify_webhook, "notify.command": config.notify_command}
    for key, recipient in recipients.items():
        if recipient is not None:
            source = sources.source_of(key)
            click.echo(f"sentinel: warning: {source}: no notification is sent, {why}", err=True)


def expect_options(function: _Function) -> _Function:
    """Add the options that say what a node must be: ``expect`` and ``expect_gpus``."""
    function = click.option(
        "--expect-gpus",
        type=WholeNumber(min=1),
        metavar="N",
        help="Fail the node unless it has N GPUs.",
    )(function)
    return click.option(
        "--expect",
        metavar="FILE",
        help="Fail the node if it is not as FILE says.  [default: /etc/sentinel/node.toml for real"
        " GPUs]",
    )(function)


def level_option(text: str) -> Callable[[_Function], _Function]:
    """Return the option ``--level``: one of the plans that are shipped with Sentinel."""
    from sentinel.burnin.levels import LEVELS  # slow to import

    words = f"{', '.join(LEVELS)}: {text}"
    return click.option("--level", metavar="LEVEL", type=Word(LEVELS), help=words)


def thresholds_option(more: str = ".") -> Callable[[_Function], _Function]:
    """Build the decorator that adds ``limits``: the file that replaces limits of checks."""
    text = f"Replace limits by those of this TOML file{more}"
    return click.option("--thresholds", "limits", metavar="FILE", help=text)


def load_expectation(file: str | None, gpus: int | None, *, is_here: bool) -> Expectation:
    """Read what a node must be: that file, that of the variable, or that of the host if there.

    Args:
        file: The file of ``--expect``, or None.
        gpus: The number of ``--expect-gpus``, or None.
        is_here: Whether it is about this host's real GPUs, for which the host has a file.

    Raises:
        click.UsageError: A file cannot be read or trusted, or has something that is not allowed; or
            both options say another number.
    """
    named = os.environ.get(EXPECTATION_VARIABLE) or None if file is None else file
    flag = EXPECTATION_VARIABLE if file is None else "--expect"
    if named is None and is_here and _may_exist(HOSTS_EXPECTATION):
        named, flag = str(HOSTS_EXPECTATION), "what this node must be"
    if named is None:
        return Expectation() if gpus is None else expect_gpus(gpus)
    path = Path(named).absolute()
    with _usage_errors(f"{flag} {path}"):
        if (why := why_replaceable(path)) is not None:
            remedy = "allowed is a file that root or you own, and that no other user can replace"
            raise click.UsageError(f"{flag} {path}: {why}; {remedy}")
        text = decode_toml(read_regular(path, _MAX_FILE_BYTES), str(path))
        found = parse_expectation(text, str(path))
    if gpus is None or gpus == found.gpus:
        return found
    if found.gpus is not None:
        raise click.UsageError(f"--expect-gpus {gpus}: {path} says gpus = {found.gpus}; omit one")
    return expect_gpus(gpus, found)


def _may_exist(path: Path) -> bool:
    """Check whether a file is there, or cannot be looked for."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # reading it says why
        pass
    return True


def load_thresholds(file: str | None) -> SharedThresholds:
    """Read a file of thresholds: one file serves nodes and fleets.

    Args:
        file: Its path, or None for the defaults.

    Raises:
        click.UsageError: It cannot be read, or has something that is not allowed.
    """
    from sentinel.fleet.node_files import SharedThresholds, read_thresholds

    if file is None:
        return SharedThresholds()
    with _usage_errors(f"--thresholds {file}"):
        return read_thresholds(Path(file))


@contextlib.contextmanager
def _usage_errors(what: str) -> Iterator[None]:
    """Turn the errors of a file that an option names into those of wrong usage."""
    try:
        yield
    except OSError as error:
        why = f"{error.strerror or error}; allowed is a regular TOML file of at most 1 MiB"
        raise click.UsageError(f"{what}: {why}") from error
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
