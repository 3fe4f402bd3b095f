"""The options of a workload, read from its signature, annotations and docstring.

A workload is a callable that takes a context and its options, or a class that is constructed with
its options and has a ``run`` that takes a context.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping

from sentinel.config.options import REQUIRED, Option, convert_options, kind_of
from sentinel.errors import WorkloadError
from sentinel.protocol.counters import WorkloadOption

#: A loaded workload.
Workload = Callable[..., object]

_FUNCTION = "Write it as `def {name}(ctx, *, option=default)`; see docs/writing-workloads.md."
_CLASS = (
    "Give the class an `__init__(self, *, option=default)` and a `run(self, ctx)`; see "
    "docs/writing-workloads.md."
)
#: Stands for the context when a signature is checked.
_CONTEXT = object()

#: The maximum length of a docstring's text and of a default.
_MAX_TEXT_LENGTH = 300


def start(workload: Workload, ctx: object, options: Mapping[str, object]) -> None:
    """Run ``workload`` with its bound options until it returns."""
    if isinstance(workload, type):
        workload(**options).run(ctx)
    else:
        workload(ctx, **options)


def bind_options(workload: Workload, options: Mapping[str, str]) -> dict[str, object]:
    """Convert ``options`` to keyword arguments of ``workload`` by its annotations.

    An option may be an int, a float, a bool, a str or a Literal; without an annotation it is a str.
    ``Annotated[int, check]`` calls ``check`` with the value, which raises ConfigError to refuse it.

    Raises:
        WorkloadError: It cannot be called with a context, or an annotation cannot be resolved.
        ConfigError: An option is unknown, missing, of the wrong kind, or refused by its check.
    """
    return convert_options(_name(workload), _parameters(workload), options)


def list_options(workload: Workload) -> tuple[WorkloadOption, ...]:
    """List the options of ``workload``, each with its text from the docstring.

    Raises:
        WorkloadError: It cannot be called with a context, or an annotation cannot be resolved.
    """
    texts = _argument_texts(workload)
    return tuple(
        WorkloadOption(
            name=name,
            kind=kind_of(option.annotation),
            default=_default(option),
            text=texts.get(name, ""),
        )
        for name, option in _parameters(workload).items()
    )


def summary(workload: Workload) -> str:
    """Return the first paragraph of the docstring in one line; empty if there is none."""
    return _one_line((inspect.getdoc(workload) or "").partition("\n\n")[0])


# --- signatures ------------------------------------------------------------------------------


def _name(workload: Workload) -> str:
    return f"workload {getattr(workload, '__name__', type(workload).__name__)}"


def _parameters(workload: Workload) -> dict[str, Option]:
    """Return the options of ``workload`` with their annotations resolved.

    Raises:
        WorkloadError: It cannot be called as a workload.
    """
    if isinstance(workload, type):
        options, scope = _options(workload, workload, (), _CLASS), _globals(workload.__init__)  # type: ignore[misc]
        run = getattr(workload, "run", None)
        if not callable(run):
            raise WorkloadError(f"{_name(workload)} is a class without a method `run`", _CLASS)
        if not isinstance(inspect.getattr_static(workload, "run"), staticmethod | classmethod):
            run = types.MethodType(run, object())  # no instance exists yet; any object binds `self`
        _options(workload, run, (_CONTEXT,), _CLASS, by_name=False)
    else:
        remedy = _FUNCTION.format(name=getattr(workload, "__name__", "work"))
        options, scope = _options(workload, workload, (_CONTEXT,), remedy), _globals(workload)
    return {
        name: Option(
            _resolve(parameter, scope),
            REQUIRED if parameter.default is parameter.empty else parameter.default,
        )
        for name, parameter in options.items()
    }


def _options(
    workload: Workload,
    called: Callable[..., object],
    leading: tuple[object, ...],
    remedy: str,
    *,
    by_name: bool = True,
) -> dict[str, inspect.Parameter]:
    """Return the named parameters of ``called`` after those for the ``leading`` arguments.

    Raises:
        WorkloadError: It cannot be called with the leading arguments and the options by name.
    """
    for is_lazy, kind in (
        (inspect.isgeneratorfunction, "a generator: it has a `yield`"),
        (inspect.iscoroutinefunction, "a coroutine: it is an `async def`"),
    ):
        if is_lazy(called):
            raise WorkloadError(f"{_name(workload)} is {kind}, so a call runs nothing", remedy)
    try:
        signature = inspect.signature(called)
        named = {
            parameter.name: parameter
            for parameter in list(signature.parameters.values())[len(leading) :]
            if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
        }
        signature.bind(*leading, **(dict.fromkeys(named) if by_name else {}))
    except (TypeError, ValueError) as error:
        wanted = "a context and options by name" if by_name else "the context alone"
        function = "" if by_name else ": its `run`"
        what = f"{_name(workload)}{function} cannot be called with {wanted}: {error}"
        raise WorkloadError(what, remedy) from None
    return named


def _globals(called: object) -> dict[str, object]:
    """Return the global names that the annotations of ``called`` may use."""
    function: object = inspect.unwrap(called)  # type: ignore[arg-type]
    if not hasattr(function, "__globals__"):
        function = inspect.unwrap(type(function).__call__)
    return dict(getattr(function, "__globals__", {}))


def _resolve(parameter: inspect.Parameter, scope: dict[str, object]) -> object:
    """Resolve one annotation alone.

    That of the context often cannot be resolved: its import is only for type checkers.
    """
    if parameter.annotation is parameter.empty:
        return str
    holder = types.SimpleNamespace(__annotations__={"option": parameter.annotation})
    try:
        return typing.get_type_hints(holder, globalns=scope, include_extras=True)["option"]
    except Exception as error:
        text = f"the annotation of the option {parameter.name!r} cannot be resolved: {error}"
        raise WorkloadError(text) from error


def _default(option: Option) -> str | None:
    """Return a default as it is written as an option, or None if there is none."""
    if option.default is REQUIRED:
        return None
    text = str(option.default)
    return (text.lower() if isinstance(option.default, bool) else text)[:_MAX_TEXT_LENGTH]


# --- docstrings ------------------------------------------------------------------------------


def _argument_texts(workload: Workload) -> dict[str, str]:
    """Return the text of each argument in the docstring's section ``Args:``.

    A class may document its options in its own docstring or in that of its ``__init__``.
    """
    docs = [inspect.getdoc(workload) or ""]
    if isinstance(workload, type):
        docs.insert(0, inspect.getdoc(workload.__init__) or "")  # type: ignore[misc]
    texts: dict[str, str] = {}
    for doc in docs:
        section = re.split(r"^\S", doc.partition("Args:\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
        indent = len(section) - len(section.lstrip(" "))
        entry = re.compile(rf"^ {{{indent}}}\*{{0,2}}(\w+)(?: \([^)]*\))?:", re.MULTILINE)
        _, *parts = entry.split(section)
        texts.update(zip(parts[::2], map(_one_line, parts[1::2]), strict=True))
    return texts


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT_LENGTH else f"{line[:_MAX_TEXT_LENGTH]} ..."
