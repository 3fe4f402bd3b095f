"""Parse the specifications of workloads and drivers, and find those that packages register.

A workload is an entry point of the group ``sentinel.workloads``, or ``module:attribute``; a driver
is one of ``sentinel.drivers``. Neither is imported here. The probe alone imports the module of a
driver, and gets its place: reading the metadata of packages would cost it several megabytes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points

from sentinel.config.options import BUILT_IN, PACKAGE, convert_options
from sentinel.errors import ConfigError
from sentinel.protocol.probe import NVML, SIMULATED, DriverSpec

# --- workloads --------------------------------------------------------------------------------

#: The entry-point group of workloads.
WORKLOADS = "sentinel.workloads"

_WORKLOAD_FORM = "NAME[:key=value,...] or [/FOLDER/]module:attribute[:key=value,...]"
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")
#: The absolute folder of a module, with the slash after it.
_FOLDER = re.compile(r"/([^:,\x00-\x1f]*/)?")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_KEY = re.compile(r"[A-Za-z_]\w*")

#: The entry-point group of drivers.
DRIVERS = "sentinel.drivers"

#: No package can replace these under their names, and they need no metadata.
_BUILT_IN = {NVML.name: NVML, SIMULATED.name: SIMULATED}

_DRIVER_FORM = "NAME[:key=value,...]"


def parse_workload(text: str) -> tuple[str, dict[str, str]]:
    """Split ``NAME[:key=value,...]`` into the name and the options.

    The name may be ``module:attribute``, after the folder of the module. A value may contain colons
    and equals signs, but no comma.

    Raises:
        ConfigError: The text is malformed or repeats an option.
    """
    folder = _FOLDER.match(text.strip())
    before = folder[0] if folder else ""
    name, _, rest = text.strip().removeprefix(before).partition(":")
    good = None if before else _NAME.fullmatch(name)
    first, colon, more = rest.partition(":")
    if rest and "=" not in first:
        good = _DOTTED.fullmatch(name) and _DOTTED.fullmatch(first)
        name, rest = f"{before}{name}:{first}", more
        if colon and not more:
            good = None
    if not good or text.strip().endswith(":"):
        raise ConfigError(f"{text!r} does not name a workload; write {_WORKLOAD_FORM}")
    if ".py:" in name:
        remedy = f"Write it as a module: {name.replace('.py:', ':')}"
        raise ConfigError(f"{text!r} names a file", remedy)
    return name, parse_options(rest, text, _WORKLOAD_FORM)


def parse_options(rest: str, text: str, form: str) -> dict[str, str]:
    """Split ``key=value,...`` into the options; no text has none.

    Args:
        rest: The options.
        text: The whole specification, for errors.
        form: How to write it, for errors.

    Raises:
        ConfigError: The text is malformed or repeats an option.
    """
    options: dict[str, str] = {}
    for item in rest.split(",") if rest else ():
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not _KEY.fullmatch(key):
            raise ConfigError(f"{item!r} in {text!r} is not key=value; write {form}")
        if key in options:
            raise ConfigError(f"{text!r} gives the option {key!r} twice; give it once")
        options[key] = value
    return options


def registered() -> tuple[EntryPoint, ...]:
    """Return the entry points of all workloads, sorted by name."""
    return tuple(sorted(entry_points(group=WORKLOADS), key=lambda entry: (entry.name, entry.value)))


def known_workloads() -> dict[str, str]:
    """Return the origin of each registered workload that can be named, by name."""
    found: dict[str, list[str]] = {}
    for entry in registered():
        if not is_shadowed(entry):
            found.setdefault(entry.name, []).append(origin_of(entry))
    return {name: " and ".join(origins) for name, origins in sorted(found.items())}


def check_workload(text: str, find: Callable[[str], EntryPoint] | None = None) -> None:
    """Check that a workload is registered; ``module:attribute`` is only parsed.

    The options of built-in workloads are checked, too. Those of other packages are known only to
    processes that import them.

    Args:
        text: The workload, as ``--workload`` takes it.
        find: A cached :func:`find_workload`, for many workloads.

    Raises:
        ConfigError: The text is malformed, no package registers the workload, or an option of a
            built-in one is wrong.
    """
    name, given = parse_workload(text)
    if ":" in name:
        return
    entry = (find or find_workload)(name)
    options = BUILT_IN.get(entry.attr) if is_built_in(entry) else None
    if options is not None:
        convert_options(f"workload {entry.attr}", options, given)


def is_built_in(entry: EntryPoint) -> bool:
    """Check whether an entry point is that of a workload of Sentinel's own."""
    return entry.value.startswith(PACKAGE)


def is_shadowed(entry: EntryPoint) -> bool:
    """Check whether an entry point has the name of a built-in workload, which is used instead."""
    return entry.name in BUILT_IN and not (is_built_in(entry) and entry.attr == entry.name)


def shadowed() -> Iterator[str]:
    """Yield a sentence about each registration of a built-in workload's name by a package."""
    for entry in filter(is_shadowed, registered()):
        yield (
            f"workload {entry.name!r} of {origin_of(entry)} is not used: the name is that of a"
            f" built-in workload; name it as {entry.value}"
        )


def origin_of(entry: EntryPoint) -> str:
    """Name the package of an entry point, its version and the object."""
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "no package"
    return f"{package} ({entry.value})"


def find_workload(name: str, entries: Sequence[EntryPoint] | None = None) -> EntryPoint:
    """Return the entry point of a workload; no package can replace a built-in one.

    Args:
        name: The workload.
        entries: Those of :func:`registered`, for many searches.

    Raises:
        ConfigError: No package registers it, or several do.
    """
    named = (one for one in (registered() if entries is None else entries) if one.name == name)
    found = [one for one in named if not is_shadowed(one)]
    if found and (len(found) == 1 or name in BUILT_IN):
        return found[0]
    if found:
        origins = " and ".join(origin_of(entry) for entry in found)
        text = f"workload {name!r} is registered by {origins}"
        raise ConfigError(text, "Select one as module:attribute.")
    known = ", ".join(known_workloads()) or "none (is the package installed with pip?)"
    near = difflib.get_close_matches(name, known_workloads(), n=1)
    remedy = f"Did you mean {near[0]}?" if near else ""
    if name.endswith(".py"):
        remedy = f"Name its function or class, too: {name.removesuffix('.py')}:NAME"
    what = f"there is no workload {name!r}; known are {known}, or module:attribute"
    raise ConfigError(what, remedy)


# --- drivers ----------------------------------------------------------------------------------


def parse_driver(text: str) -> str:
    """Check the form of a driver's specification, and return it.

    Raises:
        ValueError: It is malformed.
    """
    name, colon, rest = text.strip().partition(":")
    if not name.replace("-", "_").replace(".", "_").isidentifier() or (colon and not rest):
        message = f"{text!r} does not name a driver; write {_DRIVER_FORM}"
        raise ValueError(message)
    try:
        parse_options(rest, text, _DRIVER_FORM)
    except ConfigError as error:
        raise ValueError(error.what) from error
    return text.strip()


def find_driver(text: str) -> DriverSpec:
    """Find what the setting ``driver`` names.

    Raises:
        ConfigError: No package registers it, or several do; or it is the simulated one, which only
            ``--simulate`` selects, since stressors have to know of it, too.
    """
    name, _, rest = text.strip().partition(":")
    options = parse_options(rest, text, _DRIVER_FORM)
    if name == SIMULATED.name:
        raise ConfigError("driver: simulated GPUs are not a setting", "Write: --simulate N")
    if name in _BUILT_IN:
        if options:
            raise ConfigError(f"driver: {name} takes no options, and {text!r} gives some")
        return _BUILT_IN[name]
    found = list(entry_points(group=DRIVERS, name=name))
    if len(found) > 1:
        origins = " and ".join(map(origin_of, found))
        raise ConfigError(f"driver: {name!r} is registered by {origins}", "Remove one of them.")
    if not found:
        others = {entry.name for entry in entry_points(group=DRIVERS)} - _BUILT_IN.keys()
        known = ", ".join([NVML.name, *sorted(others)])
        raise ConfigError(
            f"driver: there is no driver {name!r}; known are {known}",
            "Install the package that has it for the Python of sentinel.",
        )
    return DriverSpec(name=name, target=found[0].value, origin=origin_of(found[0]), options=options)
