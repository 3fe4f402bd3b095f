"""Find a workload by its name and give it its options; imports a plugin only in load_workload.

Workloads come from the entry-point group ``sentinel.workloads`` or are named by where they are.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import traceback
import types
import typing
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from sentinel.errors import ConfigError

__all__ = [
    "GROUP",
    "Workload",
    "bind_options",
    "check_workload",
    "describe",
    "known_workloads",
    "load_workload",
    "parse_workload",
]

#: The entry-point group in which a package registers its workloads.
GROUP = "sentinel.workloads"

#: A workload is called with its context and its options, and goes on until the context says stop.
Workload = Callable[..., object]

_FORM = "NAME[:key=value,...] or module:attribute[:key=value,...]"
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_KEY = re.compile(r"[A-Za-z_]\w*")
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True}
_LIES = {"false": False, "no": False, "off": False, "0": False}

#: How much of a foreign error's text is passed on.
_LONGEST_TEXT = 1000


def parse_workload(text: str) -> tuple[str, dict[str, str]]:
    """Return the name and the options that ``text`` writes as ``NAME[:key=value,...]``.

    The name may be ``module:attribute``. A value may hold colons and equals signs, but no comma.

    Raises:
        ConfigError: It is not written so, or names an option twice.
    """
    name, _, rest = text.strip().partition(":")
    good = _NAME.fullmatch(name)
    first, colon, more = rest.partition(":")
    if rest and "=" not in first:
        good = _DOTTED.fullmatch(name) and _DOTTED.fullmatch(first)
        name, rest = f"{name}:{first}", more
        if colon and not more:
            good = None
    if not good or text.strip().endswith(":"):
        raise ConfigError(f"{text!r} does not name a workload; write {_FORM}")
    options: dict[str, str] = {}
    for item in rest.split(",") if rest else ():
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not _KEY.fullmatch(key):
            raise ConfigError(f"{item!r} in {text!r} is not key=value; write {_FORM}")
        if key in options:
            raise ConfigError(f"{text!r} gives the option {key!r} twice; give it once")
        options[key] = value
    return name, options


def known_workloads() -> dict[str, str]:
    """Return the name of each registered workload and where it comes from, importing none."""
    found: dict[str, list[str]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, []).append(_origin(entry))
    return {name: " and ".join(origins) for name, origins in sorted(found.items())}


def check_workload(text: str) -> None:
    """Make sure that ``text`` names a workload that is registered or a place; imports nothing.

    Raises:
        ConfigError: It is not written as parse_workload wants it, or no package registers it.
    """
    name, _ = parse_workload(text)
    if ":" not in name:
        _entry(name)


def load_workload(name: str) -> Workload:
    """Import the workload called ``name`` and return it.

    Raises:
        ConfigError: There is no such workload, importing it failed, or it cannot be called.
    """
    try:
        if ":" in name:
            module, _, attribute = name.partition(":")
            found: object = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        else:
            found = _entry(name).load()
    except ConfigError:
        raise
    except BaseException as error:  # a plugin may do anything while it is imported, even exit
        raise ConfigError(f"workload {name} cannot be imported: {describe(error)}") from error
    if not callable(found):
        raise ConfigError(f"workload {name} is a {type(found).__name__}, which cannot be called")
    return found


def bind_options(function: Workload, options: Mapping[str, str]) -> dict[str, object]:
    """Return ``options`` as the keyword arguments of ``function``, converted by its annotations.

    An option may be an int, a float, a bool, a str or a Literal; without an annotation it is a str.

    Raises:
        ConfigError: An option is unknown, missing or not of its kind.
    """
    parameters = _parameters(function)
    allowed = _list_options(parameters)
    for key in options:
        if key not in parameters:
            raise ConfigError(f"{_name(function)} has no option {key!r}; {allowed}")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in options:
            raise ConfigError(f"{_name(function)} needs the option {key!r}; {allowed}")
    bound: dict[str, object] = {}
    for key, text in options.items():
        try:
            bound[key] = _convert(parameters[key].annotation, text)
        except ValueError as error:
            what = f"{_name(function)}: option {key}={text!r} is not {error}; {allowed}"
            raise ConfigError(what) from None
    return bound


def describe(error: BaseException) -> str:
    """Return one line of bounded length that says what ``error`` is and where it was raised."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an exception of a plugin whose own text cannot be had
        text = ""
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if len(line) > _LONGEST_TEXT:
        line = line[:_LONGEST_TEXT] + " ..."
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return line
    last = frames[-1]
    return f"{line} ({Path(last.filename).name}:{last.lineno} in {last.name})"


def _origin(entry: EntryPoint) -> str:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "no package"
    return f"{package} ({entry.value})"


def _entry(name: str) -> EntryPoint:
    """Return the one entry point called ``name``."""
    found = list(entry_points(group=GROUP, name=name))
    if len(found) == 1:
        return found[0]
    if found:
        origins = " and ".join(_origin(entry) for entry in found)
        text = f"workload {name!r} is registered by {origins}"
        raise ConfigError(text, "Name the one that you mean as module:attribute.")
    known = ", ".join(known_workloads()) or "none (is the package installed with pip?)"
    raise ConfigError(f"there is no workload {name!r}; known are {known}, or module:attribute")


def _name(function: Workload) -> str:
    return f"workload {getattr(function, '__name__', type(function).__name__)}"


def _parameters(function: Workload) -> dict[str, inspect.Parameter]:
    """Return the options that ``function`` takes, their annotations resolved."""
    try:
        ctx, *rest = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ConfigError(f"{_name(function)} does not take a context as its argument") from None
    if ctx.kind not in {ctx.POSITIONAL_ONLY, ctx.POSITIONAL_OR_KEYWORD, ctx.VAR_POSITIONAL}:
        raise ConfigError(f"{_name(function)} does not take a context as its first argument")
    named = {ctx.POSITIONAL_OR_KEYWORD, ctx.KEYWORD_ONLY}
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    return {
        parameter.name: parameter.replace(annotation=_resolve(parameter, scope))
        for parameter in rest
        if parameter.kind in named
    }


def _resolve(parameter: inspect.Parameter, scope: dict[str, object]) -> object:
    """Return one annotation, which may be a string, without touching those of other parameters.

    The context's own annotation often cannot be resolved: its import is only for type checkers.
    """
    if parameter.annotation is parameter.empty:
        return str
    bearer = types.SimpleNamespace(__annotations__={"option": parameter.annotation})
    try:
        return typing.get_type_hints(bearer, globalns=scope)["option"]
    except Exception as error:
        text = f"the annotation of the option {parameter.name!r} cannot be read: {error}"
        raise ConfigError(text) from error


def _list_options(parameters: Mapping[str, inspect.Parameter]) -> str:
    if not parameters:
        return "it has no options"
    shown = (
        f"{name} ({_kind(parameter.annotation)}"
        + ("" if parameter.default is parameter.empty else f", default {parameter.default!r}")
        + ")"
        for name, parameter in parameters.items()
    )
    return f"its options are {', '.join(shown)}"


def _kind(annotation: object) -> str:
    """Return how people call what ``annotation`` allows."""
    if typing.get_origin(annotation) is typing.Literal:
        return "one of " + ", ".join(str(value) for value in typing.get_args(annotation))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    for kind, name in names.items():
        if annotation is kind:
            return name
    return f"{annotation}, which cannot be written as an option"


def _convert(annotation: object, text: str) -> object:
    """Return ``text`` as what ``annotation`` allows; ValueError says what that would be."""
    kind = _kind(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        choices = {str(value): value for value in typing.get_args(annotation)}
    elif annotation is bool:
        choices, text = _TRUTHS | _LIES, text.lower()
    elif annotation is str:
        return text
    else:
        return _number(annotation, text, kind)
    if text not in choices:
        raise ValueError(kind)
    return choices[text]


def _number(annotation: object, text: str, kind: str) -> int | float:
    try:
        if annotation is int:
            return int(text)
        if annotation is float and math.isfinite(number := float(text)):
            return number
    except ValueError:
        pass
    raise ValueError(kind)
