"""The memory test, with small memories in this process, and once in a whole sentinel."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sentinel.errors import ConfigError
from sentinel.protocol.stressor import Finding, FindingPlace, MemoryCovered, Ready
from sentinel.stressor.memory_cells import PATTERNS, READS, MemoryCells, Piece, Task, parse_patterns
from sentinel.stressor.memtest import MemoryTest, _Cost, memtest
from tests.harness.gpu_environment import GpuHost
from tests.harness.narrowing import not_none
from tests.harness.parameters import mostly_long
from tests.harness.sentinel_process import eventually
from tests.harness.stressor_harness import Child
from tests.harness.workload_harness import Workbench, workbench

WORD = 2**64
CHUNKS = 4


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with workbench(tmp_path, chunks=CHUNKS) as bench:
        yield bench


def memory_test(
    bench: Workbench, patterns: str = "all", cells: MemoryCells | None = None
) -> MemoryTest:
    return MemoryTest(
        bench.ctx, cells or MemoryCells(bench.ctx.chunks, 0), parse_patterns(patterns), seed=1
    )


def flip(tensor: Tensor, word: int, bit: int) -> None:
    tensor[word].bitwise_xor_(1 << bit if bit < 63 else -(2**63))


class FaultyMemory(MemoryCells):
    """Memory that flips bits before reads or has a stuck bit, and records all accesses."""

    def __init__(self, chunks: list[Tensor]) -> None:
        super().__init__(chunks, 0)
        self.faults: list[tuple[int, int, int, int]] = []  # read, block, word, bit
        self.stuck: tuple[int, int] | None = None  # block, word
        self.written: list[tuple[str, int, int]] = []
        self.checked: list[tuple[str, int, int, int]] = []

    def write(self, task: Task, piece: Piece) -> None:
        super().write(task, piece)
        self.written.append((task.pattern.name, piece.block, piece.index))
        if self.stuck is not None and self.stuck[0] == piece.block:
            self.blocks[piece.block][self.stuck[1]] |= 1 << 9

    def check(self, task: Task, piece: Piece, read: int) -> None:
        self.checked.append((task.pattern.name, piece.block, piece.index, read))
        for fault in list(self.faults):
            at, block, word, bit = fault
            if (at, block) == (read, piece.block) and piece.start <= word < piece.stop:
                self.faults.remove(fault)
                flip(self.blocks[block], word, bit)
        super().check(task, piece, read)


@pytest.fixture
def cells(bench: Workbench) -> FaultyMemory:
    return FaultyMemory(bench.ctx.chunks)


# --- the patterns ----------------------------------------------------------------------------


def mix(word: int) -> int:
    """Compute the SplitMix64 hash of a word, independently of the implementation."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % WORD
    return word ^ (word >> 31)


def expected(name: str, address: int, seed: int) -> int:
    golden = 0x9E3779B97F4A7C15
    mixed = mix((seed + 1) * golden % WORD)
    word = {
        "zeros": 0,
        "ones": WORD - 1,
        "aa": 0xAAAAAAAAAAAAAAAA,
        "55": 0x5555555555555555,
        "walking-one": 1 << (address + seed) % 64,
        "address": address ^ mixed,
    }.get(name)
    if word is not None:
        return word
    word = mix((address * golden + mixed) % WORD)
    return word if name == "random" else WORD - 1 - word


@pytest.mark.parametrize("name", PATTERNS)
@given(first=st.integers(0, 2**40), seed=st.integers(0, 2**70))
def test_each_pattern_has_its_documented_content(name: str, first: int, seed: int) -> None:
    words, spare = torch.empty(2, 67, dtype=torch.int64)
    PATTERNS[name].compute(words, spare, first, seed)
    assert [word % WORD for word in words.tolist()] == [
        expected(name, first + index, seed) for index in range(67)
    ]


def test_all_patterns_set_and_clear_every_bit() -> None:
    words, spare = torch.empty(2, 256, dtype=torch.int64)
    for name in ("walking-one", "random", "random-complement"):
        PATTERNS[name].compute(words, spare, 10**6, 3)
        held = [word % WORD for word in words.tolist()]
        for bit in range(64):
            assert {word >> bit & 1 for word in held} == {0, 1}, name


@pytest.mark.parametrize("text", ["all", "zeros", "random+address"])
def test_patterns_are_selected_by_name(text: str) -> None:
    assert [p.name for p in parse_patterns(text)] == (
        list(PATTERNS) if text == "all" else text.split("+")
    )


# --- passes ----------------------------------------------------------------------------------


def test_clean_passes_have_no_findings_and_check_every_piece_in_both_directions(
    bench: Workbench,
    cells: FaultyMemory,
) -> None:
    test = memory_test(bench, cells=cells)
    test.prove()
    cells.written, cells.checked = [], []
    for number in range(1, CHUNKS + 1):
        test.run_pass(number)
    assert bench.findings() == []
    done = bench.done()
    each = 2 * READS * len(PATTERNS) * (CHUNKS - 1) * cells.pieces
    assert (done.checks, done.errors) == (CHUNKS * each, 0)
    for name in PATTERNS:
        order = [(block, index) for pattern, block, index in cells.written if pattern == name]
        half = (CHUNKS - 1) * cells.pieces
        sweeps = [order[at : at + half] for at in range(0, len(order), half)]
        assert len(sweeps) == 2 * CHUNKS
        for number, (up, down) in enumerate(zip(sweeps[::2], sweeps[1::2], strict=True)):
            assert up == sorted(up)
            assert down == up[::-1]
            assert {block for block, _ in up} == set(range(CHUNKS)) - {number}
        read = [(block, index) for pattern, block, index, _ in cells.checked if pattern == name]
        assert read == [place for sweep in sweeps for place in sweep * READS]


def test_the_note_shows_the_coverage(bench: Workbench) -> None:
    test = memory_test(bench, "zeros")
    for number in (1, 2, 3):
        test.run_pass(number)
        if number == 1:
            assert bench.ctx._note == (
                "pass 1, pattern zeros, descending, covered 0.3 % of the device's memory"
            )
    # four chunks of 16 MiB on 16 GiB are 0.39 %; the first pass covers three quarters of them
    assert not_none(bench.ctx._note).startswith("pass 3, pattern zeros, descending, covered 0.4 %")


@pytest.mark.parametrize("chunks", [1, 2, 3, 5])
def test_all_memory_is_tested_with_any_number_of_chunks(tmp_path: Path, chunks: int) -> None:
    with workbench(tmp_path, chunks=chunks) as bench:
        test = memory_test(bench, "random")
        blocks = len(test.cells.blocks)
        assert blocks >= 4
        assert sum(block.nbytes for block in test.cells.blocks) == sum(
            chunk.nbytes for chunk in bench.ctx.chunks
        )
        for number in range(1, blocks + 1):
            test.run_pass(number)
        assert test._covered == set(range(blocks))
        assert bench.findings() == []


def test_a_memory_that_is_too_small_is_refused() -> None:
    with pytest.raises(ConfigError, match="too small"):
        MemoryCells([torch.empty(1024, dtype=torch.uint8)], 0)


def test_chunks_too_few_to_flush_the_cache_get_a_flush_buffer(bench: Workbench) -> None:
    enough = (CHUNKS - 2) * bench.ctx.chunks[0].nbytes // 4
    assert MemoryCells(bench.ctx.chunks, enough).flush_buffer is None
    cells = MemoryCells(bench.ctx.chunks, enough + 8)
    assert cells.flush_buffer is not None
    assert cells.flush_buffer.nbytes >= 4 * (enough + 8)
    cells.flush_buffer.fill_(7)
    test = memory_test(bench, "aa", cells)
    test.run_pass(1)
    assert not cells.flush_buffer.any(), "the buffer was not overwritten"
    assert bench.findings() == []


def test_at_most_a_quantum_and_a_piece_is_queued_at_a_time(tmp_path: Path) -> None:
    with workbench(tmp_path, chunks=CHUNKS, quantum=1.0) as bench:
        test = memory_test(bench, "zeros+random")
        slow_cost = _Cost(write_seconds=0.3, check_seconds=0.4, write_bytes=1.0, check_bytes=1.0)
        test._costs = dict.fromkeys(test._costs, slow_cost)
        queued: list[float] = []
        most = []

        def record_queued() -> None:
            most.append(sum(queued))
            queued.clear()

        bench.device.on_wait = record_queued
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(test.cells, "write", lambda *_: queued.append(slow_cost.write_seconds))
            patch.setattr(test.cells, "check", lambda *_: queued.append(slow_cost.check_seconds))
            test.run_pass(1)
        # A quantum is 1.0 s, and up to two are in flight between two waits.
        assert 0.9 < max(most) <= 2 * (1.0 + 0.4)


# --- faults ----------------------------------------------------------------------------------


def test_every_flipped_bit_is_found_where_it_is(bench: Workbench, cells: FaultyMemory) -> None:
    """100 of 100 random words and bits, with all patterns and in both directions."""
    draw = random.Random(4)
    test = memory_test(bench, cells=cells)
    test.prove()
    injected = []
    for number in range(1, 8):
        tested = [block for block in range(CHUNKS) if block != (number - 1) % CHUNKS]
        for _ in range(15):
            fault = (
                draw.randrange(READS),
                draw.choice(tested),
                draw.randrange(cells.size),
                draw.randrange(64),
            )
            cells.faults = [fault]
            injected.append(fault)
            # One sweep, as in a pass.
            pattern = draw.choice(list(PATTERNS.values()))
            cells.use_scratch((number - 1) % CHUNKS)
            test._sweep = test._sweep_for(number, pattern, descending=draw.random() < 0.5)
            order = test.order()
            test.write(order)
            for read in range(READS):
                test.read(order, read)
            test.report_faults()
    found = bench.findings()
    assert len(found) == len(injected) >= 100
    for (read, block, word, bit), finding in zip(injected, found, strict=True):
        assert finding.place is FindingPlace.MEMORY
        assert (finding.count, finding.first) == (1, (block, word))
        assert [number for number, times in enumerate(finding.bits) if times] == [bit]
        assert (finding.reread, finding.repeated, finding.repeats) == (True, 0, 3)
        assert f"read {read + 1} of {READS}" in finding.detail
    assert bench.done().errors == len(injected)


def test_a_bit_in_a_part_of_a_chunk_is_located_within_the_chunk(tmp_path: Path) -> None:
    with workbench(tmp_path, chunks=1) as bench:
        cells = FaultyMemory(bench.ctx.chunks)
        cells.faults = [(0, 2, 5, 40)]
        memory_test(bench, "ones", cells).run_pass(1)
        (finding,) = bench.findings()
        assert finding.first == (0, 2 * cells.size + 5)


def test_a_stuck_bit_is_repeatable(bench: Workbench, cells: FaultyMemory) -> None:
    cells.stuck = (2, 77)
    memory_test(bench, "zeros", cells).run_pass(1)
    up, down = bench.findings()
    for finding in (up, down):
        assert (finding.reread, finding.repeated, finding.first) == (True, 3, (2, 77))
        assert finding.bits[9] == 1


def test_a_word_that_is_right_when_reread_is_a_bad_load(
    bench: Workbench, cells: FaultyMemory
) -> None:
    # The second read flips the bit back, so that the third read, by the diagnosis, is right.
    cells.faults = [(0, 3, 9, 1), (1, 3, 9, 1)]
    memory_test(bench, "random", cells).run_pass(1)
    (finding,) = bench.findings()
    assert (finding.reread, finding.count, sum(finding.bits)) == (False, 1, 0)
    assert finding.first[0] == 3
    assert "right when read again" in finding.detail


def test_a_slow_acknowledgement_does_not_count_as_a_long_quantum(
    bench: Workbench, cells: FaultyMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("sentinel.stressor.context.time", SimpleNamespace(monotonic=lambda: now[0]))
    report_finding = bench.lease_keeper.report_finding

    def report_late(finding: Finding) -> bool:
        now[0] += 3.0
        return report_finding(finding)

    monkeypatch.setattr(bench.lease_keeper, "report_finding", report_late)
    test = memory_test(bench, "zeros", cells)
    test.run_pass(1)
    cells.faults = [(0, 2, 7, 7)]
    test.run_pass(2)
    assert len(bench.findings()) == 1
    assert bench.done().max_quantum_s < 1.0


def test_many_wrong_words_are_counted_bit_by_bit(bench: Workbench, cells: FaultyMemory) -> None:
    test = memory_test(bench, "address", cells)
    cells.faults = [(0, 1, word, bit) for word, bit in ((3, 5), (4, 5), (4, 63), (99, 0))]
    test.run_pass(1)
    (finding,) = bench.findings()
    assert (finding.count, finding.first) == (3, (1, 3))
    assert {bit: times for bit, times in enumerate(finding.bits) if times} == {0: 1, 5: 2, 63: 1}


def test_of_many_wrong_pieces_all_are_counted_and_a_few_examined(tmp_path: Path) -> None:
    with workbench(tmp_path, chunks=8) as bench:
        cells = FaultyMemory(bench.ctx.chunks)
        test = memory_test(bench, "55", cells)
        cells.faults = [
            (0, block, word, 3) for block in range(1, 8) for word in (0, cells.size - 1)
        ]
        test.run_pass(1)
        found = bench.findings()
        assert len(found) == 8
        assert all("14 pieces were wrong at once" in finding.detail for finding in found)
        assert bench.done().errors == 14


def test_a_fault_is_reported_even_if_a_stop_precedes_its_detection(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(FaultyMemory):
        def check(self, task: Task, piece: Piece, read: int) -> None:
            # In the last read: each further one before the stop is noticed would find it again.
            if bench.ctx.ready and (piece.block, piece.index, read) == (3, 0, READS - 1):
                self.flip(piece, 11, 50)
                bench.stop()
            super().check(task, piece, read)

    cells = Interrupted(bench.ctx.chunks)
    monkeypatch.setattr("sentinel.stressor.memtest._cells_for", lambda *_, **__: cells)
    memtest(bench.ctx, patterns="aa")
    (finding,) = bench.findings()
    assert (finding.first, finding.bits[50]) == ((3, 11), 1)
    assert bench.done().errors == 1


# --- proofs ----------------------------------------------------------------------------------


def test_a_comparison_without_findings_for_a_flipped_bit_is_refused(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_nothing(words: Tensor, other: object, *, out: Tensor) -> Tensor:
        return out.fill_(False)

    test = memory_test(bench)
    monkeypatch.setattr(torch, "ne", find_nothing)
    with pytest.raises(RuntimeError, match="a flipped bit was not found"):
        test.prove()


def test_memory_that_loses_its_content_is_refused(bench: Workbench, cells: FaultyMemory) -> None:
    cells.stuck = (1, 0)
    with pytest.raises(RuntimeError, match="just written is wrong"):
        memory_test(bench, "zeros", cells).prove()


# --- a stripe that is held -------------------------------------------------------------------

HOLD_S = 30.0


class Clock:
    """A clock that advances by a fixed time at each access to the memory."""

    def __init__(self, per_access: float = 0.05) -> None:
        self.now = 1000.0
        self.per_access = per_access

    def monotonic(self) -> float:
        return self.now


class StripedMemory(FaultyMemory):
    """Memory that records its accesses with the time, and those of the flush."""

    def __init__(self, chunks: list[Tensor], clock: Clock) -> None:
        super().__init__(chunks)
        self._clock = clock
        #: The time, the kind of access, the block, and what was held.
        self.log: list[tuple[float, str, int, tuple[int, ...]]] = []

    def write(self, task: Task, piece: Piece) -> None:
        self._note("write", piece.block)
        super().write(task, piece)

    def check(self, task: Task, piece: Piece, read: int) -> None:
        self._note("check", piece.block)
        super().check(task, piece, read)

    def flush(self, but: int | None = None) -> None:
        self._note("flush", -1)
        super().flush(but)

    def use_scratch(self, block: int) -> None:
        assert block not in self.held
        super().use_scratch(block)

    def _note(self, kind: str, block: int) -> None:
        self._clock.now += self._clock.per_access
        self.log.append((self._clock.now, kind, block, tuple(self.held)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("sentinel.stressor.memtest.time", clock)
    return clock


def held_test(
    bench: Workbench, clock: Clock, patterns: str = "zeros+ones"
) -> tuple[MemoryTest, StripedMemory]:
    cells = StripedMemory(bench.ctx.chunks, clock)
    test = MemoryTest(bench.ctx, cells, parse_patterns(patterns), seed=1, retention=HOLD_S)
    test.prove()
    cells.log = []
    return test, cells


def held_stripes(bench: Workbench) -> list[MemoryCovered]:
    sent = bench.sent(MemoryCovered)
    return [message for message in sent if message.stripe]


def run_until(test: MemoryTest, bench: Workbench, holds: int) -> int:
    """Run passes until so many stripes were checked; return the number of passes."""
    for number in range(1, 500):
        test.run_pass(number)
        if len(held_stripes(bench)) >= holds:
            return number
    raise AssertionError(f"only {held_stripes(bench)}")


@mostly_long("chunks", [1, 4, 9, 19], quick=2)
def test_each_stripe_is_held_untouched_while_the_rest_is_tested(
    tmp_path: Path, clock: Clock, chunks: int
) -> None:
    with workbench(tmp_path, chunks=chunks) as bench:
        test, cells = held_test(bench, clock)
        blocks = len(cells.blocks)
        run_until(test, bench, holds=len(cells.stripes))
        assert bench.findings() == []
        assert bench.done().errors == 0
        holds = [
            (held, list(log)) for held, log in groupby(cells.log, lambda entry: entry[3]) if held
        ]
        for stripe, (held, log) in zip(cells.stripes, holds, strict=False):
            assert held == tuple(stripe)
            assert len(stripe) <= max(1, blocks // 4)
            ours = [(at, kind, block in stripe) for at, kind, block, _ in log]
            written = max(at for at, kind, own in ours if own and kind == "write")
            read = min(at for at, kind, own in ours if own and kind == "check")
            assert HOLD_S <= read - written < 2 * HOLD_S
            between = [kind for at, kind, _ in ours if written < at < read]
            assert {"write", "check"} <= set(between), "nothing else was tested"
            # Out of the cache after the write, and none of it in the cache at the read.
            assert between[0] == between[-1] == "flush"
        # Every block was in a stripe that was held, and was tested besides.
        assert len(holds) >= len(cells.stripes)
        shares = [held_stripe.share for held_stripe in held_stripes(bench)]
        assert shares == sorted(shares)
        whole = blocks * cells.size * 8 / sum(chunk.numel() for chunk in bench.ctx.chunks)
        assert shares[-1] == pytest.approx(bench.ctx.share * whole)
        assert test._covered == set(range(blocks))


def test_a_held_stripe_is_a_pattern_of_its_own(bench: Workbench, clock: Clock) -> None:
    test, _ = held_test(bench, clock, "zeros")
    run_until(test, bench, holds=2)
    sent = bench.sent(MemoryCovered)
    assert {message.pattern for message in sent} == {"zeros", "zeros descending", "retention"}
    assert {message.patterns for message in sent} == {3}
    assert [message.pattern for message in sent if message.stripe] == ["retention"] * 2
    note = bench.ctx._note or ""
    assert "0.1 % held for " in note, note


def test_a_stripe_keeps_the_other_value_of_each_bit_in_its_second_hold(
    bench: Workbench, clock: Clock
) -> None:
    test, cells = held_test(bench, clock)
    contents: list[Tensor] = []
    for number in range(1, 500):
        test.run_pass(number)
        if test.next_hold % CHUNKS == 1 and (
            not contents or test.next_hold > CHUNKS > len(contents)
        ):
            contents.append(cells.blocks[cells.stripes[0][0]].clone())
        if test.next_hold > CHUNKS:
            break
    first, second = contents[0], contents[-1]
    assert torch.equal(first, second.bitwise_not())


def test_the_first_stripe_is_drawn(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short tests, each in a stressor of its own, are to cover all stripes in time."""
    begun: set[tuple[str, int]] = set()

    def begin(test: MemoryTest, _: int) -> None:
        test._hold_stripe(1)
        begun.add((not_none(test._kept).pattern.name, test.cells.held[0]))
        bench.stop()
        test._pace()

    monkeypatch.setattr(MemoryTest, "run_pass", begin)
    for _ in range(200):
        bench.lease_keeper.stopped.clear()
        memtest(bench.ctx, patterns="zeros", retention=HOLD_S)
        if len(begun) == 2 * CHUNKS:
            break
    assert begun == {
        (name, block) for name in ("random", "random-complement") for block in range(CHUNKS)
    }


@pytest.mark.parametrize("bits", [[17], [0, 63], []])
def test_bits_that_fade_while_the_stripe_is_held_are_found(
    bench: Workbench, clock: Clock, bits: list[int]
) -> None:
    test, cells = held_test(bench, clock)
    number = 1
    while test.next_hold < 3:
        test.run_pass(number)
        number += 1
    assert bench.findings() == []
    (block,) = cells.held
    for bit in bits:
        flip(cells.blocks[block], 321, bit)
    while test.next_hold < 5:
        test.run_pass(number)
        number += 1
    assert bench.done().errors == (1 if bits else 0)
    found = bench.findings()
    assert len(found) == bool(bits)
    for finding in found:
        assert finding.place is FindingPlace.MEMORY
        assert (finding.count, finding.first) == (1, (block, 321))
        assert [bit for bit, times in enumerate(finding.bits) if times] == bits
        assert (finding.reread, finding.repeated) == (True, 0)
        assert finding.detail.startswith("pattern retention (random), held for 3")


def test_a_stop_discards_a_stripe_that_was_not_held_for_long_enough(
    bench: Workbench, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.per_access = 0.0
    cells = StripedMemory(bench.ctx.chunks, clock)
    monkeypatch.setattr("sentinel.stressor.memtest._cells_for", lambda *_, **__: cells)

    def stop_late() -> None:
        if bench.ctx.ready and len(cells.log) > 300:
            bench.stop()

    bench.device.on_wait = stop_late
    memtest(bench.ctx, patterns="zeros", retention=HOLD_S)
    assert cells.held
    assert held_stripes(bench) == []
    assert bench.findings() == []


def test_a_held_stripe_leaves_less_memory_to_flush_the_cache(bench: Workbench) -> None:
    enough = (CHUNKS - 2) * bench.ctx.chunks[0].nbytes // 4
    assert MemoryCells(bench.ctx.chunks, enough).flush_buffer is None
    assert MemoryCells(bench.ctx.chunks, enough, holds=True).flush_buffer is not None


@pytest.mark.long
def test_a_stressor_reports_progress_while_it_holds_a_stripe(start: Callable[..., Child]) -> None:
    child = start("memtest:patterns=zeros+ones,retention=10")
    child.wait_for(Ready)
    used = child.used()
    # The first stripe is held from about now on.
    for _ in range(3):
        progress = child.wait_for_work("checks")
        assert progress.errors == 0
        assert progress.seconds < 10.0
    stripe = child.wait_for(MemoryCovered)
    while not stripe.stripe:
        stripe = child.wait_for(MemoryCovered)
    assert (stripe.pattern, stripe.patterns) == ("retention", 5)
    assert 0.05 < stripe.share <= 0.25
    assert child.used() == used
    assert child.stop() == 0


# --- a sentinel ------------------------------------------------------------------------------


@pytest.mark.long
def test_a_flipped_bit_marks_the_gpu_and_memory_stays_steady(host: GpuHost) -> None:
    flags = ("--rearm", "300ms", "--poll", "200ms", "--status-every", "1s")
    workload = ("--memory", "2GiB", "--workload", "bad_workloads:tests_memory_that_loses_a_bit")
    with host.sentinel(1, *flags, *workload) as sentinel:
        sentinel.wait_for("stressor.ready")
        held = host.held()
        finding = sentinel.wait_for("stressor.finding")
        assert (finding["place"], finding["kind"]) == ("memory", "transient")
        assert (finding["count"], finding["bits"][17], finding["reread"]) == (1, 1, True)
        assert finding["first"] == [2, 0]
        assert sentinel.wait_for("stressor.mismatch")["errors"] == 1
        eventually(lambda: [e for e in sentinel.events if "covered" in (e.get("note") or "")])
        assert abs(host.held() - held) <= host.noise_bytes
        assert "gpu.yielding" not in sentinel.names()
        assert sentinel.stop() == 0
    assert sentinel.names().count("stressor.finding") == 1
