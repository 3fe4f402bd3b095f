"""Find the driver that the probe is to load, by its name and without importing it.

A driver is an entry point of the group ``sentinel.drivers``. Its module is imported in the probe
alone, which gets its place by the specification: reading the metadata of packages would cost a
probe several megabytes.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from sentinel.config.workload_spec import origin_of, parse_options
from sentinel.errors import ConfigError
from sentinel.protocol.probe import NVML, SIMULATED, DriverSpec

#: The entry-point group of drivers.
GROUP = "sentinel.drivers"

#: No package can replace these under their names, and they need no metadata.
_BUILT_IN = {NVML.name: NVML, SIMULATED.name: SIMULATED}

_FORM = "NAME[:key=value,...]"


def parse_driver(text: str) -> str:
    """Check the form of a driver's specification, and return it.

    Raises:
        ValueError: It is malformed.
    """
    name, colon, rest = text.strip().partition(":")
    if not name.replace("-", "_").replace(".", "_").isidentifier() or (colon and not rest):
        message = f"{text!r} does not name a driver; write {_FORM}"
        raise ValueError(message)
    try:
        parse_options(rest, text, _FORM)
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
    options = parse_options(rest, text, _FORM)
    if name == SIMULATED.name:
        raise ConfigError("driver: simulated GPUs are not a setting", "Write: --simulate N")
    if name in _BUILT_IN:
        if options:
            raise ConfigError(f"driver: {name} takes no options, and {text!r} gives some")
        return _BUILT_IN[name]
    found = list(entry_points(group=GROUP, name=name))
    if len(found) > 1:
        origins = " and ".join(map(origin_of, found))
        raise ConfigError(f"driver: {name!r} is registered by {origins}", "Remove one of them.")
    if not found:
        others = {one.name for one in entry_points(group=GROUP)} - _BUILT_IN.keys()
        known = ", ".join([NVML.name, *sorted(others)])
        raise ConfigError(
            f"driver: there is no driver {name!r}; known are {known}",
            "Install the package that has it for the Python of sentinel.",
        )
    return DriverSpec(name=name, place=found[0].value, origin=origin_of(found[0]), options=options)
