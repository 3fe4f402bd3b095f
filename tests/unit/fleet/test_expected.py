"""What a daemon's status says of an expectation, and what it cannot say."""

from __future__ import annotations

import pytest

from sentinel.config.expectation import parse_expectation
from sentinel.fleet.drain import state_of_node
from sentinel.fleet.expected import NODE, differences, not_in_status, subject_of
from sentinel.protocol.api_types import GpuStatus, GpuTelemetry
from tests.harness.gpu_views import gpu_status


def gpu(index: int, telemetry: GpuTelemetry | None = None) -> GpuStatus:
    return gpu_status(index, serial=str(index), memory_total=2**30, telemetry=telemetry)


GPUS = (gpu(0, GpuTelemetry(power_limit_w=500.0)), gpu(1, GpuTelemetry(power_limit_w=700.0)))


@pytest.mark.parametrize(
    ("text", "subject", "difference"),
    [
        ("[all]\npower_limit_w = 700", subject_of("GPU-0"), "power_limit_w is 500, expected 700"),
        ("[all]\nmemory_mib = 1024\nvbios = 'A'", subject_of("GPU-0"), None),
        ('serials = ["0", "2"]', NODE, "node.expected: serial of GPU 1 is 1"),
        ('serials = ["0", "1"]', NODE, None),
        ("gpus = 3", NODE, "node.gpus: 2 of 3 are there"),
    ],
)
def test_what_the_status_has_is_compared(text: str, subject: str, difference: str | None) -> None:
    found = differences(parse_expectation(text, "x"), GPUS, "570", is_whole=True)[subject]
    assert found is None if difference is None else difference in str(found)


def test_what_is_not_known_now_is_not_as_expected() -> None:
    """A node that was drained for its power limit stays so while the limit cannot be read."""
    wanted = parse_expectation("[all]\npower_limit_w = 700", "x")
    assert subject_of("GPU-0") not in differences(wanted, (gpu(0),), "570", is_whole=False)


def test_a_gpu_that_is_not_as_expected_is_not_without_a_fault() -> None:
    wanted = parse_expectation("[all]\npower_limit_w = 700", "x")
    found = differences(wanted, GPUS, "570", is_whole=True)
    unlike = {key: text for key, text in found.items() if text}
    assert state_of_node(GPUS, unlike).endswith("expected 700 on GPU 0 (GPU-0); no fault on 1 GPU")


def test_what_the_status_has_not_is_named() -> None:
    text = '[all]\ndriver = "570"\necc = true\n[model.GPU]\nvbios = "A"\n'
    assert not_in_status(parse_expectation(text, "x")) == ["ecc", "vbios"]
    assert not_in_status(parse_expectation(f'{text}[[infiniband]]\nport = "a/1"', "x"))[2:] == [
        "infiniband"
    ]
