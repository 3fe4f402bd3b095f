"""Describe the invalid fields that clients of the API and agents send, in the words of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sentinel.config.sources import nearest

#: Invalid fields that one error lists.
_MAX_LISTED = 5
#: The most characters of a wrong text that are repeated.
_MAX_LENGTH = 80

#: What is wrong with a value, by pydantic's type of the error; the rest has pydantic's own words.
_WRONG = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "is not a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "is not a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "is not true or false"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "is not an object"),
    **dict.fromkeys(("enum", "literal_error"), "is not {expected}"),
    "string_type": "is not text",
    "selector_type": "is neither text nor a whole number",
    "list_type": "is not a list",
    "greater_than": "is not above {gt:.15g}",
    "greater_than_equal": "is below {ge:.15g}",
    "less_than_equal": "is above {le:.15g}",
    "string_too_short": "has fewer than {min_length} characters",
    "string_too_long": "has more than {max_length} characters",
    "too_short": "has fewer than {min_length} entries",
    "too_long": "has more than {max_length} entries",
}


def describe_fields(
    errors: Sequence[Mapping[str, Any]], fields: Iterable[str], forms: Mapping[str, str]
) -> str:
    """Describe the invalid fields of a request, by the names that its client has sent.

    Args:
        errors: Those of pydantic; the first part of a location is that of the request.
        fields: The names of all fields.
        forms: What to say of the patterns of texts.
    """
    if any(isinstance(error["input"], bytes) for error in errors):  # it was not parsed
        return "the body needs a header that says that it is JSON: Content-Type: application/json."
    parts = [_describe_field(error, fields, forms) for error in errors[:_MAX_LISTED]]
    text = "; ".join(parts)
    return text if text.endswith("?") else f"{text}."


def shorten(text: str) -> str:
    """Shorten a wrong text that is repeated in an error."""
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}..."


def _describe_field(
    error: Mapping[str, Any], fields: Iterable[str], forms: Mapping[str, str]
) -> str:
    part, *place = error["loc"]
    name, *keys = place[:1] if part == "query" else place or [part]  # a query has no list to see
    kind, context = error["type"], error.get("ctx", {})
    if kind == "json_invalid":
        return f"the body is not JSON: {context['error']}"
    where = f"{name}{''.join(f'[{key!r}]' for key in keys)}"
    if kind == "extra_forbidden":
        # A part of the name first: `id` is like `pid`, and stands for `allocation_id`.
        longer = [field for field in fields if field.endswith(f"_{name}")]
        near = (longer or nearest(str(name), fields)) if not keys else []
        return f"{where}: there is no such field{f'; did you mean {near[0]}?' if near else ''}"
    if kind == "missing":
        return f"{where} is missing"
    if kind == "value_error":
        return f"{where}: {context['error']}"
    if context.get("min_length") == 1:
        return f"{where} is empty"
    given = error["input"]
    if isinstance(given, str):
        given = shorten(given)  # in quotes
    shown = json.dumps(given, ensure_ascii=False, default=repr)
    if not isinstance(given, str):
        shown = shorten(shown)
    if kind == "string_pattern_mismatch" and context["pattern"] in forms:
        return f"{where}: {shown} is not allowed; use {forms[context['pattern']]}"
    said = _WRONG.get(kind)
    if kind == "string_type" and name == "gpus" and type(given) is int:
        said = f'is not text; write "{shown}"'
    return f"{where}: {error['msg'] if said is None else f'{shown} {said.format(**context)}'}"
