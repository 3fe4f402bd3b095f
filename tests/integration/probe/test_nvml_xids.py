"""XIDs of the real binding over a fake libnvidia-ml, as the probe posts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel.protocol.codec import encode
from sentinel.protocol.probe import ProbeSpec, Watch, XidReport, XidsWatched
from tests.harness.fake_nvml import COMPILER, FIRST, NO_COMPILER, SECOND, build, shared_folder
from tests.harness.probe_harness import ProbeHarness

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)

Start = Callable[..., ProbeHarness]


@pytest.fixture
def start(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_probe: Start
) -> Start:
    """Return a function that starts a probe of both GPUs, with faults of the driver."""

    def start_one(*lines: str, library: Path = nvml_library) -> ProbeHarness:
        inject(tmp_path, *lines)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
        monkeypatch.setenv("FAKE_NVML", str(tmp_path / "faults"))
        probe = start_probe(ProbeSpec(poll=0.05, watch_interval=0.025))
        probe.inventory()
        probe.channel.send(encode(Watch(gpus=(FIRST, SECOND), held=())))
        return probe

    return start_one


def inject(folder: Path, *lines: str) -> None:
    """Replace the control file atomically."""
    draft = folder / "draft"
    draft.write_text("\n".join([*lines, ""]))
    draft.replace(folder / "faults")


def watched(probe: ProbeHarness) -> set[str]:
    """Wait for the next message of the watched GPUs."""
    while not isinstance(message := probe.xid_message(), XidsWatched):
        pass
    return {gpu.uuid for gpu in message.gpus}


def report(probe: ProbeHarness) -> XidReport:
    """Wait for the next XID."""
    while not isinstance(message := probe.xid_message(), XidReport):
        pass
    return message


def test_an_xid_is_posted_with_its_gpu(start: Start, tmp_path: Path) -> None:
    """A repeat is not posted again at once, another number is."""
    probe = start()
    assert watched(probe) == {FIRST, SECOND}
    inject(tmp_path, f"xid@{SECOND} 79", f"xid@{SECOND} 79", f"xid@{FIRST} 48")
    found = {(one.uuid, one.number, one.repeats) for one in (report(probe), report(probe))}
    assert found == {(SECOND, 79, 0), (FIRST, 48, 0)}


@pytest.mark.parametrize("fault", [f"types@{FIRST} 0x97", f"types_of@{FIRST} 3"])
def test_a_gpu_without_events_is_no_fault(start: Start, fault: str) -> None:
    probe = start(fault, f"xid@{FIRST} 79", f"xid@{SECOND} 48")
    assert watched(probe) == {SECOND}
    assert report(probe).uuid == SECOND
    assert probe.reading(lambda reading: reading.uuid == FIRST).fault is None


def test_a_gpu_that_cannot_be_registered_costs_only_itself(start: Start) -> None:
    probe = start(f"register@{FIRST} 15", f"xid@{SECOND} 48")
    assert watched(probe) == {SECOND}
    assert report(probe).uuid == SECOND


@pytest.mark.parametrize(
    "fault", ["set hang", f"types_of@{FIRST} hang", f"register@{FIRST} hang", "wait hang"]
)
def test_a_call_for_events_that_hangs_costs_no_reading(start: Start, fault: str) -> None:
    """The supervisor sees no call in flight, so it does not replace the probe either."""
    probe = start(fault)
    for _ in range(3):
        for uuid in (FIRST, SECOND):
            assert probe.reading(lambda reading, of=uuid: reading.uuid == of).fault is None  # type: ignore[misc]
    assert not [call for _, call in probe.announced() if "event" in call or "xid" in call]
    assert len([xid for xid in probe.of_xids if isinstance(xid, XidsWatched)]) <= 1


@pytest.mark.long
def test_a_lost_gpu_does_not_end_the_watch_of_the_others(start: Start, tmp_path: Path) -> None:
    """Every wait fails while the lost GPU is in the set, and it cannot be registered again."""
    probe = start()
    assert watched(probe) == {FIRST, SECOND}
    inject(tmp_path, f"lost@{FIRST} 15", f"register@{FIRST} 15")
    while watched(probe) != {SECOND}:
        pass
    inject(tmp_path, f"lost@{FIRST} 15", f"register@{FIRST} 15", f"xid@{SECOND} 63")
    assert (one := report(probe)).uuid == SECOND
    assert one.number == 63


@pytest.mark.long
def test_a_driver_without_events_is_read_like_any_other(
    start: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Drivers before 450 lack the wait; it is never said that their XIDs are watched."""
    probe = start(library=build(shared_folder(tmp_path_factory), "-DOLD"))
    for _ in range(20):
        assert probe.reading(lambda reading: reading.uuid == FIRST).fault is None
    assert not probe.of_xids
