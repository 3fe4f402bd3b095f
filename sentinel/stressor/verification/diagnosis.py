"""Examine what was found wrong: what it was, how it looks, and whether it comes back.

Everything in here was done once before Ready, with a bit flipped on purpose, so that it takes no
device memory when it matters. It is slow, since it reads matrices on the host, piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from sentinel.protocol.stressor import Finding, FindingPlace
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verification.comparison import INTEGERS
from sentinel.stressor.verification.inspector import SLICE, Instruments
from sentinel.stressor.verification.matmul import Product

#: How often a fault is tried again.
REPEATS = 3

#: What people call the inputs.
_SIDES = ("left input", "right input")

#: How many findings of one stressor are examined and reported; of more, the number is enough.
_MOST = 64

#: Returns the right bytes from one place to another, on the host.
Expected = Callable[[int, int], Tensor]


class Reports:
    """Hands the findings of one workload to the supervisor, up to a number."""

    def __init__(self, ctx: WorkloadContext, workload: str) -> None:
        self.workload = workload
        self._withheld: list[Finding] | None = None
        self._ctx = ctx
        self._left = _MOST

    @property
    def wanted(self) -> bool:
        """Return whether another finding would be handed over."""
        return self._withheld is not None or self._left > 0

    @contextmanager
    def withhold(self) -> Iterator[list[Finding]]:
        """Collect findings in a list instead: those of bits that were flipped on purpose."""
        findings: list[Finding] = []
        self._withheld = findings
        try:
            yield findings
        finally:
            self._withheld = None

    def deliver(self, finding: Finding) -> None:
        """Hand ``finding`` over."""
        if self._withheld is not None:
            self._withheld.append(finding)
            return
        self._left -= 1
        self._ctx.find(finding)


@dataclass
class Evidence:
    """How a matrix differs: in how many elements, the first of them, and how often in each bit."""

    bits: list[int]
    count: int = 0
    first: int | None = None

    def add(self, found: Tensor, expected: Tensor, offset: int) -> None:
        """Take in one slice, as integers as wide as an element; ``offset`` is its first element."""
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
    """What an examination came to.

    ``errors`` is how many results, inputs and references were wrong. ``void``: an input was, so all
    results since are. ``mended``: the reference was, so what was said of results may be wrong.
    """

    errors: int
    void: bool
    mended: bool


@dataclass
class Examiner:
    """Examines the matrices of one product.

    Args:
        product: Its matrices.
        instruments: What looks at them.
        reports: Where findings go.
    """

    product: Product
    instruments: Instruments
    reports: Reports
    seed: int = 1
    round: int = 0
    #: The checksums of the left input, the right one and the reference, as they must be.
    sums: list[int] = field(default_factory=list)

    def examine(self, wrong: Sequence[Tensor], spare: Tensor) -> Outcome:
        """Find out why the results ``wrong`` differ from the reference, and report it.

        A corrupted input or reference is made anew.

        Args:
            wrong: Results that differed when they were checked.
            spare: A place for a result, of which the content is not needed any more.

        Raises:
            RuntimeError: An input or the reference cannot be made anew.
        """
        errors = sum(self._mend_input(number) for number in range(len(self.product.inputs)))
        void = errors > 0
        mended = self._mend_reference(spare)
        errors += mended
        for matrix in () if void else wrong:
            if mended and not self.instruments.differs(matrix):
                continue  # it was right, and the reference was not
            errors += 1
            # Somebody who wants the stressor to end waits for one examination, not for dozens.
            if self.reports.wanted and not (self.instruments.stopped and errors > 1):
                self.examine_result(matrix)
        return Outcome(errors=errors, void=void, mended=mended)

    def check_inputs(self) -> int:
        """Compare the inputs with what they were just filled with; return how many were wrong.

        These are reported and made anew.

        Raises:
            RuntimeError: One cannot be made.
        """
        wrong = 0
        for number, matrix in enumerate(self.product.inputs):
            if self._is_filled(number):
                continue
            wrong += 1
            self._mend(
                FindingPlace.INPUT,
                matrix,
                self._collect(matrix, self._bytes_of_input(number)),
                partial(self.product.fill_one, number, self.seed),
                (partial(self._is_filled, number), _SIDES[number]),
            )
        return wrong

    def report_golden(self, found: int, known: int) -> None:
        """Report a reference that is not what others of its kind compute, though it is stable."""
        shape = self.product.shape
        detail = f"the checksum of {shape} is {found:#018x}, {known:#018x} is on record"
        self._report(FindingPlace.GOLDEN, Evidence(bits=[]), (), detail, repeated=(1, 1))

    def examine_result(self, matrix: Tensor, detail: str = "") -> None:
        """Report a wrong result; the repetitions are computed into its place."""
        reread = self.instruments.differs(matrix)
        evidence = self._collect(matrix, self._bytes_of(self.product.reference))
        repeated = 0
        for _ in range(REPEATS):
            self.product.multiply(matrix)
            repeated += self.instruments.differs(matrix)
        first = self._coordinates(matrix, evidence)
        tries = (repeated, REPEATS)
        self._report(FindingPlace.RESULT, evidence, first, detail, reread=reread, repeated=tries)

    # --- what was computed from, and compared with -------------------------------------------

    def _mend_input(self, number: int) -> bool:
        """Report an input of which the checksum is wrong and make it anew; say whether it was."""
        matrix = self.product.inputs[number]
        if self.instruments.checksum(matrix) == self.sums[number]:
            return False
        evidence = self._collect(matrix, self._bytes_of_input(number))
        self._mend(
            FindingPlace.INPUT,
            matrix,
            evidence,
            lambda: self.product.fill_one(number, self.seed),
            (lambda: self.instruments.checksum(matrix) == self.sums[number], _SIDES[number]),
        )
        return True

    def _is_filled(self, number: int) -> bool:
        """Return whether an input holds what it was filled with, from the first bit to the last."""
        matrix, block = self.product.inputs[number], self.product.block(number, self.seed)
        expected = block.view(torch.uint8)
        for start in range(0, block.nbytes, SLICE):
            end = min(start + SLICE, block.nbytes)
            found = self.instruments.fetch(matrix, start, end, window=0)
            if not torch.equal(found, expected[start:end]):
                return False
        return self.instruments.repeats_itself(matrix, block.numel())

    def _mend_reference(self, spare: Tensor) -> bool:
        """Report a reference of which the checksum is wrong and make it anew."""
        reference = self.product.reference
        if self.instruments.checksum(reference) == self.sums[-1]:
            return False
        self.product.multiply(spare)
        evidence = self._collect(reference, self._bytes_of(spare))
        self._mend(
            FindingPlace.REFERENCE,
            reference,
            evidence,
            lambda: self.product.multiply(reference),
            (lambda: self.instruments.checksum(reference) == self.sums[-1], "reference"),
        )
        return True

    def _mend(
        self,
        place: FindingPlace,
        matrix: Tensor,
        evidence: Evidence,
        make: Callable[[], object],
        right: tuple[Callable[[], bool], str],
    ) -> None:
        """Make ``matrix`` anew, more than once to see whether it goes wrong again, and report."""
        is_right, name = right
        bad = False
        repeated = 0
        for _ in range(REPEATS):
            make()
            bad = not is_right()
            repeated += bad
        self._report(
            place,
            evidence,
            self._coordinates(matrix, evidence),
            name,
            reread=evidence.count > 0,
            repeated=(repeated, REPEATS),
        )
        if bad:
            message = f"the {name} is wrong each time it is made anew; nothing can be checked here"
            raise RuntimeError(message)

    # --- evidence ----------------------------------------------------------------------------

    def _collect(self, matrix: Tensor, expected: Expected) -> Evidence:
        """Compare ``matrix`` with what it must be, on the host."""
        size = matrix.element_size()
        integers = INTEGERS[size]
        evidence = Evidence(bits=[0] * 8 * size)
        for start in range(0, matrix.nbytes, SLICE):
            end = min(start + SLICE, matrix.nbytes)
            right = expected(start, end).view(integers)
            found = self.instruments.fetch(matrix, start, end, window=0).view(integers)
            evidence.add(found, right, start // size)
        return evidence

    def _bytes_of_input(self, number: int) -> Expected:
        """Return what gives the bytes of an input as it was filled: one block, without end."""
        block = self.product.block(number, self.seed).view(torch.uint8)
        period = block.numel()
        tiles = block.repeat(SLICE // period + 2)

        def expected(start: int, end: int) -> Tensor:
            offset = start % period
            return tiles[offset : offset + end - start].clone()  # aligned for any element

        return expected

    def _bytes_of(self, matrix: Tensor) -> Expected:
        return lambda start, end: self.instruments.fetch(matrix, start, end, window=1)

    def _coordinates(self, matrix: Tensor, evidence: Evidence) -> tuple[int, ...]:
        if evidence.first is None:
            return ()
        return self.product.coordinates(matrix, evidence.first)

    def _report(
        self,
        place: FindingPlace,
        evidence: Evidence,
        first: tuple[int, ...],
        detail: str,
        *,
        reread: bool | None = None,
        repeated: tuple[int, int],
    ) -> None:
        if not self.reports.wanted:
            return
        finding = Finding(
            number=0,
            place=place,
            workload=self.reports.workload,
            dtype=self.product.dtype.name,
            round=self.round,
            seed=self.seed,
            count=evidence.count,
            first=first,
            bits=tuple(evidence.bits),
            reread=reread,
            repeated=repeated[0],
            repeats=repeated[1],
            detail=detail,
        )
        self.reports.deliver(finding)
