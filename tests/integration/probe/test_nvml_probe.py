"""A probe that reads through the real binding: the effect of errors of one GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from sentinel.errors import ChildExitCode
from sentinel.protocol.gpu import Reading
from sentinel.protocol.probe import ProbeSpec, Unavailable
from sentinel.protocol.shared_memory import gpu_of
from tests.harness.fake_nvml import FIRST, NEEDS_COMPILER, SECOND
from tests.harness.narrowing import not_none
from tests.harness.parameters import mostly_long
from tests.harness.probe_harness import ProbeHarness
from tests.harness.sentinel_process import eventually

pytestmark = NEEDS_COMPILER

#: The codes of errors of one GPU; whether each is final, so that the call is not repeated.
OF_ONE_GPU = {
    **dict.fromkeys((2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 17, 19, 20, 21, 23, 25, 26, 27, 29), False),
    **dict.fromkeys((11, 15, 16, 28), True),
    **dict.fromkeys((999, 4711), False),
}


Start = Callable[..., ProbeHarness]


@pytest.fixture
def faults(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Load the fake driver in probes; return its control file."""
    faults = tmp_path / "faults"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library))
    monkeypatch.setenv("FAKE_NVML", str(faults))
    return faults


@pytest.fixture
def probe(faults: Path, start_probe: Start) -> ProbeHarness:
    """Start a probe, and wait until it has read both GPUs."""
    probe = start_probe(ProbeSpec(poll=0.05, watch_interval=0.025))
    assert [gpu.uuid for gpu in probe.inventory().gpus] == [FIRST, SECOND]
    complete = probe.reading(lambda r: r.uuid == SECOND and r.fault is None)
    assert (complete.exclusive, complete.mig, complete.processes) == (True, True, ())
    return probe


def inject(faults: Path, text: str) -> float:
    """Replace the control file atomically; return the time."""
    draft = faults.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(faults)
    return time.monotonic()


@pytest.mark.parametrize("function", ["memory", pytest.param("compute", marks=pytest.mark.long)])
def test_no_error_of_one_gpu_stops_reads_of_the_other(
    probe: ProbeHarness, faults: Path, function: str
) -> None:
    """Each error is a named fault of that GPU alone, and ends with its cause."""
    names = {number: name for name, number in vars(pynvml).items() if "_ERROR_" in name}
    for code, final in OF_ONE_GPU.items():
        injected_at = inject(faults, f"{function}@{FIRST} {code}")
        fault = probe.reading(lambda r, at=injected_at: r.uuid == FIRST and r.at > at)  # type: ignore[misc]
        name = names.get(code, f"nvml_{code}").removeprefix("NVML_ERROR_").lower()
        assert fault.fault is not None, code
        assert f"({name})" in fault.fault
        assert fault.lost is final, code
        assert (fault.memory, fault.processes) == (None, None)
        for _ in range(2):
            assert probe.reading(lambda r: r.uuid == SECOND).fault is None
        cleared_at = inject(faults, "")
        probe.reading(
            lambda r, at=cleared_at: r.uuid == FIRST and r.at > at and r.fault is None  # type: ignore[misc]
        )


def test_a_list_that_grew_during_its_copy_is_copied_again(
    probe: ProbeHarness,
    faults: Path,
) -> None:
    """Two repetitions are no fault, and the reading has all processes."""
    injected_at = inject(faults, f"grow 2\npid@{FIRST} 600")
    reading = probe.reading(lambda r: r.uuid == FIRST and r.at > injected_at)
    assert reading.fault is None
    assert [process.pid for process in not_none(reading.processes)][-1] == 600


@mostly_long(
    "number, code",
    [
        (1, "uninitialized"),
        (9, "driver_not_loaded"),
        (12, "library_not_found"),
        (18, "lib_rm_version_mismatch"),
    ],
)
def test_an_unloaded_driver_ends_the_probe(
    probe: ProbeHarness, faults: Path, number: int, code: str
) -> None:
    """The probe reports the error and gives up, as only a new process can load the driver."""
    inject(faults, f"memory {number}")
    while isinstance(message := probe.next_message(), Reading):
        pass
    assert isinstance(message, Unavailable)
    assert message.code == code
    assert probe.wait_for_end() == ChildExitCode.FAILED


def test_a_gpu_missing_at_the_start_is_read_once_it_appears(
    faults: Path, start_probe: Start
) -> None:
    """The GPU is not in the inventory, but is known, so every poll looks it up."""
    inject(faults, f"gpu {SECOND}")
    spec = ProbeSpec(poll=0.05, watch_interval=0.025, known=(FIRST, SECOND))
    probe = start_probe(spec)
    assert [gpu.uuid for gpu in probe.inventory().gpus] == [SECOND]
    missing = probe.reading(lambda r: r.uuid == FIRST)
    assert missing.lost
    assert "not_found" in not_none(missing.fault)
    assert probe.reading(lambda r: r.uuid == SECOND).fault is None
    both = f"gpu {SECOND}\ngpu {FIRST}"
    inject(faults, both)
    probe.reading(lambda r: r.uuid == FIRST and r.fault is None)
    inject(faults, f"{both}\nmemory@{FIRST} hang")
    eventually(
        lambda: any(
            gpu_of(slot) == 1
            for slot, _, since in probe.inflight_calls.outstanding()
            if time.monotonic() - since > 0.2
        )
    )
