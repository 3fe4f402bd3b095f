"""A refusal names the settings that grant more, and a wait that failed the GPUs by state."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from sentinel.api.access import Peer, why_forbidden
from sentinel.api.snapshots import _describe
from sentinel.config.build import build_config
from sentinel.errors import ConfigError
from sentinel.protocol.commands import Level
from tests.harness.api_harness import used_gpu
from tests.harness.given_settings import given


@pytest.mark.parametrize("needed", [Level.READ, Level.OPERATE, Level.ADMINISTER])
def test_a_rejection_names_settings_that_take_the_needed_level(needed: Level) -> None:
    why = why_forbidden(Peer(via="unix", uid=1001), Level.NONE, needed)
    for flag, key in (("access-users", "access.users"), ("access-group", "access.group")):
        takes = True
        try:
            build_config(given({key: needed.name.lower()}))
        except ConfigError:
            takes = False
        named = f"{flag}=" in why
        # A group is for those who know of it: the one who is refused asks for all users.
        assert named is takes if key == "access.users" else takes or not named, why


def test_a_rejected_token_is_told_which_token_can_have_more() -> None:
    why = why_forbidden(Peer(via="tcp"), Level.READ, Level.OPERATE)
    assert "This token may only look" in why
    assert "the token in the file `token`, and of no other" in why


VIEW = used_gpu(0)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    """Stop the clock, whose seconds the texts have; return its time."""
    at = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: at)
    return at


def test_many_gpus_of_one_state_are_one_part_of_the_text(now: float) -> None:
    stopping = [
        replace(VIEW, index=index, stressor="STOPPING", since=now - 2.1 - index)
        for index in range(8)
    ]
    busy = replace(VIEW, index=9, stressor="STOPPED", occupancy="BUSY", since=1.0, held=None)
    leaked = replace(busy, index=10, leaked=True)
    allocated = replace(busy, index=11, occupancy="IDLE")
    text = _describe([*stopping, busy, leaked, allocated])
    assert text.startswith("GPUs 0-7 (stopping for up to 9.1 s, 8.0 GiB in all), GPU 9 (")
    assert text.endswith("GPU 9 (busy), GPU 10 (memory leaked), GPU 11 (memory allocated)")


def test_one_gpu_has_its_own_time_and_memory(now: float) -> None:
    view = replace(VIEW, stressor="STOPPING", since=now - 61)
    assert _describe([view]) == "GPU 0 (stopping for 1 min 1 s, 1.0 GiB)"
