"""Parse the specifications of workloads and drivers, and find those that packages register.

A workload is an entry point of the group ``sentinel.workloads``, or ``module:attribute``; a driver
is one of ``sentinel.drivers``. Neither is imported here. The probe alone imports the module of a
driver, and gets its place: reading the metadata of packages would cost it several megabytes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence

from sentinel.config.options import BUILT_IN, convert_options
from sentinel.config.registrations import Registration, read_registrations, unreadable_packages
from sentinel.errors import ConfigError
from sentinel.protocol import __version__
from sentinel.protocol.probe import NVML, SIMULATED, DriverSpec

# --- workloads --------------------------------------------------------------------------------

#: The entry-point group of workloads.
WORKLOADS = "sentinel.workloads"

#: The objects of the built-in workloads. They are not looked up in the metadata: a package could
#: hide or replace them there.
TARGETS = {
    "elementwise": "sentinel.stressor.workloads:elementwise",
    "gemm": "sentinel.stressor.workloads:gemm",
    "hold": "sentinel.stressor.workloads:hold",
    "links": "sentinel.stressor.links:links",
    "memtest": "sentinel.stressor.memtest:memtest",
    "mixed": "sentinel.stressor.workloads:mixed",
    "pulse": "sentinel.stressor.workloads:pulse",
    "units": "sentinel.stressor.workloads:units",
}
_OWN = {
    name: Registration(name=name, target=target, package="gpu-sentry", version=__version__)
    for name, target in TARGETS.items()
}

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


def registered() -> tuple[Registration, ...]:
    """Return all workloads, sorted by name; the built-in ones do not depend on metadata."""
    others = (one for one in read_registrations(WORKLOADS) if TARGETS.get(one.name) != one.target)
    return tuple(sorted((*_OWN.values(), *others), key=lambda one: one.name))


def known_workloads() -> dict[str, str]:
    """Return the origin of each registered workload that can be named, by name."""
    found: dict[str, list[str]] = {}
    for one in registered():
        if is_selectable(one):
            found.setdefault(one.name, []).append(one.origin)
    return {name: " and ".join(origins) for name, origins in found.items()}


def check_workload(text: str, find: Callable[[str], Registration] | None = None) -> None:
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
    if name in BUILT_IN:
        convert_options(f"workload {name}", BUILT_IN[name], given)
    elif ":" not in name:
        (find or find_workload)(name)


def is_shadowed(one: Registration) -> bool:
    """Check whether a package registers the name of a built-in workload, which is used instead."""
    return one.name in TARGETS and TARGETS[one.name] != one.target


def is_selectable(one: Registration) -> bool:
    """Check whether the name of a registration selects it, unless a second package has it, too."""
    return one.problem is None and not is_shadowed(one)


def unusable() -> Iterator[str]:
    """Yield a sentence about each workload and driver of a package that its name cannot select."""
    for one in registered():
        what = f"workload {one.name!r} of {one.origin}"
        if one.problem is not None:
            yield f"{what} cannot be used: {one.problem}"
        elif is_shadowed(one):
            yield (
                f"{what} is not used: the name is that of a built-in workload; name it as"
                f" {one.target}"
            )
    for one in read_registrations(DRIVERS):
        what = f"driver {one.name!r} of {one.origin}"
        own = _BUILT_IN.get(one.name)
        if own is not None and own.target == one.target:
            continue
        if one.problem is not None:
            yield f"{what} cannot be used: {one.problem}"
        elif own is not None:
            yield (
                f"{what} is not used: the name is that of a built-in driver; its package has to"
                " register it under another name"
            )
    yield from unreadable_packages()


def find_workload(name: str, entries: Sequence[Registration] | None = None) -> Registration:
    """Return the registration of a workload; no package can replace a built-in one.

    Args:
        name: The workload.
        entries: Those of :func:`registered`, for many searches.

    Raises:
        ConfigError: No package registers it in a way that can be used, or several do.
    """
    if name in _OWN:
        return _OWN[name]
    named = [one for one in (registered() if entries is None else entries) if one.name == name]
    found = [one for one in named if one.problem is None]
    if len(found) == 1:
        return found[0]
    if found:
        origins = " and ".join(one.origin for one in found)
        text = f"workload {name!r} is registered by {origins}"
        raise ConfigError(text, "Select one as module:attribute.")
    if named:
        what = f"workload {name!r} of {named[0].owner} cannot be used: {named[0].problem}"
        raise ConfigError(what)
    known = known_workloads()
    near = difflib.get_close_matches(name, known, n=1)
    remedy = f"Did you mean {near[0]}?" if near else ""
    if name.endswith(".py"):
        remedy = f"Name its function or class, too: {name.removesuffix('.py')}:NAME"
    what = f"there is no workload {name!r}; known are {', '.join(known)}, or module:attribute"
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
    others = [one for one in read_registrations(DRIVERS) if one.name not in _BUILT_IN]
    named = [one for one in others if one.name == name]
    found = [one for one in named if one.problem is None]
    if len(found) > 1:
        origins = " and ".join(one.origin for one in found)
        raise ConfigError(f"driver: {name!r} is registered by {origins}", "Remove one of them.")
    if named and not found:
        raise ConfigError(f"driver: {name!r} of {named[0].owner}: {named[0].problem}")
    if not found:
        usable = dict.fromkeys(one.name for one in others if one.problem is None)
        known = ", ".join([NVML.name, *usable])
        raise ConfigError(
            f"driver: there is no driver {name!r}; known are {known}",
            "Install the package that has it for the Python of sentinel.",
        )
    return DriverSpec(name=name, target=found[0].target, origin=found[0].origin, options=options)
