"""Import the driver that a probe is to use, and nothing else."""

from __future__ import annotations

import importlib

from sentinel.probe.driver import Driver, DriverGoneError, one_line
from sentinel.protocol.probe import DriverSpec

#: The error code of a driver of a package that cannot be loaded.
UNUSABLE = "driver_unusable"


def load_driver(spec: DriverSpec) -> Driver:
    """Create a driver; one of a package is wrapped in checks of all that it returns.

    Raises:
        DriverGoneError: The driver of a package cannot be imported or created, or lacks a method.
    """
    if spec.origin is None:
        driver: Driver = _create(spec)
        return driver
    from sentinel.probe.checked_driver import CALLS, CheckedDriver

    named = f"driver {spec.name} of {spec.origin}"
    try:
        driver = _create(spec)
    except Exception as error:
        reason = f"{named} cannot be loaded: {one_line(error)}"
        raise DriverGoneError(UNUSABLE, reason) from error
    missing = [call for call in CALLS if not callable(getattr(driver, call, None))]
    if missing:
        raise DriverGoneError(UNUSABLE, f"{named} has no {', '.join(missing)}()")
    return CheckedDriver(spec.name, driver)


def _create(spec: DriverSpec) -> Driver:
    """Import what creates the driver, and call it with the options."""
    module, _, attribute = spec.place.partition(":")
    found = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    create: object = found
    if not callable(create):
        message = f"{spec.place} is a {type(create).__name__}, which cannot be called"
        raise TypeError(message)
    driver: Driver = create(**spec.options)
    return driver
