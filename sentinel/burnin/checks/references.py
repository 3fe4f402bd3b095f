"""Reference rates by GPU model, as data with their sources."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A rate that was measured on one model."""

    #: The workload, with its options.
    workload: str
    #: ``TFLOP/s`` or ``TB/s``.
    unit: str
    median: float
    #: How many runs were measured, each on one GPU.
    n: int
    #: How they were measured.
    state: str
    source: str


def load_references() -> dict[str, tuple[Reference, ...]]:
    """Load the shipped references, by the name of the model."""
    text = resources.files(__package__).joinpath("references.toml").read_text()
    return {
        model: tuple(Reference(**one) for one in entries)
        for model, entries in tomllib.loads(text).items()
    }
