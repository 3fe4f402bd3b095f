"""Attributes on a JSON object of the API, for programs that cannot afford to decode it.

The response types are some thirty dataclasses: building them costs more than a whole ``status``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

#: The fields that are times, in ISO 8601.
_TIMES = {"since", "until", "last", "at"}


class JsonView:
    """A JSON object with its fields as attributes; a missing one is None, as an unknown one is.

    Args:
        fields: The parsed object. Objects in it become views, and lists become tuples.
    """

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols of Python, such as those of copy
            raise AttributeError(name)
        value = _view(name, self._fields.get(name))
        self.__dict__[name] = value
        return value


def _view(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return JsonView(value)
    if isinstance(value, list):
        return tuple(_view("", one) for one in value)
    if name in _TIMES and isinstance(value, str):
        return datetime.fromisoformat(value)
    return value
