"""The workload links: data that arrives wrong is found, in each direction and from each GPU."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sentinel.burnin.checks.check import CheckResult, Status, Thresholds
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.record import Sample
from sentinel.errors import ConfigError, PeersError
from sentinel.protocol.stressor import FindingPlace, LinkMeasured, LinkPart, StressorGroup
from sentinel.stressor import links as module
from sentinel.stressor import numa
from sentinel.stressor import transfers as transfers_module
from sentinel.stressor.links import HostLinks, PeerLinks, links
from sentinel.stressor.numa import Place, places_of, take_on
from sentinel.stressor.start_watch import PREPARATION_BYTES
from sentinel.stressor.transfers import (
    ENVIRONMENT,
    LinkPatterns,
    Peers,
    StoppedError,
    Transfers,
    TransferTimeoutError,
    key_of,
    offset_of,
    repeats_of,
)
from tests.harness.check_evidence import Run
from tests.harness.workload_harness import Workbench, workbench

CPU = torch.device("cpu")
BIT = 1 << 17


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with workbench(tmp_path) as bench:
        yield bench


def stop_after(bench: Workbench, waits: int) -> None:
    """Stop the workload at a wait for the device."""
    left = iter(range(waits))

    def on_wait() -> None:
        if next(left, None) is None:
            bench.stop()

    bench.device.on_wait = on_wait


def test_the_links_of_a_gpu_alone_are_those_to_the_host(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SEND_EVERY_S", 0.0)
    stop_after(bench, 20)
    links(bench.ctx)
    measured = bench.sent(LinkMeasured)
    assert {message.part for message in measured} == {
        LinkPart.TO_DEVICE,
        LinkPart.TO_HOST,
        LinkPart.BOTH,
    }
    assert all(
        message.checked and not message.wrong and message.rate is None for message in measured
    )
    assert bench.done().checks > 0
    assert bench.done().errors == 0


@pytest.mark.parametrize(
    ("inward", "parts"),
    [
        (True, {LinkPart.TO_DEVICE.value, LinkPart.BOTH.value}),
        (False, {LinkPart.TO_HOST.value, LinkPart.BOTH.value}),
    ],
)
def test_a_bit_that_flips_on_the_way_is_found(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, *, inward: bool, parts: set[str]
) -> None:
    host = HostLinks(bench.ctx, Transfers(bench.ctx, 0.0))
    victim = host._inbound if inward else host._local.to_host

    def faulty(target: Tensor, source: Tensor) -> None:
        target.copy_(source)
        if target.data_ptr() == victim.data_ptr():
            target[5] ^= BIT

    monkeypatch.setattr(module, "copy", faulty)
    host.measure_alone(3)
    found = bench.findings()
    assert {finding.detail.split(";")[0] for finding in found} == parts
    for finding in found:
        assert (finding.place, finding.round, finding.count, finding.first) == (
            FindingPlace.LINK,
            3,
            1,
            (5,),
        )
        assert [bit for bit, wrong in enumerate(finding.bits) if wrong] == [17]
        assert finding.reread is True
    assert bench.done().errors == len(found)


def test_data_that_does_not_arrive_is_found(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HostLinks(bench.ctx, Transfers(bench.ctx, 0.0))
    host.measure_alone(1)
    assert not bench.findings()
    monkeypatch.setattr(module, "copy", lambda target, source: None)
    host.measure_alone(2)
    assert len(bench.findings()) == 4


# --- NUMA nodes ------------------------------------------------------------------------------

BDF = "00000000:3B:00.0"
NEAR, FAR = Place(node=0, socket=0), Place(node=1, socket=1)


def host_with(folder: Path, *, nodes: int = 2, own: str = "0") -> Path:
    """Build the sysfs of a host whose last node is the memory of a GPU."""
    texts = {"bus/pci/devices/0000:3b:00.0/numa_node": own}
    for node in range(nodes):
        texts[f"devices/system/node/node{node}/cpulist"] = f"{node * 8}-{node * 8 + 7},{node + 64}"
        texts[f"devices/system/cpu/cpu{node * 8}/topology/physical_package_id"] = f"{node}"
        distances = [10 if other == node else 20 + abs(other - node) for other in range(nodes + 1)]
        texts[f"devices/system/node/node{node}/distance"] = " ".join(map(str, distances))
    listed = f"0-{nodes - 1}"
    texts |= {"devices/system/node/has_cpu": listed, "devices/system/node/has_memory": f"0-{nodes}"}
    texts["devices/system/node/online"] = f"0-{nodes}"
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("host", "near", "far", "why"),
    [
        ({}, NEAR, FAR, ""),
        ({"own": "1"}, FAR, NEAR, ""),
        ({"nodes": 4}, NEAR, Place(node=3, socket=3), ""),
        ({"nodes": 1}, NEAR, None, ""),
        ({"own": "-1"}, None, None, "the host names no NUMA node of this GPU (numa_node -1)"),
        ({"own": "x"}, None, None, "cannot be read: invalid literal"),
    ],
)
def test_the_nodes_near_and_far_are_found(
    tmp_path: Path, host: dict[str, Any], near: Place | None, far: Place | None, why: str
) -> None:
    found = places_of(BDF, host_with(tmp_path, **host))
    assert found[:2] == (near, far)
    assert why in found[2]
    assert bool(found[2]) == bool(why)


@pytest.mark.parametrize("address", ["", "00000000:99:00.0"])
def test_a_gpu_without_an_address_has_no_node(tmp_path: Path, address: str) -> None:
    near, far, why = places_of(address, host_with(tmp_path))
    assert (near, far) == (None, None)
    assert "cannot be read" in why


def test_memory_is_taken_on_this_hosts_own_node_and_the_policy_is_put_back() -> None:
    former = numa._policy()[0]
    memory, why = take_on(0, lambda: torch.empty(2**20, dtype=torch.int64))
    assert memory.numel() == 2**20
    # A container may forbid the system call.
    assert why in {None, os.strerror(errno.EPERM), os.strerror(errno.ENOSYS)}
    if why is None:
        assert numa._node_of(memory.data_ptr()) == 0
        assert numa._policy()[0] == former


@pytest.mark.parametrize(
    ("error", "found", "why"),
    [
        (errno.EPERM, 1, os.strerror(errno.EPERM)),
        (None, 0, "the kernel took it from NUMA node 0"),
        (None, 1, None),
        (None, None, None),
    ],
)
def test_memory_that_cannot_be_bound_is_taken_anyway_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, error: int | None, found: int | None, why: str | None
) -> None:
    policies: list[int] = []

    def set_policy(mode: int, mask: object) -> None:
        if error is not None:
            raise OSError(error, "")
        policies.append(mode)

    monkeypatch.setattr(numa, "_policy", lambda: (0, None))
    monkeypatch.setattr(numa, "_set_policy", set_policy)
    monkeypatch.setattr(numa, "_node_of", lambda address: found)
    memory, reason = take_on(1, lambda: torch.ones(3))
    assert (memory.numel(), reason) == (3, why)
    assert policies == ([] if error else [numa._PREFERRED, 0])


def test_memory_that_a_node_has_not_is_taken_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = iter([RuntimeError("CUDA error: out of memory"), None])

    def take() -> Tensor:
        if error := next(tries):
            raise error
        return torch.ones(3)

    monkeypatch.setattr(numa, "_policy", lambda: (0, None))
    monkeypatch.setattr(numa, "_set_policy", lambda mode, mask: None)
    memory, why = take_on(1, take)
    assert (memory.numel(), why) == (3, "no memory could be taken on NUMA node 1")


def measured_on(
    bench: Workbench,
    monkeypatch: pytest.MonkeyPatch,
    sysfs: Path,
    *,
    near: float,
    far: float,
    refused: bool = False,
) -> CheckResult:
    """Judge the links of a GPU whose copies have these rates, in GB/s."""
    bench.ctx.pci_bus_id = BDF
    monkeypatch.setattr(module, "places_of", partial(places_of, sysfs=sysfs))
    monkeypatch.setattr(module, "_SEND_EVERY_S", 0.0)
    if refused:
        monkeypatch.setattr(module, "take_on", lambda node, take: (take(), "not permitted"))
    else:
        monkeypatch.setattr(module, "take_on", lambda node, take: (take(), None))
    transfers = Transfers(bench.ctx, 0.0)
    host = HostLinks(bench.ctx, transfers)
    host.tally.real = True

    def run(queue: Callable[[], object], beside: Callable[[], object] | None = None) -> float:
        queue()
        if beside is not None:
            beside()
        rate = near if host._memory is host._local else far
        return host._bytes / rate / 1e9

    monkeypatch.setattr(transfers, "run", run)
    bench.ctx.pace()
    bench.ctx.pace()
    host.measure_alone(1)
    host.tally.send(1)
    assert not bench.findings()
    samples = [Sample(at=1.0, values=asdict(one)) for one in bench.sent(LinkMeasured)]
    evidence = Run().evidence([], 1)
    (phase,) = (phase for phase in evidence.record.phases if phase.links)
    phase.links = samples
    (found,) = (row for row in CHECKS if row.id == "links.host")
    return found.run(evidence, Thresholds())


@pytest.mark.parametrize(
    ("host", "measured", "status", "text"),
    [
        (
            {},
            {"near": 55.3, "far": 25.0},
            Status.PASS,
            "far memory, NUMA node 1 (CPU socket 1): to the GPU 25 GB/s",
        ),
        (
            {},
            {"near": 27.0, "far": 50.0},
            Status.FAIL,
            "host memory: NUMA node 0 (CPU socket 0)",
        ),
        (
            {"own": "-1"},
            {"near": 55.0, "far": 50.0, "refused": False},
            Status.PASS,
            "not bound to a NUMA node: the host names no NUMA node",
        ),
        (
            {},
            {"near": 55.0, "far": 50.0, "refused": True},
            Status.PASS,
            "not bound to NUMA node 0 (CPU socket 0): not permitted",
        ),
    ],
)
def test_a_slow_node_is_named_and_only_the_gpus_own_is_judged(
    bench: Workbench,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    host: dict[str, Any],
    measured: dict[str, Any],
    status: Status,
    text: str,
) -> None:
    """Memory without a node, or that could not be bound to it, is said so."""
    judged = measured_on(bench, monkeypatch, host_with(tmp_path / "sys", **host), **measured)
    assert judged.status is status
    assert text in judged.evidence


def test_too_few_chunks_are_refused(tmp_path: Path) -> None:
    with workbench(tmp_path, chunks=2) as bench, pytest.raises(ConfigError, match="three chunks"):
        links(bench.ctx)


class FakePeers:
    """Two other ranks that send what the real ones would; ``spoil`` changes what arrives."""

    def __init__(self, patterns: LinkPatterns, spoil: Callable[[Tensor], object]) -> None:
        self.rank, self.size, self.gpus = 1, 3, (4, 5, 7)
        self._patterns, self._spoil = patterns, spoil
        self.number = 0

    def exchange(self, sent: Tensor, received: Tensor, shift: int, repeats: int) -> float:
        sender = (self.rank - shift) % self.size
        for place, begin in enumerate(range(0, received.numel(), self._patterns.words)):
            piece = received[begin : begin + self._patterns.words]
            self._patterns.write(piece, key_of(self.number, shift, sender, place))
        self._spoil(received)
        return 1.0

    def all_reduce(self, numbers: Tensor, repeats: int) -> float:
        own = numbers - self.rank
        total = torch.stack([own + rank for rank in range(self.size)]).sum(0)
        numbers.copy_(total * self.size ** (repeats - 1))
        self._spoil(numbers.view(torch.int64))
        return 1.0


def peer_links(bench: Workbench, spoil: Callable[[Tensor], object]) -> PeerLinks:
    words = bench.ctx.chunks[0].numel() // 8
    fake: Any = FakePeers(LinkPatterns(words, CPU), spoil)
    return PeerLinks(bench.ctx, Transfers(bench.ctx, 0.0), fake)


def measure(links_: PeerLinks, number: int) -> None:
    vars(links_.peers)["number"] = number
    for shift in (1, 2):
        links_.measure_exchange(number, shift)
    links_.measure_all_reduce(number)


def test_data_of_other_gpus_is_compared(bench: Workbench) -> None:
    links_ = peer_links(bench, lambda received: None)
    for number in range(1, 5):
        measure(links_, number)
    assert not bench.findings()
    assert bench.done().checks == 12


def test_wrong_data_of_other_gpus_is_found_and_the_sender_is_named(bench: Workbench) -> None:
    def spoil(received: Tensor) -> None:
        received[-1] ^= BIT

    measure(peer_links(bench, spoil), 9)
    names = [finding.detail.split(";")[0] for finding in bench.findings()]
    assert names == ["peer from GPU 4", "peer from GPU 7", "all_reduce"]
    assert bench.done().errors == 3


def test_a_flood_of_wrong_pieces_is_counted_and_not_reported(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HOST_BYTES", 64)
    links_ = peer_links(bench, lambda received: received.fill_(-1))
    links_._patterns = LinkPatterns(8, CPU)
    links_.measure_all_reduce(1)
    assert len(bench.findings()) == module._MAX_EXAMINED
    assert bench.done().errors == links_._numbers.numel() // 8


@given(
    size=st.integers(2, 72),
    key=st.integers(0, 2**62),
    words=st.integers(1, 40),
)
def test_sums_are_exact_for_any_number_of_gpus(size: int, key: int, words: int) -> None:
    patterns, offset = LinkPatterns(words, CPU), offset_of(key)
    repeats = repeats_of(size, 8)
    ranks = []
    for rank in range(size):
        numbers = torch.empty(words, dtype=torch.float32)
        patterns.write_numbers(numbers, offset + rank)
        ranks.append(numbers)
    total = torch.stack(ranks).sum(0)
    for _ in range(repeats - 1):
        total = torch.stack([total] * size).sum(0)
    factor = size ** (repeats - 1)
    expected = factor * (size * offset + size * (size - 1) // 2)
    assert patterns.compare_sums(total, factor * size, expected) is None
    total[-1] += 1
    assert patterns.compare_sums(total, factor * size, expected) is not None


@given(key=st.integers(0, 2**62 - 1), place=st.integers(0, 99), bit=st.integers(0, 62))
def test_every_flipped_bit_of_a_word_is_found(key: int, place: int, bit: int) -> None:
    patterns, piece = LinkPatterns(100, CPU), torch.empty(100, dtype=torch.int64)
    patterns.write(piece, key)
    assert patterns.compare(piece, key) is None
    piece[place] ^= 1 << bit
    wrong = patterns.compare(piece, key)
    assert wrong is not None
    assert (wrong.count, wrong.first, sum(wrong.bits), wrong.bits[bit]) == (1, place, 1, 1)


def test_keys_differ_by_each_number() -> None:
    keys = {
        key_of(number, shift, rank) for number in range(9) for shift in (1, 2) for rank in (0, 1)
    }
    assert len(keys) == 36


GROUP = StressorGroup(number=1, rank=0, gpus=(0, 1))


def test_a_rank_that_never_comes_is_no_fault_of_this_gpu(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers_module, "RENDEZVOUS_TIMEOUT_S", 0.2)
    bench.ctx.rendezvous = tmp_path
    with pytest.raises(PeersError, match="GPU 1 did not come"):
        Peers(bench.ctx, GROUP, Transfers(bench.ctx, 1.0))


def test_a_stop_ends_the_wait_for_other_ranks(bench: Workbench, tmp_path: Path) -> None:
    bench.ctx.rendezvous, bench.ctx.group = tmp_path, GROUP
    bench.stop()
    links(bench.ctx)


def test_the_error_of_a_lost_rank_waits_for_the_stop(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers_module, "_STOP_WAIT_S", 0.1)
    lost = object.__new__(Peers)
    lost._ctx, lost._transfers = bench.ctx, Transfers(bench.ctx, 1.0)
    with pytest.raises(PeersError, match="closed by peer"), lost._errors():
        raise RuntimeError("connection closed by peer")
    with pytest.raises(PeersError, match="20 s"), lost._errors():
        raise TransferTimeoutError("a transfer did not end within 20 s")
    bench.stop()
    with pytest.raises(StoppedError), lost._errors():
        raise RuntimeError("connection closed by peer")


def transfers(bench: Workbench, patience: float) -> Transfers:
    """Build transfers as on a GPU, where a transfer is polled."""
    found = Transfers(bench.ctx, patience)
    found.real = True
    return found


def test_a_transfer_is_polled_until_it_is_done(bench: Workbench) -> None:
    left = iter(range(5))
    transfers(bench, 0.0)._wait(lambda: next(left, None) is None)
    assert next(left, None) is None


def test_the_time_of_transfers_is_that_between_two_events_on_their_stream(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    class FakeStream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: FakeStream) -> None:
            log.append(f"{self.name} waits for {other.name}")

    class FakeEvent:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def query(self) -> bool:
            return True

        def elapsed_time(self, other: FakeEvent) -> float:
            return 250.0

    @contextmanager
    def stream(one: FakeStream) -> Iterator[None]:
        log.append(f"on {one.name}")
        yield

    monkeypatch.setattr(transfers_module, "_Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    real = transfers(bench, 0.0)
    real._streams = [FakeStream("main"), FakeStream("other")]
    seconds = real.run(
        lambda: log.append("queue"), lambda: log.append("beside"), lambda: log.append("before")
    )
    assert seconds == 0.25
    assert log == [
        *("on main", "before", "event", "other waits for main", "on other", "beside"),
        *("queue", "main waits for other", "event"),
    ]
    assert real.compute(lambda: 7) == 7


def test_a_transfer_without_end_is_given_up(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers_module, "TIMEOUT_S", 0.1)
    with pytest.raises(TransferTimeoutError, match=r"within 0\.1 s"):
        transfers(bench, 1.0)._wait(lambda: False)


def test_a_stop_ends_a_transfer_without_end(bench: Workbench) -> None:
    bench.stop()
    for patience in (0.0, 0.05):
        with pytest.raises(StoppedError):
            transfers(bench, patience)._wait(lambda: False)


def test_a_stopped_rank_ends_a_transfer_that_others_wait_for(bench: Workbench) -> None:
    bench.stop()
    left = iter(range(100))
    transfers(bench, 20.0)._wait(lambda: next(left, None) is None)
    assert next(left, None) is None


def test_the_buffers_of_nccl_are_announced(bench: Workbench) -> None:
    announced: list[int] = []
    watch: Any = SimpleNamespace(expect_preparation=announced.append)
    bench.ctx._watch = watch
    bench.ctx.allow_growth(2**30)
    bench.ctx.prepare()
    assert announced == [PREPARATION_BYTES + 2**30]


@pytest.mark.parametrize(("options", "value"), [({}, "0"), ({"nvls": True}, "2")])
def test_nvlink_multicast_is_off_unless_it_is_allowed(
    bench: Workbench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, bool],
    value: str,
) -> None:
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "before")
    monkeypatch.setattr(transfers_module, "RENDEZVOUS_TIMEOUT_S", 0.1)
    bench.ctx.rendezvous, bench.ctx.group = tmp_path, GROUP
    with pytest.raises(PeersError, match="GPU 1 did not come"):
        links(bench.ctx, **options)
    assert os.environ["NCCL_NVLS_ENABLE"] == value


def test_sockets_are_local() -> None:
    assert {ENVIRONMENT[name] for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")} == {"lo"}
