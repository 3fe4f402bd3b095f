"""Which names are offered for an unknown one: typos, never a name of another meaning."""

from __future__ import annotations

import pytest

from sentinel.config.model import SETTINGS
from sentinel.config.sources import nearest

FLAGS = [setting.flag for setting in SETTINGS]
KEYS = [setting.key for setting in SETTINGS]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("--wokload", ["--workload"]),
        ("--memry", ["--memory"]),
        ("--chunks", ["--chunk"]),
        ("--idle-wiat", ["--idle-wait"]),
        ("--temp-critcal-from", ["--temp-critical-from"]),
        ("--tmp-critical-from", ["--temp-critical-from"]),
    ],
)
def test_a_typo_has_the_name_that_was_meant(name: str, found: list[str]) -> None:
    assert nearest(name, FLAGS) == found


@pytest.mark.parametrize(
    "name",
    [
        "--wait",  # not --idle-wait, which is about GPUs
        "--interval",  # not --watch-interval
        "--limit",
        "--until-memory",
        "--memory-limit",
        "--refresh-minutes",
    ],
)
def test_a_name_of_another_meaning_is_not_offered(name: str) -> None:
    assert nearest(name, [*FLAGS, "--list", "--help"]) == []


def test_only_names_of_the_same_family_are_offered() -> None:
    assert nearest("--memory-critcal-from", FLAGS) == ["--memory-critical-from"]
    assert nearest("throttle.temp_nrmal_from", KEYS) == ["throttle.temp_normal_from"]
    assert nearest("notify.memory", ["memory.notify", "notify.memo", "notify.every"]) == [
        "notify.memo"
    ]
    assert nearest("name", []) == []
