"""Settings as they were given: short forms for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sentinel.protocol.commands import Given


def given(
    texts: Mapping[str, str], gpu: str | None = None, source: str = "test: "
) -> tuple[Given, ...]:
    """Return settings with these texts by key; the key ends the source."""
    return tuple(
        Given(key=key, text=text, source=f"{source}{key}", gpu=gpu) for key, text in texts.items()
    )


def texts_of(values: Iterable[Given], gpu: str | None = None) -> dict[str, str]:
    """Return the texts by key of the settings for one GPU, or of those for all."""
    return {value.key: value.text for value in values if value.gpu == gpu}


def texts_of_gpus(values: Iterable[Given]) -> dict[str, dict[str, str]]:
    """Return the texts by key of the settings of each selector, in order."""
    found: dict[str, dict[str, str]] = {}
    for value in values:
        if value.gpu is not None:
            found.setdefault(value.gpu, {})[value.key] = value.text
    return found


def shown(body: Any, gpu: str | None = None) -> dict[str, tuple[str, str]]:
    """Return texts and sources by key, of a response about settings."""
    return {
        row["key"]: (row["text"], row["source"]) for row in body["settings"] if row["gpu"] == gpu
    }
