"""Which readings clients of the GPU Management System get while they stop and start monitoring."""

from __future__ import annotations

from sentinel.api.routes.compat_schemas import Monitoring


def test_readings_of_a_pause_are_left_out() -> None:
    times = iter((10.0, 20.0))
    one = Monitoring(lambda: next(times))
    assert one.includes(5.0)
    one.stop()
    one.stop()  # has no effect
    assert [one.includes(at) for at in (9.0, 10.0, 20.0)] == [True, False, False]
    one.start()
    one.start()
    assert [one.includes(at) for at in (9.0, 10.0, 19.0, 20.0)] == [True, False, False, True]
