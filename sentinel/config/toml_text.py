"""Parse TOML that others wrote, in bounded time. Pure."""

from __future__ import annotations

import codecs
import re
import tomllib
from typing import Any

from sentinel.errors import ConfigError

#: The most parts of a dotted key, and the most tables and lists within each other. No file of ours
#: has more than four. tomllib takes quadratic time for a long key: 12 s for one of 20,000 parts.
MAX_DEPTH = 16

_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
#: A longer key. A text in quotes may look like one, and is refused as well. The characters before
#: its first part keep the search linear.
_LONG_KEY = re.compile(rf"(?<![^\s\[{{,.]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_DEPTH}}}")
#: What TOML asks a program to read. tomllib reads more, and Python refuses to print some of it.
_INTEGERS = range(-(2**63), 2**63)


def decode_toml(data: bytes, source: str) -> str:
    """Decode a TOML document.

    Args:
        data: The document.
        source: Its origin, for errors.

    Raises:
        ConfigError: It is not UTF-8 text.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        why = str(error)
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            why = "it begins with the mark of UTF-16"
        raise ConfigError(f"{source}: is not UTF-8 text: {why}", "Save it as UTF-8.") from error


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Parse a TOML document.

    Args:
        text: The document; the caller limits its size.
        source: Its origin, for errors.

    Raises:
        ConfigError: It is not TOML, has a key of more than MAX_DEPTH parts, nests tables or lists
            deeper than that, or has an integer of more than 64 bits.
    """
    text = text.removeprefix("\ufeff")  # a byte order mark, which some editors write
    if _LONG_KEY.search(text):
        raise ConfigError(f"{source}: a key has more than {MAX_DEPTH} parts")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not TOML: {error}") from error
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError:  # Python's limit of digits
        raise _too_large(source) from None
    containers: list[Any] = [table]
    for _ in range(MAX_DEPTH):
        values = [
            value
            for container in containers
            for value in (container.values() if isinstance(container, dict) else container)
        ]
        if any(isinstance(value, int) and value not in _INTEGERS for value in values):
            raise _too_large(source)
        containers = [value for value in values if isinstance(value, dict | list)]
    if containers:
        raise _too_deep(source)
    return table


def _too_deep(source: str) -> ConfigError:
    what = f"{source}: its tables or lists are nested too deeply; allowed are {MAX_DEPTH} levels"
    return ConfigError(what)


def _too_large(source: str) -> ConfigError:
    return ConfigError(f"{source}: it has an integer of more than 64 bits")
