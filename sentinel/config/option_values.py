"""Convert the options of a workload, a driver or a check from text, by their annotations."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sentinel.errors import ConfigError

_BOOLS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(
    ("false", "no", "off", "0"), False
)
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class _Required:
    """The default of an option that has none."""


REQUIRED = _Required()


class Option(NamedTuple):
    """One option: an int, a float, a bool, a str or a Literal, maybe with a check."""

    #: Such as ``int``; ``Annotated[int, check]`` calls ``check``, which raises ConfigError.
    annotation: object
    #: The value if it is not given, or REQUIRED.
    default: object = REQUIRED


def convert_options(
    name: str, options: Mapping[str, Option], given: Mapping[str, str]
) -> dict[str, object]:
    """Convert the given options to values.

    Args:
        name: What has the options, for errors.
        options: All of them.
        given: The texts of some.

    Raises:
        ConfigError: One is unknown, missing, of the wrong kind, or refused by its check.
    """
    allowed = describe_options(options)
    for key in given.keys() - options.keys():
        raise ConfigError(f"{name} has no option {key!r}; {allowed}")
    for key, option in options.items():
        if option.default is REQUIRED and key not in given:
            raise ConfigError(f"{name} needs the option {key!r}; {allowed}")
    values: dict[str, object] = {}
    for key, text in given.items():
        annotation = options[key].annotation
        try:
            values[key] = _convert(annotation, text)
        except (ValueError, KeyError):
            what = f"{name}: option {key}={text!r} is not {kind_of(annotation)}; {allowed}"
            raise ConfigError(what) from None
        for check in _checks(annotation):
            try:
                check(values[key])
            except ConfigError as error:
                raise ConfigError(f"{name}: {error.what}", error.remedy) from None
    return values


def describe_options(options: Mapping[str, Option]) -> str:
    """Describe all options, for an error."""
    shown = [
        f"{name} ({kind_of(option.annotation)}"
        + ("" if option.default is REQUIRED else f", default {option.default!r}")
        + ")"
        for name, option in options.items()
    ]
    return f"its options are {', '.join(shown)}" if shown else "it has no options"


def kind_of(annotation: object) -> str:
    """Describe the values that ``annotation`` allows."""
    annotation = _plain(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(annotation)))
    unsupported = f"{annotation}, which cannot be written as an option"
    return next((name for kind, name in _KINDS.items() if annotation is kind), unsupported)


def _checks(annotation: object) -> list[Callable[[object], None]]:
    """Return the checks of an ``Annotated``; of any other annotation there are none."""
    return [one for one in getattr(annotation, "__metadata__", ()) if callable(one)]


def _plain(annotation: object) -> object:
    """Return an annotation without what ``Annotated`` adds to it."""
    is_annotated = typing.get_origin(annotation) is typing.Annotated
    return typing.get_args(annotation)[0] if is_annotated else annotation


def _convert(annotation: object, text: str) -> object:
    """Convert ``text``; raises ValueError or KeyError if ``annotation`` does not allow it."""
    annotation = _plain(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return {str(value): value for value in typing.get_args(annotation)}[text]
    if annotation is bool:
        return _BOOLS[text.lower()]
    if annotation is str:
        return text
    if annotation is int:
        return int(text)
    if annotation is float and math.isfinite(number := float(text)):
        return number
    raise ValueError
