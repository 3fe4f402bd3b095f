"""The duty cycle keeps a share of the time in windows, for quanta of any length."""

from __future__ import annotations

import math
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.stressor.context import WINDOW_S, DutyCycle


class Device:
    """A device and a clock, paced as in a workload context."""

    def __init__(self, *quanta: float) -> None:
        self.now = self.busy_until = 50.0
        self.worked = 0.0
        self.quanta = cycle(quanta)
        self.duty_cycle = DutyCycle(0.02)
        self.in_flight: list[float] = []
        self.rests: list[float] = []

    def pace(self, share: float) -> None:
        quantum = next(self.quanta)
        self.busy_until = max(self.busy_until, self.now) + quantum
        self.worked += quantum
        self.in_flight.append(self.busy_until)
        self.settle(1)
        self.duty_cycle.set_share(share, self.now)
        if self.duty_cycle.is_spent(self.now):
            self.settle(0)
            self.duty_cycle.pause(self.now)
        wait = self.duty_cycle.rest_s(self.now)
        self.rests.append(wait)
        self.now += wait
        self.duty_cycle.resume(self.now)

    def settle(self, remaining: int) -> None:
        while len(self.in_flight) > remaining:
            self.now = max(self.now, self.in_flight.pop(0))


@given(
    share=st.floats(0.01, 0.99),
    quanta=st.lists(st.floats(0.001, 0.05), min_size=1, max_size=3),
)
@settings(deadline=None)  # an example may take long on a busy host
def test_the_mean_equals_the_share_for_any_quanta(share: float, quanta: list[float]) -> None:
    device = Device(*quanta)
    device.duty_cycle.resume(device.now)
    device.pace(share)
    began, worked = device.now, device.worked
    while device.now < began + 100:
        device.pace(share)
    # the remaining error is at most some windows
    assert (device.worked - worked) / (device.now - began) == pytest.approx(share, abs=0.004)


def test_at_full_load_it_never_rests_and_a_quantum_is_always_queued() -> None:
    device = Device(0.02)
    device.duty_cycle.resume(device.now)
    for _ in range(100):
        device.pace(1.0)
        assert len(device.in_flight) == 1
    assert not any(device.rests)


def test_a_share_of_one_half_is_half_of_each_window() -> None:
    device = Device(0.01)
    device.duty_cycle.resume(device.now)
    device.pace(1.0)
    began = device.now
    while device.now < began + 5:
        device.pace(0.5)
    longest = max(device.rests)
    assert 0.03 < longest <= WINDOW_S
    assert sum(rest > 0 for rest in device.rests) == pytest.approx(50, abs=3)


def test_a_share_of_zero_rests_until_the_share_changes() -> None:
    duty_cycle = DutyCycle(0.02)
    duty_cycle.resume(0.0)
    duty_cycle.set_share(0.0, 0.1)
    assert duty_cycle.is_spent(0.1)
    duty_cycle.pause(0.12)
    assert duty_cycle.rest_s(0.12) == math.inf
    assert duty_cycle.rest_s(5.0) == math.inf
    duty_cycle.set_share(0.5, 5.0)
    assert duty_cycle.rest_s(5.0) == 0.0
    duty_cycle.resume(5.0)
    duty_cycle.set_share(1.0, 5.01)
    assert duty_cycle.rest_s(5.01) == 0.0
    assert not duty_cycle.is_spent(6.0)


def test_a_debt_is_forgotten_with_the_share_that_made_it() -> None:
    duty_cycle = DutyCycle(0.02)
    duty_cycle.resume(0.0)
    duty_cycle.set_share(0.05, 0.0)
    duty_cycle.is_spent(0.0)
    duty_cycle.pause(0.05)
    assert duty_cycle.rest_s(0.05) > WINDOW_S
    duty_cycle.set_share(0.06, 0.05)
    assert duty_cycle.rest_s(0.05) == 0.0


def test_unused_time_is_not_accumulated() -> None:
    duty_cycle = DutyCycle(0.02)
    duty_cycle.resume(0.0)
    duty_cycle.set_share(0.5, 0.0)
    duty_cycle.pause(0.001)
    assert duty_cycle.rest_s(60.0) == 0.0, "its workload rested for a minute"
    duty_cycle.resume(60.0)
    assert not duty_cycle.is_spent(60.05)
    assert duty_cycle.is_spent(60.0 + 2 * 0.5 * WINDOW_S)


def test_a_debt_after_a_stopped_host_is_limited() -> None:
    duty_cycle = DutyCycle(0.02)
    duty_cycle.resume(0.0)
    duty_cycle.set_share(0.5, 0.0)
    duty_cycle.is_spent(0.0)
    duty_cycle.pause(3600.0)
    assert duty_cycle.rest_s(3600.0) <= 2.5
