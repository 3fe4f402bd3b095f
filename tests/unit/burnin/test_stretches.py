"""Moments within stretches are those that a search through all stretches finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sentinel.burnin.records.stretches import Stretches

TIMES = st.integers(0, 30)


@given(st.lists(st.tuples(TIMES, TIMES)), TIMES)
def test_a_moment_is_within_if_any_stretch_has_it(
    pairs: list[tuple[int, int]], moment: int
) -> None:
    stretches = [(float(min(pair)), float(max(pair))) for pair in pairs]
    expected = any(first <= moment <= last for first, last in stretches)
    assert (moment in Stretches(stretches)) == expected
