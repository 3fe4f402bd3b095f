"""What the driver is asked for before a GPU is opened."""

from __future__ import annotations

import os

import pytest

from sentinel.stressor.device import ask_for_few_queues

NAMES = ("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS")


def test_the_driver_creates_one_queue_of_each_kind_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen, other = NAMES
    monkeypatch.setenv(chosen, "4")
    monkeypatch.setenv(other, "")  # so that it is restored
    monkeypatch.delenv(other)
    ask_for_few_queues()
    assert (os.environ[chosen], os.environ[other]) == ("4", "1")
