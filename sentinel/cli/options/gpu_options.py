"""Options that select GPUs, the same in every command: ``--gpus``, ``[GPU]...`` and ``--count``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from sentinel.cli.options import value_completion
from sentinel.errors import ConfigError

if TYPE_CHECKING:  # slow to import
    from sentinel.client import Status

_Function = Callable[..., Any]

_HELP = "index, UUID or unique prefix, PCI address; may be repeated."


def selectors(_: click.Context, __: click.Parameter, given: Sequence[str]) -> tuple[str, ...]:
    """Split comma lists and repeated values into unique selectors.

    Raises:
        ConfigError: A selector is empty.
    """
    names = [part.strip() for text in given for part in text.split(",")]
    if not all(names):
        raise ConfigError(f"{','.join(given)!r} has an empty name in it; write a list such as 0,1")
    return tuple(dict.fromkeys(names))


def gpus_flag(name: str = "gpus") -> Callable[[_Function], _Function]:
    """Return the option ``--gpus``, a list of selectors that is empty by default."""
    return click.option(
        "--gpus",
        name,
        metavar="GPU,...",
        multiple=True,
        callback=selectors,
        shell_complete=value_completion.gpus,
        help=f"Only these GPUs: {_HELP}",
    )


def gpu_selection(function: _Function) -> _Function:
    """Add ``[GPU]...`` and ``--gpus``; pass the selectors of both as ``gpus``."""

    @functools.wraps(function)
    def merged(*, gpus: tuple[str, ...], flagged: tuple[str, ...], **rest: Any) -> Any:
        return function(gpus=tuple(dict.fromkeys((*gpus, *flagged))), **rest)

    argument = click.argument(
        "gpus",
        metavar="[GPU]...",
        nargs=-1,
        callback=selectors,
        shell_complete=value_completion.gpus,
    )
    return argument(gpus_flag("flagged")(merged))


def one_gpu(default: str | None, shown: str) -> Callable[[_Function], _Function]:
    """Return the option ``--gpus`` of a command for one GPU; passes a selector as ``gpu``.

    Args:
        default: The selector if none is given.
        shown: The default for the help text.
    """

    def single(context: click.Context, option: click.Parameter, given: Sequence[str]) -> str | None:
        names = selectors(context, option, given)
        if len(names) > 1 or "all" in {name.lower() for name in names}:
            what = f"--gpus: `{context.command_path}` takes one GPU, not {', '.join(names)}"
            raise ConfigError(what)
        return names[0] if names else default

    return click.option(
        "--gpus",
        "gpu",
        metavar="GPU",
        multiple=True,
        callback=single,
        shell_complete=value_completion.gpus,
        help=f"The GPU: index, UUID or unique prefix, or PCI address.  [default: {shown}]",
    )


#: Adds ``count``: a number of any GPUs.
count_option = click.option(
    "--count", metavar="N", type=click.IntRange(1, 128), help="This many GPUs, whichever are free."
)


def chosen(count: int | None, gpus: tuple[str, ...]) -> int | tuple[str, ...]:
    """Return the count or the selectors.

    Raises:
        ConfigError: Neither or both were given.
    """
    if (count is None) == (not gpus):
        raise ConfigError(
            "give the number of GPUs, or their names",
            "Either --count 2, or --gpus 0,GPU-952937bc.",
        )
    return gpus if count is None else count


def only(status: Status, gpus: Sequence[str]) -> Status:
    """Return the status of the selected GPUs, with their reservations, allocations and sessions.

    Args:
        status: The status of all GPUs.
        gpus: Selectors; an empty sequence selects every GPU.

    Raises:
        NoSuchGpuError: A selector matches no GPU, or several.
    """
    if not gpus:
        return status
    raw = only_json(status.json, gpus)
    uuids = {one["uuid"] for one in raw["gpus"]}
    return replace(
        status,
        gpus=tuple(gpu for gpu in status.gpus if gpu.uuid in uuids),
        reservations=tuple(
            reservation
            for reservation in status.reservations
            if uuids.intersection(reservation.gpus)
        ),
        allocations=tuple(
            allocation for allocation in status.allocations if allocation.gpu in uuids
        ),
        sessions=tuple(session for session in status.sessions if uuids.intersection(session.gpus)),
        json=raw,
    )


def only_json(status: Mapping[str, Any], gpus: Sequence[str]) -> dict[str, Any]:
    """Return the JSON of a status without other GPUs; see :func:`only`.

    Raises:
        NoSuchGpuError: A selector matches no GPU, or several.
    """
    found = dict(status)
    if not gpus:
        return found
    from sentinel.config.gpu_selection import select_gpus  # slow to import
    from sentinel.protocol.gpu import Gpu

    names = [field.name for field in fields(Gpu)]
    known = tuple(Gpu(**{name: one.get(name) for name in names}) for one in status["gpus"])
    uuids = {gpu.uuid for gpu in select_gpus(gpus, known)}
    found["gpus"] = [one for one in status["gpus"] if one.get("uuid") in uuids]
    found["reservations"] = [
        one for one in status.get("reservations", ()) if uuids.intersection(one.get("gpus", ()))
    ]
    found["sessions"] = [
        one for one in status.get("sessions", ()) if uuids.intersection(one.get("gpus", ()))
    ]
    found["allocations"] = [one for one in status.get("allocations", ()) if one.get("gpu") in uuids]
    return found
