"""A change of settings: what the daemon takes, and what its own file has then. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sentinel.config.build import combine, parse_given
from sentinel.config.gpu_selection import present as named_gpus
from sentinel.config.gpu_selection import select_gpus
from sentinel.config.model import SETTINGS
from sentinel.config.plan import toml_value
from sentinel.config.setting import Scope
from sentinel.config.sources import PER_GPU, in_effect, unknown_setting
from sentinel.config.specs import parse_workload
from sentinel.errors import AccessDeniedError, ConfigError, NoSuchGpuError
from sentinel.protocol.commands import Given
from sentinel.protocol.gpu import Gpu

_BY_KEY = {setting.key: setting for setting in SETTINGS}
#: The settings that are fixed at the start of the daemon.
_FIXED = {setting.key for setting in SETTINGS if setting.scope is Scope.START}
#: What may be a flag or a key in an error; what is quoted is what a client has sent.
_NAME = re.compile(r"(?<!')--[a-z][a-z-]*|\b[a-z_]+(?:\.[a-z_]+)+")
_LEFT_OUT = re.compile(r"Leave (\S+) out for the default")
_HEAD = """\
# Written by `sentinel set --save`. These settings override the configuration file; variables and
# options of the daemon override them. To remove one: sentinel set --save --unset KEY
"""
#: Why a client may not set something.
_TRUSTED = (
    "{what} names code or a file, so only the daemon's own user and root may set it, over the Unix"
    " socket."
)
#: Why a client may not save something: it would be kept over the administrator's file, whose next
#: daemon is to have another value, for example fewer rights of this very client.
_SAVED = (
    "{what} is fixed at the start of the daemon, so only the daemon's own user and root may save"
    " it, over the Unix socket."
)


#: When and why what is saved does not count.
_HIDDEN = "{variable} is set for the daemon, and overrides what is saved of {key}."
_GIVEN = "{flag} at the next start overrides the saved value of {key}."
_NEXT = "{key} takes effect only at a start: use `sentinel restart`."


@dataclass(frozen=True, kw_only=True)
class Present:
    """What a change starts from."""

    #: The settings that the supervisor has accepted; the files may differ.
    given: tuple[Given, ...] = ()
    #: What the configuration file and the variables of the daemon have now.
    file: tuple[Given, ...] = ()
    variables: tuple[Given, ...] = ()
    #: The path of the daemon's own file, and what it has now.
    path: str = ""
    saved: tuple[Given, ...] = ()
    #: The GPUs of the daemon.
    gpus: tuple[Gpu, ...] = ()
    #: The workloads that the client may set; None if it may set everything.
    workloads: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ChangePlan:
    """What follows from a change, if the values are valid."""

    #: The settings of this daemon.
    given: tuple[Given, ...]
    #: What the next daemon reads with the same options.
    next_given: tuple[Given, ...]
    #: The present and the new text of the daemon's own file; None if nothing is saved.
    texts: tuple[str, str] | None = None
    #: When and why what is saved does not count.
    notes: tuple[str, ...] = ()


def plan_change(
    texts: Mapping[str, str | None], gpus: tuple[str, ...], present: Present, *, save: bool
) -> ChangePlan:
    """Plan what a change sets and saves, in addition to earlier ones.

    What is saved is in effect from the daemon's own file. What is fixed at the start stays as this
    daemon began. A variable overrides that file, so it is overridden, too, until it is unset.

    Args:
        texts: The new texts by key; None removes what was given.
        gpus: UUIDs; with none, the change is for all GPUs.
        present: What it starts from.
        save: Whether the daemon's own file keeps it.

    Raises:
        ConfigError: A key is unknown, or a single GPU cannot have it.
        AccessDeniedError: The client may not set or save something.
    """
    check_keys(texts, single=bool(gpus))
    by_flag = [value for value in present.given if value.by_flag]
    check_trusted(texts, present.workloads, by_flag, gpus)
    fixed = [key for key in texts if key in _FIXED]
    indices = {gpu.uuid: gpu.index for gpu in present.gpus}
    if not save:
        return _combined(present, _changed(by_flag, texts, gpus, None, indices), present.saved)
    if fixed and present.workloads is not None:
        raise AccessDeniedError(_SAVED.format(what=fixed[0]))
    variables = {} if gpus else {value.key: value.source for value in present.variables}
    hidden = {key: variables[key] for key in texts if key in variables}
    flags = {key: texts[key] if key in hidden else None for key in texts if key not in fixed}
    saved = _changed(present.saved, texts, gpus, present.path, indices)
    plan = _combined(present, _changed(by_flag, flags, gpus, None, indices), saved)
    given = set() if gpus else {value.key for value in by_flag if value.gpu is None}
    return replace(
        plan,
        texts=(text_of(present.saved), text_of(saved)),
        notes=(
            *(_HIDDEN.format(variable=name, key=key) for key, name in hidden.items()),
            *(
                _GIVEN.format(flag=_source(key, None, None), key=key)
                for key in texts
                if key in given and key not in hidden
            ),
            *(_NEXT.format(key=key) for key in fixed if key not in given or key in hidden),
            *_unknown_gpus(texts.get("gpus"), present.gpus),
        ),
    )


def describe_changes(before: Sequence[Given], after: Sequence[Given], gpus: Iterable[Gpu]) -> str:
    """Describe each setting that differs: from what to what, and the source of that.

    Raises:
        ConfigError: A selector is malformed.
    """
    found: list[str] = []
    for gpu in (None, *gpus):
        old, new = (_of_gpu(given, gpu) for given in (before, after))
        of = "" if gpu is None else f" of GPU {gpu.index}"
        for key in sorted(new.keys() - _FIXED):
            change = f"from {old[key].text or 'none'} to {new[key].text or 'none'}"
            change += f" ({new[key].source})"
            if old[key].text != new[key].text and f"{key} {change}" not in found:
                found.append(f"{key}{of} {change}")
    return "; ".join(found)


def _of_gpu(given: Iterable[Given], gpu: Gpu | None) -> dict[str, Given]:
    """Return the settings of one GPU, or those for all, by key."""
    return {
        value.key: value
        for value in in_effect(given)
        if value.gpu is None
        or (gpu and parse_given(lambda text: named_gpus(text, (gpu,)), value.gpu, value.source))
    }


def renamed(error: ConfigError, changes: Iterable[str], names: Mapping[str, str]) -> ConfigError:
    """Return an error about settings with the names that a client uses, in place of flags.

    Args:
        error: The error.
        changes: The keys that the client changes: one that it leaves out keeps its value.
        names: The client's names by key; the others are the keys.
    """
    known = {key: names.get(key, key) for key in _BY_KEY}
    known |= {setting.flag: known[setting.key] for setting in SETTINGS}
    what, remedy = (
        _NAME.sub(lambda match: known.get(match[0], match[0]), text)
        for text in (error.what, error.remedy)
    )
    left_out = _LEFT_OUT.fullmatch(remedy)
    if left_out is not None and left_out[1] in changes and not names:
        remedy = f"Write {_BY_KEY[left_out[1]].flag.removeprefix('--')}= for the default"
    return ConfigError(what, remedy)


def check_keys(keys: Iterable[str], *, single: bool = False) -> None:
    """Reject unknown keys; ignoring a misspelt setting is worse than an error.

    Args:
        keys: The keys.
        single: Whether they are for single GPUs.

    Raises:
        ConfigError: A key is unknown, or a single GPU cannot have it.
    """
    for key in keys:
        if key not in _BY_KEY:
            raise unknown_setting(f"there is no setting {key!r}", key, SETTINGS)
        if single and _BY_KEY[key].scope is not Scope.GPU:
            raise ConfigError(
                f"{key} cannot be set for single GPUs",
                "`sentinel session start --help-all` lists the settings that can.",
            )


def check_trusted(
    texts: Mapping[str, str | None],
    workloads: tuple[str, ...] | None,
    given: Iterable[Given] = (),
    gpus: tuple[str, ...] = (),
) -> None:
    """Reject what a client may not set that may not run code as this user.

    Args:
        texts: The new texts by key; None removes one.
        workloads: The workloads that the client may set; None if it may set everything.
        given: The present values, which may stay.
        gpus: UUIDs; with none, the texts are for all GPUs.

    Raises:
        AccessDeniedError: A new value names code or a file.
    """
    present = {(value.gpu, value.key, value.text) for value in given}
    for key, text in texts.items():
        is_new = any((gpu, key, text) not in present for gpu in gpus or (None,))
        if text is None or not is_new or workloads is None or not _BY_KEY[key].form.trusted:
            continue
        if _BY_KEY[key].field != "workload":
            raise AccessDeniedError(_TRUSTED.format(what=key))
        check_listed(text, key, workloads)


def check_listed(text: str, what: str, workloads: tuple[str, ...] | None) -> None:
    """Reject a workload that the administrator has not listed; ``what`` names it.

    Raises:
        AccessDeniedError: The client may not set it.
    """
    if workloads is not None and parse_workload(text)[0] not in workloads:
        others = f" Other clients may set {', '.join(workloads) or 'none'} (--access-workloads)."
        raise AccessDeniedError(_TRUSTED.format(what=what) + others)


def text_of(saved: Iterable[Given]) -> str:
    """Return the text of a file with these settings."""
    values = sorted(saved, key=lambda value: value.gpu is not None or "." in value.key)
    lines = file_lines(values, lambda value, name: f"{name} = {toml_value(value.text)}")
    return "\n".join([_HEAD, *lines, ""])


def file_lines(values: Iterable[Given], line: Callable[[Given, str], str]) -> Iterator[str]:
    """Yield the lines of a file with these settings, those without a table first if they come so.

    Args:
        values: The settings.
        line: Writes one of them, with its name in its table.
    """
    tables: dict[str, list[str]] = {}
    for value in values:
        table, _, name = value.key.rpartition(".")
        gpu = f"{PER_GPU}.{toml_value(value.gpu)}" if value.gpu else ""
        path = ".".join(filter(None, [gpu, table]))
        tables.setdefault(path, []).append(line(value, name))
    for table, lines in tables.items():
        yield from ("", f"[{table}]") if table else ()
        yield from lines


def _combined(present: Present, flags: Iterable[Given], saved: Iterable[Given]) -> ChangePlan:
    """Combine all sources, for this daemon and for the next one."""
    flags, saved = tuple(flags), tuple(saved)
    began = (
        value
        for value in present.given
        if value.key in _FIXED and value.source == _source(value.key, None, present.path)
    )
    of_this_run = (*(value for value in saved if value.key not in _FIXED), *began)
    return ChangePlan(
        given=combine(present.file, of_this_run, present.variables, flags),
        next_given=combine(present.file, saved, present.variables, flags),
    )


def _changed(
    given: Iterable[Given],
    texts: Mapping[str, str | None],
    gpus: tuple[str, ...],
    path: str | None,
    indices: Mapping[str, int],
) -> tuple[Given, ...]:
    """Change values of a source: a file, or flags and clients if the path is None.

    The values of single GPUs that change are the last ones then.
    """
    values = list(given)
    for gpu in gpus or (None,):
        own = [value for value in values if value.gpu == gpu and value.key not in texts]
        own += [
            Given(key=key, text=text, source=_source(key, gpu, path, indices), gpu=gpu)
            for key, text in texts.items()
            if text is not None
        ]
        values = [*(value for value in values if value.gpu != gpu), *own]
    return tuple(values)


def _source(
    key: str, gpu: str | None, path: str | None, indices: Mapping[str, int] | None = None
) -> str:
    """Describe where a value is given: in a file, or by a flag or client if the path is None."""
    if path is not None:
        return f"{path}: {key}" if gpu is None else f"{path}: {PER_GPU}.{gpu}.{key}"
    flag = _BY_KEY[key].flag
    return flag if gpu is None else f"{flag} for GPU {(indices or {}).get(gpu, gpu)}"


def _unknown_gpus(selector: str | None, gpus: tuple[Gpu, ...]) -> Iterator[str]:
    """Note that the GPUs that are saved are not the daemon's; the host may have more."""
    try:
        select_gpus([selector] if selector else [], gpus)
    except NoSuchGpuError as error:
        why = "if the host has none either, the next start fails"
        yield f"gpus: {error.what} among the daemon's; {why}."
