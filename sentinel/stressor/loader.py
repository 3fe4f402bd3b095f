"""Import torch, and a workload by its name, and read its options; plugin code first runs here.

A workload is a callable that takes a context and its options, or a class that is constructed with
its options and has a ``run`` that takes a context. Its options are read from its signature,
annotations and docstring.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import os
import re
import socket
import sys
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sentinel.config.options import REQUIRED, Option, convert_options, kind_of
from sentinel.config.specs import TARGETS, find_workload
from sentinel.errors import ConfigError, SentinelError, WorkloadError
from sentinel.host.process_setup import InheritedFd, setup_child_process
from sentinel.host.trusted_code import (
    UntrustedCodeError,
    describe_error,
    leave_out_untrusted,
    search_first,
)
from sentinel.host.unprivileged import become
from sentinel.protocol.codec import encode
from sentinel.protocol.counters import WorkloadInfo, WorkloadOption
from sentinel.protocol.shared_memory import InflightCalls
from sentinel.protocol.stressor import Account

#: Describes an error of a plugin, without the lines of this file.
describe = partial(describe_error, importer=__file__)

#: A loaded workload.
Workload = Callable[..., object]

_FUNCTION = "Write it as `def {name}(ctx, *, option=default)`; see docs/guides/workloads.md."
_CLASS = (
    "Give the class an `__init__(self, *, option=default)` and a `run(self, ctx)`; see "
    "docs/guides/workloads.md."
)
#: Stands for the context when a signature is checked.
_CONTEXT = object()

#: The maximum length of a docstring's text and of a default.
_MAX_TEXT_LENGTH = 300

#: What to do about a module that is not found.
_FOLDER = (
    "A module is found if it is installed, in PYTHONPATH of the daemon, or in the folder in which "
    "a command names it. Or name its folder: /FOLDER/module:attribute."
)

_TRUST = (
    "Keep the code where only its user and root can write, or run stressors as the user to whom it"
    " belongs: --stressor-user."
)

#: The name under which the import of torch is announced; that of a workload is its number.
TORCH = "torch"


@dataclass(frozen=True, kw_only=True)
class BoundWorkload:
    """A workload with its options: what runs, and what prepares it on a part of the memory."""

    run: Callable[[Any], object]
    #: None if it has no such part.
    rehearse: Callable[[Any], object] | None = None


def bind(workload: Workload, options: Mapping[str, object]) -> BoundWorkload:
    """Bind the converted options to a workload; a class is constructed with them."""
    if isinstance(workload, type):
        made: Any = workload(**options)
        return BoundWorkload(run=made.run, rehearse=getattr(made, "rehearse", None))
    run: Callable[[Any], object] = partial(_call, workload, options)
    rehearse = getattr(workload, "rehearse", None)
    if rehearse is None:
        return BoundWorkload(run=run)
    arguments = inspect.signature(workload).bind(_CONTEXT, **options)
    arguments.apply_defaults()
    _, *names = arguments.arguments
    every = {name: arguments.arguments[name] for name in names}
    return BoundWorkload(run=run, rehearse=partial(_call, rehearse, every))


def _call(function: Callable[..., object], options: Mapping[str, object], ctx: object) -> object:
    return function(ctx, **options)


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
    line = " ".join(text.split()).replace("``", "`")  # reStructuredText marks code by two
    return line if len(line) <= _MAX_TEXT_LENGTH else f"{line[:_MAX_TEXT_LENGTH]} ..."


def import_torch() -> None:
    """Import torch without its warning about a missing numpy, which Sentinel does not need."""
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch  # noqa: F401 - not before the lease is running


def load_built_in() -> None:
    """Import all built-in workloads."""
    for target in TARGETS.values():
        importlib.import_module(target.partition(":")[0])


def load_workload(name: str, chosen_by: str | None = None) -> Workload:
    """Import the workload called ``name``.

    Args:
        name: Its name, or its ``module:attribute``.
        chosen_by: What named it, for errors; None if a setting did.

    Raises:
        ConfigError: There is no such workload.
        WorkloadError: The import failed, or the object is not callable.
    """
    left_out = leave_out_untrusted()
    shown = f"workload {name}" if chosen_by is None else f"workload {name} of {chosen_by}"
    try:
        found = _find(name)
    except ConfigError:
        raise
    except UntrustedCodeError as error:
        who = "root" if os.getuid() == 0 else f"uid {os.getuid()}"
        raise WorkloadError(f"{who} does not import {shown}: {error}", _TRUST) from error
    except ModuleNotFoundError as error:
        missing = name.partition(":")[0].rpartition("/")[2]
        remedy = _FOLDER if f"{missing}.".startswith(f"{error.name}.") else ""
        if left_out:
            remedy = f"{'; '.join(left_out)}. {_TRUST}"
        what = f"{shown} cannot be imported: {describe(error)}"
        raise WorkloadError(what, remedy) from error
    except AttributeError as error:
        names = vars(error.obj) if isinstance(error.obj, types.ModuleType) else ()
        near = difflib.get_close_matches(str(error.name), names, n=1)
        remedy = f"Did you mean {near[0]}?" if near else ""
        what = f"{shown} cannot be imported: {describe(error)}"
        raise WorkloadError(what, remedy) from error
    except BaseException as error:  # a plugin's import may raise anything, even SystemExit
        raise WorkloadError(f"{shown} cannot be imported: {describe(error)}") from error
    if not callable(found):
        what = f"{shown} is a {type(found).__name__}, which cannot be called"
        raise WorkloadError(what, "Name a function that takes a context, or a class with a `run`.")
    return found


def _find(name: str) -> object:
    """Import what a name means, whatever that is; the import of a plugin may raise anything."""
    target = name if ":" in name else find_workload(name).target
    place, _, attribute = target.partition(":")
    folder, _, module = place.rpartition("/")
    if folder:
        search_first(folder)
    found: object = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether ``error`` means that the device is out of memory; imports no torch.

    A context or a library handle that does not fit is reported as a plain RuntimeError.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    text = str(error) if isinstance(error, RuntimeError) else ""
    return ("CUDA" in text and "out of memory" in text) or "_ALLOC_FAILED" in text


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One workload to describe."""

    number: int
    #: Its name, or its ``module:attribute``.
    target: str
    #: Options to check, as they are given; None checks none, not even whether one is missing.
    options: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class DescribeSpec:
    """What a describing process has to do."""

    wanted: tuple[Wanted, ...]
    #: The user whose stressors are to run them; None is the user of this process.
    account: Account | None = None


def run(spec: DescribeSpec, channel: socket.socket, parent: int, board: InheritedFd) -> None:
    """Describe each workload in a WorkloadInfo; the target of a spawned process.

    Ends by ``os._exit``, so that no exit hook of a plugin can delay it.

    Args:
        spec: The workloads, and the user.
        channel: A socket of whole messages (SOCK_SEQPACKET).
        parent: The PID of the process that reads the channel.
        board: Where each import is announced before it begins.
    """
    code = 1
    try:
        setup_child_process(parent, "sentinel: lists workloads")
        if spec.account is not None:
            become(spec.account, parent)
        channel.settimeout(None)
        calls = InflightCalls.attach(board.detach())
        # Nearly all workloads import torch. Its first import from a cold disk takes a while, which
        # must not count against one of them. If it is missing, each workload reports that itself.
        calls.announce(0, TORCH)
        with contextlib.suppress(Exception):
            import_torch()
        for wanted in spec.wanted:
            calls.announce(0, str(wanted.number))
            channel.sendall(encode(_describe(wanted)))
        code = 0
    finally:
        os._exit(code)


def _describe(wanted: Wanted) -> WorkloadInfo:
    """Import one workload, describe it, and check its options."""
    try:
        workload = load_workload(wanted.target)
        options = list_options(workload)
        if wanted.options is not None:
            bind_options(workload, wanted.options)
        return WorkloadInfo(number=wanted.number, summary=summary(workload), options=options)
    except SentinelError as error:
        parts = (" ".join(part.split()) for part in (error.what, error.remedy) if part)
        return WorkloadInfo(number=wanted.number, error=". ".join(parts))
    except BaseException as error:  # noqa: BLE001 - a plugin's objects may raise anywhere
        return WorkloadInfo(number=wanted.number, error=describe(error))
