"""Declare a setting: its key, flag, variable, form, limits and help text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Scope(Enum):
    """Where a setting holds, and when it may change."""

    #: For all GPUs; a reload applies it.
    HOST = auto()
    #: Like HOST, but a single GPU may have its own value.
    GPU = auto()
    #: For all GPUs, from the start of the daemon to its end.
    START = auto()


@dataclass(frozen=True, kw_only=True)
class Form(Generic[T]):
    """How a value is written: its parser, its name in help texts and its limits."""

    #: Converts text to the value, or raises ValueError with the allowed form.
    parse: Callable[[str], T]
    metavar: str
    #: Whether the value is a list, and the flag may be given several times.
    many: bool = False
    #: The smallest and the largest allowed value, as text.
    least: str | None = None
    most: str | None = None
    #: Whether a value names code or a file, which only the daemon's own user and root may set over
    #: the API.
    trusted: bool = False
    #: The allowed words, if they are few.
    words: tuple[str, ...] = ()

    def within(self, least: str, most: str) -> Form[T]:
        """Return this form with limits."""
        return replace(self, least=least, most=most)

    def or_off(self) -> Form[T | None]:
        """Return this form, extended by the word ``off`` for None."""

        def parse_or_off(text: str) -> T | None:
            return None if text.strip() == "off" else self.parse(text)

        metavar = f"{self.metavar}|off"
        return Form(
            parse=parse_or_off,
            metavar=metavar,
            least=self.least,
            most=self.most,
            trusted=self.trusted,
        )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting, as :func:`setting` declares it for a field of Config."""

    #: The dotted key in a configuration file.
    key: str
    #: The name of the field of Config.
    field: str
    flag: str
    help: str
    form: Form[Any]
    #: The default as text; empty if the default has no text.
    default: str
    scope: Scope

    @property
    def variable(self) -> str:
        """The environment variable."""
        return variable_of(self.flag)

    @property
    def limits(self) -> str:
        """The allowed range as text, or an empty string."""
        return f"{self.form.least} to {self.form.most}" if self.form.least else ""


def variable_of(flag: str) -> str:
    """Return the environment variable that belongs to a flag."""
    return "SENTINEL_" + flag.removeprefix("--").replace("-", "_").upper()


def setting(
    text: str,
    form: Form[T],
    default: str = "",
    *,
    key: str = "",
    flag: str = "",
    unset: object = None,
    scope: Scope = Scope.HOST,
) -> T:
    """Declare a field of Config as a setting.

    Args:
        text: The help text.
        form: How the value is written.
        default: The default as text.
        key: The key in a configuration file; the field's name by default.
        flag: The flag; derived from the field's name by default.
        unset: The value of the field if ``default`` is empty.
        scope: Where it holds.
    """
    declared = Setting(
        key=key, field="", flag=flag, help=text, form=form, default=default, scope=scope
    )
    value: Any = form.parse(default) if default else unset
    result: T = field(default=value, metadata={Setting: declared})
    return result


def gpu_setting(text: str, form: Form[T], default: str = "", **options: Any) -> T:
    """Declare a setting that may differ for single GPUs."""
    return setting(text, form, default, scope=Scope.GPU, **options)


def start_setting(text: str, form: Form[T], default: str = "", **options: Any) -> T:
    """Declare a setting that stays as it was at the start of the daemon."""
    return setting(text, form, default, scope=Scope.START, **options)


def declared_settings(config: type) -> tuple[Setting, ...]:
    """Return the settings of a dataclass, in the order of its fields; those of its bases last."""
    found = []
    own = vars(config)["__annotations__"]
    for one in sorted(fields(config), key=lambda one: one.name not in own):
        declared: Setting | None = one.metadata.get(Setting)
        if declared is not None:
            flag = declared.flag or "--" + one.name.replace("_", "-")
            key = declared.key or one.name
            found.append(replace(declared, field=one.name, key=key, flag=flag))
    return tuple(found)
