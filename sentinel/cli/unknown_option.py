"""The message for an unknown option: its new name, or the nearest options of the same command."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import click

from sentinel.config.renamed import new_name

#: The least similarity of two names, from 0 to 1, and what the next ones may lack to the best.
_SIMILAR, _AS_SIMILAR = 0.6, 0.1


def explain(name: str, context: click.Context) -> str:
    """Return the message for an option that a command does not have."""
    params = context.command.get_params(context)
    known = [text for one in params for text in (*one.opts, *one.secondary_opts)]
    new = new_name(name, known)
    if new is not None:
        return f"{name} was renamed to {new}"
    shown = [
        text
        for one in params
        if isinstance(one, click.Option) and not one.hidden
        for text in (*one.opts, *one.secondary_opts)
    ]
    what = f"`{context.command_path}` has no option {name}"
    near = nearest(name, shown)
    return f"{what}; did you mean {' or '.join(near)}?" if near else what


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return at most three known options that are about as similar as the most similar one."""

    def similarity(one: str) -> float:
        return difflib.SequenceMatcher(None, name.lstrip("-"), one.lstrip("-")).ratio()

    ranked = sorted(known, key=similarity, reverse=True)[:3]
    least = max(_SIMILAR, similarity(ranked[0]) - _AS_SIMILAR) if ranked else 0.0
    return [one for one in ranked if similarity(one) >= least]
