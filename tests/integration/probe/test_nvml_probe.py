"""A probe that reads through the real binding: the effect of errors of one GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from sentinel.protocol.gpu import Reading
from sentinel.protocol.inflight_calls import gpu_of
from sentinel.protocol.probe import ProbeSpec, Unavailable
from tests.harness.fake_nvml import COMPILER, FIRST, NO_COMPILER, SECOND
from tests.harness.probe_harness import ProbeHarness, until
from tests.harness.timing import TIMEOUT_S

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)

#: The codes that concern one GPU, and whether they are final: then no second try is made.
OF_ONE_GPU = {
    **dict.fromkeys((2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 17, 19, 20, 21, 23, 25, 26, 27, 29), False),
    **dict.fromkeys((11, 15, 16, 28), True),
    **dict.fromkeys((999, 4711), False),
}


@pytest.fixture
def probe(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ProbeHarness, Path]]:
    """Return a probe process that read both GPUs, and the driver's file."""
    faults = tmp_path / "faults"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library))
    monkeypatch.setenv("FAKE_NVML", str(faults))
    supervisor = ProbeHarness(ProbeSpec(poll=0.05, watch_interval=0.025))
    try:
        assert [gpu.uuid for gpu in supervisor.inventory().gpus] == [FIRST, SECOND]
        whole = supervisor.reading(lambda r: r.uuid == SECOND and r.fault is None)
        assert (whole.exclusive, whole.mig, whole.processes) == (True, True, ())
        yield supervisor, faults
    finally:
        supervisor.close()


def plant(faults: Path, text: str) -> float:
    """Replace the driver's file at once; return when it was done."""
    draft = faults.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(faults)
    return time.monotonic()


@pytest.mark.parametrize("function", ["memory", "compute"])
def test_no_error_of_one_gpu_stops_reads_of_the_other(
    probe: tuple[ProbeHarness, Path], function: str
) -> None:
    """Each is a fault that names it, ends with its cause, and is of that GPU alone."""
    supervisor, faults = probe
    names = {number: name for name, number in vars(pynvml).items() if "_ERROR_" in name}
    for code, final in OF_ONE_GPU.items():
        planted = plant(faults, f"{function}@{FIRST} {code}")
        fault = supervisor.reading(lambda r, at=planted: r.uuid == FIRST and r.at > at)  # type: ignore[misc]
        name = names.get(code, f"nvml_{code}").removeprefix("NVML_ERROR_").lower()
        assert fault.fault is not None, code
        assert f"({name})" in fault.fault
        assert fault.lost is final, code
        assert (fault.memory, fault.processes) == (None, None)
        for _ in range(2):
            assert supervisor.reading(lambda r: r.uuid == SECOND).fault is None
        mended = plant(faults, "")
        supervisor.reading(
            lambda r, at=mended: r.uuid == FIRST and r.at > at and r.fault is None  # type: ignore[misc]
        )


def test_a_list_that_grew_during_its_copy_is_copied_again(
    probe: tuple[ProbeHarness, Path],
) -> None:
    """Twice is no fault: the next reading has all of them."""
    supervisor, faults = probe
    planted = plant(faults, f"grow 2\npid@{FIRST} 600")
    reading = supervisor.reading(lambda r: r.uuid == FIRST and r.at > planted)
    assert reading.fault is None
    assert reading.processes is not None
    assert [process.pid for process in reading.processes][-1] == 600


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (1, "uninitialized"),
        (9, "driver_not_loaded"),
        (12, "library_not_found"),
        (18, "lib_rm_version_mismatch"),
    ],
)
def test_an_unloaded_driver_ends_the_probe(
    probe: tuple[ProbeHarness, Path], number: int, code: str
) -> None:
    """The probe says what happened and ends with an error, as only a new process can load it."""
    supervisor, faults = probe
    plant(faults, f"memory {number}")
    while isinstance(message := supervisor.next_message(), Reading):
        pass
    assert isinstance(message, Unavailable)
    assert message.code == code
    supervisor.process.join(TIMEOUT_S)
    assert supervisor.process.exitcode == 1


def test_a_gpu_missing_at_the_start_is_read_once_it_appears(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no part of the inventory, but it was known, so it is looked for at every poll."""
    faults = tmp_path / "faults"
    plant(faults, f"gpu {SECOND}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library))
    monkeypatch.setenv("FAKE_NVML", str(faults))
    spec = ProbeSpec(poll=0.05, watch_interval=0.025, known=(FIRST, SECOND))
    supervisor = ProbeHarness(spec)
    try:
        assert [gpu.uuid for gpu in supervisor.inventory().gpus] == [SECOND]
        missing = supervisor.reading(lambda r: r.uuid == FIRST)
        assert missing.lost
        assert missing.fault is not None
        assert "not_found" in missing.fault
        assert supervisor.reading(lambda r: r.uuid == SECOND).fault is None
        both = f"gpu {SECOND}\ngpu {FIRST}"
        plant(faults, both)
        supervisor.reading(lambda r: r.uuid == FIRST and r.fault is None)
        plant(faults, f"{both}\nmemory@{FIRST} hang")
        until(
            lambda: any(
                gpu_of(slot) == 1
                for slot, _, since in supervisor.inflight_calls.outstanding()
                if time.monotonic() - since > 0.2
            )
        )
    finally:
        supervisor.close()
