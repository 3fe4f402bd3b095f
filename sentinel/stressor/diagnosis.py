"""Diagnose wrong results: locate the wrong bits, and test whether the fault repeats.

Every operation runs once before Ready, on a bit flipped on purpose, so that a later diagnosis needs
no new device memory. The host reads, slice by slice, the parts whose sums are wrong, and waits
asleep for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from sentinel.protocol.stressor import Finding, FindingPlace
from sentinel.stressor.comparison import (
    INTEGERS,
    BitComparison,
    Checksum,
    PieceSums,
    host_copy_of,
    integers,
)
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.matmul import Layout, Product

#: Bytes of a matrix that the host reads at a time.
SLICE = 4 * 2**20

#: Repetitions of the operation that went wrong.
REPEATS = 3

#: The matrices of a product that results depend on: their places and names in findings.
_ORIGINALS = (
    (FindingPlace.INPUT, "left input"),
    (FindingPlace.INPUT, "right input"),
    (FindingPlace.REFERENCE, "reference"),
)
_REFERENCE = 2

#: The maximum number of findings that one stressor examines and reports; further ones are counted.
_MAX_FINDINGS = 64

#: Returns the correct bytes from one offset to another, on the host.
Expected = Callable[[int, int], Tensor]
#: Parts of a matrix: bytes from one offset to another.
Parts = Sequence[tuple[int, int]]


class Inspector:
    """Compares, sums and reads the matrices of one product; allocates nothing after first use.

    Args:
        ctx: The workload's context.
        product: The product.
        layout: The memory that the product is a view of.
        slices: Host memory for two slices: of the matrix under test, and of what it is compared
            with.

    Attributes:
        comparison: Compares results with the reference without waiting.
        stopped: Whether the workload is to end, as of the last wait.
    """

    def __init__(
        self,
        ctx: WorkloadContext,
        product: Product,
        layout: Layout,
        slices: Tensor,
    ) -> None:
        self.comparison = BitComparison(product.reference, layout.differs)
        self.stopped = False
        self._rests = True
        self._ctx = ctx
        self._slices = slices
        longest = max(matrix.nbytes for matrix in product.matrices)
        self._checksum = Checksum(layout.weights, layout.weighted, longest)
        self._wrong = torch.zeros((), dtype=torch.bool, device=product.reference.device)
        self._wrong_here = host_copy_of(self._wrong)
        self._differs = layout.differs.view(torch.bool)
        # For each stretch of the longest possible input, of single bytes: whether it differs.
        stretches = -(-longest // self._differs.numel())
        self._parts = torch.zeros(stretches, dtype=torch.bool, device=self._wrong.device)

    def wait(self) -> None:
        """Wait until the device has done all queued work."""
        self.stopped = not self._ctx.drain(rests=self._rests)

    @contextmanager
    def without_rest(self) -> Iterator[None]:
        """Suspend the duty cycle: evidence is reported before it can be lost."""
        rests, self._rests = self._rests, False
        try:
            yield
        finally:
            self._rests = rests

    def differs(self, result: Tensor) -> bool:
        """Check whether ``result`` differs from the reference in at least one bit."""
        self.comparison.mark(result, self._wrong)
        return self._fetch_wrong()

    def repeats_itself(self, matrix: Tensor, period: int) -> bool:
        """Check whether each element equals the one ``period`` before it, bit for bit."""
        elements = integers(matrix)
        step = self._differs.numel()
        starts = range(period, elements.numel(), step)
        for number, start in enumerate(starts):
            end = min(start + step, elements.numel())
            differs = self._differs[: end - start]
            torch.ne(elements[start:end], elements[start - period : end - period], out=differs)
            torch.any(differs, out=self._parts[number])
        # No logical_or_ of one after another: its kernels take 28 MiB of host memory.
        torch.any(self._parts[: len(starts)], out=self._wrong)
        return not self._fetch_wrong()

    def _fetch_wrong(self) -> bool:
        """Return the outcome of the last comparison, once the device is done."""
        self._wrong_here.copy_(self._wrong, non_blocking=True)
        self.wait()
        return bool(self._wrong_here)

    def checksum(self, matrix: Tensor) -> PieceSums:
        """Return the sums of ``matrix``."""
        self._checksum.queue(matrix)
        self.wait()
        return self._checksum.value()

    def fetch(self, matrix: Tensor, start: int, end: int, *, window: int) -> Tensor:
        """Copy bytes of ``matrix`` to the host; valid until the next use of the same window."""
        slice_ = self._slices[window][: end - start]
        slice_.copy_(matrix.view(-1).view(torch.uint8)[start:end], non_blocking=True)
        self.wait()
        return slice_


class FindingReporter:
    """Sends the findings of one workload to the supervisor, up to a maximum."""

    def __init__(self, ctx: WorkloadContext, workload: str) -> None:
        self.workload = workload
        self._withheld: list[Finding] | None = None
        self._ctx = ctx
        self._left = _MAX_FINDINGS

    @property
    def wanted(self) -> bool:
        """Check whether another finding would be delivered."""
        return self._withheld is not None or self._left > 0

    @contextmanager
    def withhold(self) -> Iterator[list[Finding]]:
        """Collect findings in a list instead of sending them, while bits are flipped on purpose."""
        findings: list[Finding] = []
        self._withheld = findings
        try:
            yield findings
        finally:
            self._withheld = None

    def deliver(self, finding: Finding) -> None:
        """Send or collect ``finding``."""
        if self._withheld is not None:
            self._withheld.append(finding)
            return
        self._left -= 1
        self._ctx.find(finding)


@dataclass
class Evidence:
    """How a matrix differs: the number of elements, the first of them, and the count per bit."""

    bits: list[int]
    count: int = 0
    first: int | None = None

    def add(self, found: Tensor, expected: Tensor, offset: int) -> None:
        """Add one slice, as integers as wide as an element, that starts at element ``offset``."""
        if torch.equal(found, expected):
            return
        differences = found ^ expected
        places = differences.nonzero().view(-1)
        wrong = differences[places]
        self.count += places.numel()
        if self.first is None:
            self.first = offset + int(places[0])
        for bit in range(len(self.bits)):
            self.bits[bit] += int(((wrong >> bit) & 1).sum())


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of an examination."""

    #: The number of wrong results, inputs and references.
    errors: int
    #: An input was wrong, so every result since it was filled is invalid.
    void: bool
    #: The reference was wrong, so earlier checks against it are invalid.
    repaired: bool


@dataclass
class Examiner:
    """Examines the matrices of one product.

    Args:
        product: The product.
        inspector: Compares and reads its matrices.
        reporter: The receiver of findings.
        thorough: Whether to read the whole of a wrong result. Several wrong bits may cancel out in
            the sums that locate the one bit of a trial.
    """

    product: Product
    inspector: Inspector
    reporter: FindingReporter
    thorough: bool = False
    seed: int = 1
    round: int = 0
    #: The correct sums of the left input, the right input and the reference, once they are known.
    sums: list[PieceSums] = field(default_factory=list)

    def examine(self, wrong: Sequence[Tensor], spare: Tensor) -> Outcome:
        """Diagnose why the results ``wrong`` differ from the reference, and report the findings.

        A corrupted input or reference is repaired.

        Args:
            wrong: Results that differed when they were checked.
            spare: A slot whose result is not needed any more.

        Raises:
            RuntimeError: An input or the reference cannot be repaired.
        """
        errors = sum(self._repair_by_sums(number, spare) for number in range(_REFERENCE))
        void = errors > 0
        repaired = self._repair_by_sums(_REFERENCE, spare)
        errors += repaired
        for matrix in () if void else wrong:
            if repaired and not self.inspector.differs(matrix):
                continue  # the result was right, and the reference was not
            errors += 1
            # A pending stop waits for one examination, not for dozens.
            if self.reporter.wanted and not (self.inspector.stopped and errors > 1):
                self.examine_result(matrix)
        return Outcome(errors=errors, void=void, repaired=repaired)

    def check_inputs(self) -> int:
        """Compare the inputs with their blocks, and return how many were wrong.

        Wrong inputs are reported and repaired.

        Raises:
            RuntimeError: An input cannot be repaired.
        """
        wrong = 0
        for number, matrix in enumerate(self.product.inputs):
            if self._is_filled(number):
                continue
            wrong += 1
            evidence = self._collect(matrix, self._bytes_of_input(number), _whole(matrix))
            self._repair(number, evidence, partial(self._is_filled, number))
        return wrong

    def report_golden(self, found: int, known: int) -> None:
        """Report a reference that is stable, but differs from the golden checksum."""
        shape = self.product.shape
        detail = f"the checksum of {shape} is {found:#018x}, {known:#018x} is on record"
        reference = self.product.reference
        nothing = Evidence(bits=[])
        self._report(FindingPlace.GOLDEN, reference, nothing, detail, repeated=1, repeats=1)

    def examine_result(self, matrix: Tensor, detail: str = "") -> None:
        """Report a wrong result; repetitions overwrite it."""
        reread = self.inspector.differs(matrix)
        if self.thorough or not self.sums:
            parts = _whole(matrix)
        else:
            parts = self.inspector.checksum(matrix).differing(self.sums[_REFERENCE])
        evidence = self._collect(matrix, self._bytes_of(self.product.reference), parts)
        repeated = 0
        for _ in range(REPEATS):
            self.product.multiply(matrix)
            repeated += self.inspector.differs(matrix)
        place = FindingPlace.RESULT
        self._report(place, matrix, evidence, detail, reread=reread, repeated=repeated)

    # --- inputs and reference ----------------------------------------------------------------

    def _repair_by_sums(self, number: int, spare: Tensor) -> bool:
        """Report and remake an input or the reference with a wrong checksum.

        Args:
            number: 0 or 1 for an input, 2 for the reference.
            spare: A slot whose result is not needed any more.

        Returns:
            Whether it was wrong.
        """
        matrix, right = self.product.matrices[number], self.sums[number]
        found = self.inspector.checksum(matrix)
        if found == right:
            return False
        if number == _REFERENCE:
            self.product.multiply(spare)
            expected = self._bytes_of(spare)
        else:
            expected = self._bytes_of_input(number)
        evidence = self._collect(matrix, expected, found.differing(right))
        self._repair(number, evidence, lambda: self.inspector.checksum(matrix) == right)
        return True

    def _repair(self, number: int, evidence: Evidence, is_right: Callable[[], bool]) -> None:
        """Remake a matrix several times, count how often it is wrong again, and report.

        Raises:
            RuntimeError: It is wrong after the last time.
        """
        place, name = _ORIGINALS[number]
        matrix = self.product.matrices[number]
        bad, repeated = False, 0
        for _ in range(REPEATS):
            if number == _REFERENCE:
                self.product.multiply(matrix)
            else:
                self.product.fill_one(number, self.seed)
            bad = not is_right()
            repeated += bad
        self._report(place, matrix, evidence, name, reread=evidence.count > 0, repeated=repeated)
        if bad:
            message = f"the {name} is wrong after every repair; nothing can be checked here"
            raise RuntimeError(message)

    def _is_filled(self, number: int) -> bool:
        """Check whether an input equals its block, repeated, in every bit."""
        matrix, block = self.product.inputs[number], self.product.block(number, self.seed)
        expected = block.view(torch.uint8)
        for start in range(0, block.nbytes, SLICE):
            end = min(start + SLICE, block.nbytes)
            found = self.inspector.fetch(matrix, start, end, window=0)
            if not torch.equal(found, expected[start:end]):
                return False
        return self.inspector.repeats_itself(matrix, block.numel())

    # --- evidence ----------------------------------------------------------------------------

    def _collect(self, matrix: Tensor, expected: Expected, parts: Parts) -> Evidence:
        """Compare ``parts`` of ``matrix`` on the host with their correct bytes."""
        size = matrix.element_size()
        integers = INTEGERS[size]
        evidence = Evidence(bits=[0] * 8 * size)
        for first, last in parts:
            for start in range(first, min(last, matrix.nbytes), SLICE):
                end = min(start + SLICE, last, matrix.nbytes)
                right = expected(start, end).view(integers)
                found = self.inspector.fetch(matrix, start, end, window=0).view(integers)
                evidence.add(found, right, start // size)
        return evidence

    def _bytes_of_input(self, number: int) -> Expected:
        """Return a function that yields the correct bytes of an input: its block, repeated."""
        block = self.product.block(number, self.seed).view(torch.uint8)
        period = block.numel()
        tiles = block.repeat(SLICE // period + 2)

        def expected(start: int, end: int) -> Tensor:
            offset = start % period
            return tiles[offset : offset + end - start].clone()  # aligned for any element

        return expected

    def _bytes_of(self, matrix: Tensor) -> Expected:
        return lambda start, end: self.inspector.fetch(matrix, start, end, window=1)

    def _report(
        self,
        place: FindingPlace,
        matrix: Tensor,
        evidence: Evidence,
        detail: str,
        *,
        reread: bool | None = None,
        repeated: int,
        repeats: int = REPEATS,
    ) -> None:
        if not self.reporter.wanted:
            return
        first = evidence.first
        self.reporter.deliver(
            Finding(
                place=place,
                workload=self.reporter.workload,
                dtype=self.product.dtype.name,
                round=self.round,
                seed=self.seed,
                count=evidence.count,
                first=() if first is None else self.product.coordinates(matrix, first),
                bits=tuple(evidence.bits),
                reread=reread,
                repeated=repeated,
                repeats=repeats,
                detail=detail,
            )
        )


def _whole(matrix: Tensor) -> Parts:
    return [(0, matrix.nbytes)]
