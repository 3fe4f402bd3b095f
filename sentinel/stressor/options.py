"""The options of a workload: which it takes, what they may be, and what its docstring says of them.

A workload is a function or any other object that is called with a context, or a class that is made
with its options and whose ``run`` is called with a context.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping

from sentinel.errors import ConfigError, WorkloadError
from sentinel.protocol.inspection import WorkloadOption

#: What is loaded by a workload's name.
Workload = Callable[..., object]

_FUNCTION = "Write it as `def {name}(ctx, *, option=default)`; see docs/writing-workloads.md."
_CLASS = (
    "Give the class an `__init__(self, *, option=default)` and a `run(self, ctx)`; see "
    "docs/writing-workloads.md."
)
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True}
_LIES = {"false": False, "no": False, "off": False, "0": False}

#: How much is told of what a docstring says, in characters.
_LONGEST = 300


def start(workload: Workload, ctx: object, options: Mapping[str, object]) -> None:
    """Run ``workload`` with its bound options until it returns; an instance is made of a class."""
    if isinstance(workload, type):
        workload(**options).run(ctx)
    else:
        workload(ctx, **options)


def bind_options(workload: Workload, options: Mapping[str, str]) -> dict[str, object]:
    """Return ``options`` as the keyword arguments of ``workload``, converted by its annotations.

    An option may be an int, a float, a bool, a str or a Literal; without an annotation it is a str.

    Raises:
        WorkloadError: It cannot be called with a context, or an annotation cannot be read.
        ConfigError: An option is unknown, missing or not of its kind.
    """
    parameters = _parameters(workload)
    allowed = _allowed(parameters)
    for key in options:
        if key not in parameters:
            raise ConfigError(f"{_name(workload)} has no option {key!r}; {allowed}")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in options:
            raise ConfigError(f"{_name(workload)} needs the option {key!r}; {allowed}")
    bound: dict[str, object] = {}
    for key, text in options.items():
        try:
            bound[key] = _convert(parameters[key].annotation, text)
        except ValueError as error:
            what = f"{_name(workload)}: option {key}={text!r} is not {error}; {allowed}"
            raise ConfigError(what) from None
    return bound


def list_options(workload: Workload) -> tuple[WorkloadOption, ...]:
    """Return each option that ``workload`` takes, with what its docstring says in one line.

    Raises:
        WorkloadError: It cannot be called with a context, or an annotation cannot be read.
    """
    said = _arguments(workload)
    return tuple(
        WorkloadOption(
            name=name,
            kind=_kind(parameter.annotation),
            default=None if parameter.default is parameter.empty else _shown(parameter.default),
            text=said.get(name, ""),
        )
        for name, parameter in _parameters(workload).items()
    )


def summary(workload: Workload) -> str:
    """Return the first paragraph of the docstring in one line, or nothing."""
    return _one_line((inspect.getdoc(workload) or "").partition("\n\n")[0])


# --- signatures ------------------------------------------------------------------------------


def _name(workload: Workload) -> str:
    return f"workload {getattr(workload, '__name__', type(workload).__name__)}"


def _parameters(workload: Workload) -> dict[str, inspect.Parameter]:
    """Return the options that ``workload`` takes, their annotations resolved.

    Raises:
        WorkloadError: It is not what can be called as a workload.
    """
    if isinstance(workload, type):
        rest = _signature(workload, workload)
        _check_run(workload)
        remedy = _CLASS
    else:
        rest = _after_context(workload, workload)
        remedy = _FUNCTION.format(name=getattr(workload, "__name__", "work"))
    for parameter in rest:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            what = f"{_name(workload)} wants {parameter.name!r} by its place, not by its name"
            raise WorkloadError(what, remedy)
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    scope = _scope(workload)
    return {
        parameter.name: parameter.replace(annotation=_resolve(parameter, scope))
        for parameter in rest
        if parameter.kind in named
    }


def _check_run(workload: type) -> None:
    """Make sure that a class has a ``run`` that takes a context and nothing else."""
    run = getattr(workload, "run", None)
    if not callable(run):
        raise WorkloadError(f"{_name(workload)} is a class without a method `run`", _CLASS)
    static = isinstance(inspect.getattr_static(workload, "run"), staticmethod | classmethod)
    # Bound to anything, since no instance exists yet: what is left is what a caller gives.
    more = _after_context(workload, run if static else types.MethodType(run, object()))
    for parameter in more:
        if parameter.default is parameter.empty and parameter.kind not in {
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        }:
            what = f"{_name(workload)}: its `run` wants {parameter.name!r} besides the context"
            raise WorkloadError(what, _CLASS)


def _after_context(workload: Workload, called: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters of what is ``called`` with a context, but for that."""
    remedy = _CLASS if isinstance(workload, type) else _FUNCTION.format(name="work")
    for odd, kind in (
        (inspect.isgeneratorfunction, "a generator: it has a `yield`"),
        (inspect.iscoroutinefunction, "a coroutine: it is an `async def`"),
    ):
        if odd(called):
            raise WorkloadError(f"{_name(workload)} is {kind}, so a call runs nothing", remedy)
    parameters = _signature(workload, called)
    if not parameters:
        raise WorkloadError(f"{_name(workload)} does not take a context as its argument", remedy)
    ctx, *rest = parameters
    if ctx.kind not in {ctx.POSITIONAL_ONLY, ctx.POSITIONAL_OR_KEYWORD, ctx.VAR_POSITIONAL}:
        what = f"{_name(workload)} does not take a context as its first argument"
        raise WorkloadError(what, remedy)
    return rest


def _signature(workload: Workload, called: Callable[..., object]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        what = f"{_name(workload)} does not say what it takes as its arguments"
        raise WorkloadError(what, _FUNCTION.format(name="work")) from None


def _scope(workload: Workload) -> dict[str, object]:
    """Return the names that the annotations of ``workload`` may use."""
    plain = inspect.unwrap(workload)
    if isinstance(plain, type):
        plain = inspect.unwrap(plain.__init__)  # type: ignore[misc] # of an unknown class, so be it
    elif not hasattr(plain, "__globals__"):
        plain = inspect.unwrap(type(plain).__call__)
    module = sys.modules.get(getattr(workload, "__module__", None) or "")
    scope: dict[str, object] = getattr(plain, "__globals__", None) or vars(module or types)
    return scope


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
        raise WorkloadError(text) from error


# --- values ----------------------------------------------------------------------------------


def _allowed(parameters: Mapping[str, inspect.Parameter]) -> str:
    if not parameters:
        return "it has no options"
    shown = (
        f"{name} ({_kind(parameter.annotation)}"
        + ("" if parameter.default is parameter.empty else f", default {parameter.default!r}")
        + ")"
        for name, parameter in parameters.items()
    )
    return f"its options are {', '.join(shown)}"


def _shown(default: object) -> str:
    """Return a default as it would be written as an option."""
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return text[:_LONGEST]


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


# --- what a docstring says -------------------------------------------------------------------


def _arguments(workload: Workload) -> dict[str, str]:
    """Return what the section ``Args:`` of the docstring says of each argument.

    That of a class may be in its own docstring or in that of its ``__init__``.
    """
    texts = [inspect.getdoc(workload) or ""]
    if isinstance(workload, type):
        texts.insert(0, inspect.getdoc(workload.__init__) or "")  # type: ignore[misc] # as above
    said: dict[str, str] = {}
    for text in texts:
        _, _, section = text.partition("Args:\n")
        body = re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0]
        indent = len(body) - len(body.lstrip(" "))
        entry = re.compile(rf"^ {{{indent}}}\*{{0,2}}(\w+)(?: \([^)]*\))?:", re.MULTILINE)
        _, *parts = entry.split(body)
        names, lines = parts[::2], parts[1::2]
        said.update(zip(names, map(_one_line, lines), strict=True))
    return said


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."
