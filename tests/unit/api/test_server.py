"""When the API process sends its heartbeats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.api.server import heartbeat_pause


@given(st.floats(0, 1e9))
def test_a_heartbeat_comes_in_time_and_just_before_the_next_views(age_s: float) -> None:
    pause = heartbeat_pause(age_s)
    assert 0.5 <= pause <= 1.5
    before_views = -(age_s + pause) % 1.0
    assert before_views == pytest.approx(0.02, abs=1e-6)


@pytest.mark.parametrize("late_s", [-0.01, 0.0, 0.01])
def test_one_that_was_early_or_late_is_followed_by_one_at_the_next_views(late_s: float) -> None:
    assert heartbeat_pause(0.98 + late_s) == pytest.approx(1.0 - late_s)
