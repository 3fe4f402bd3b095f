"""Group equal settings of single GPUs for a message: those of a hundred GPUs are often the same.

A message has at most 64 KiB. The sources of settings name the GPU, so in a group they have
placeholders for its selector and for the beginning of that.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from sentinel.protocol.commands import GivenOverride, GivenSetting, OverrideGroup

#: Characters for private use, which no path and no key has.
_SELECTOR, _BEGINNING = "\ue000", "\ue001"
#: The length of the beginning of a UUID in a source: `GPU-` and eight digits.
UUID_LENGTH = 12


def group_overrides(overrides: Iterable[GivenOverride]) -> tuple[OverrideGroup, ...]:
    """Group successive overrides that differ in their selector only; their order is kept."""
    return tuple(
        OverrideGroup(selectors=tuple(one.selector for one in group), source=source, given=given)
        for (source, given), members in groupby(overrides, key=_form)
        for group in [list(members)]
    )


def ungroup_overrides(groups: Iterable[OverrideGroup]) -> tuple[GivenOverride, ...]:
    """Return the overrides of groups, as they were before."""
    return tuple(
        GivenOverride(
            selector=selector,
            source=_filled(group.source, selector),
            given=tuple(
                GivenSetting(key=one.key, text=one.text, source=_filled(one.source, selector))
                for one in group.given
            ),
        )
        for group in groups
        for selector in group.selectors
    )


def _form(override: GivenOverride) -> tuple[str, tuple[GivenSetting, ...]]:
    """Return the source and the settings without what names the GPU."""
    selector = override.selector
    given = tuple(
        GivenSetting(key=one.key, text=one.text, source=_emptied(one.source, selector))
        for one in override.given
    )
    return _emptied(override.source, selector), given


def _emptied(source: str, selector: str) -> str:
    source = source.replace(selector, _SELECTOR)
    if len(selector) > UUID_LENGTH:
        source = source.replace(selector[:UUID_LENGTH], _BEGINNING)
    return source


def _filled(source: str, selector: str) -> str:
    return source.replace(_SELECTOR, selector).replace(_BEGINNING, selector[:UUID_LENGTH])
