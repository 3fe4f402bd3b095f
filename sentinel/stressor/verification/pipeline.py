"""One product, computed again and again into the places of a ring, and every result checked there.

A result is checked some quanta before its place is needed again: late enough that it lay in memory
for most of a round, early enough that a wrong one is still there when the host learns of it. The
host learns of it with the event that it waits for anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from sentinel.host.golden_store import GoldenKey, Goldens
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verification.comparison import flip
from sentinel.stressor.verification.diagnosis import Examiner, Reports
from sentinel.stressor.verification.golden import key_of
from sentinel.stressor.verification.inspector import Instruments, StagingBuffers
from sentinel.stressor.verification.layout import Layout
from sentinel.stressor.verification.matmul import Product

#: Which results are checked: every one, one in 16, or none.
Verify = Literal["full", "sample", "off"]
_ONE_IN = 16

#: How many quanta may pass from a check until the host knows of it. One may be in flight.
_LEAD = 2

#: How many snapshots of the checks are on their way at most: of two quanta, and one to spare.
_SNAPSHOTS = 3

#: How often the reference is computed anew before a GPU is given up that never agrees with itself.
_TRIES = 3


class ResultPipeline:
    """Results going round, with cursors that count on and on: ``written`` and ``checked``.

    Attributes:
        between: Called between two quanta, where it is set: a test flips bits there.
        per_quantum: How many results one call of :meth:`turn` computes.
        seconds: What one of them takes, its check with it.

    Args:
        ctx: The GPU.
        product: What is computed, and its places, at least three.
        layout: What the product is a view of.
        windows: Host memory to look through.
        reports: Where findings go.
        verify: Which results are checked.
    """

    def __init__(
        self,
        ctx: WorkloadContext,
        product: Product,
        layout: Layout,
        *,
        staging_buffers: StagingBuffers,
        reports: Reports,
        verify: Verify = "full",
    ) -> None:
        self.product = product
        self.places = product.places
        self.between: Callable[[], None] | None = None
        self.seed = 0
        self.instruments = Instruments(ctx, product, layout, staging_buffers)
        self.examiner = Examiner(product, self.instruments, reports)
        self._ctx = ctx
        self._reports = reports
        self._verify = verify
        self._strange: set[GoldenKey] = set()
        self._rounds_before = 0
        self._written = self._checked = 0
        device, cuda = product.reference.device, product.reference.is_cuda
        count = len(self.places)
        # A bool for each place: whether it was wrong when it was checked last.
        self._marks = torch.zeros(count, dtype=torch.bool, device=device)
        self._mark = self._marks.unbind(0)
        snapshots = torch.zeros((_SNAPSHOTS, count), dtype=torch.bool, pin_memory=cuda)
        self._spare = deque(snapshots.unbind(0))
        self._sent: deque[tuple[Tensor, list[int]]] = deque()
        self.per_quantum = self._checks_per_quantum = 1
        self.seconds = 0.0

    @property
    def rounds(self) -> int:
        """Return how often the whole ring was written."""
        return self._rounds_before + self._written // len(self.places)

    @property
    def unchecked(self) -> int:
        """Return how many of the results were not checked yet."""
        return self._written - self._checked

    @property
    def written(self) -> int:
        """Return how many results of the present inputs were queued; the last lies before it."""
        return self._written

    # --- before Ready ------------------------------------------------------------------------

    def prepare(self, seed: int) -> None:
        """Do everything once that may ever be done, and prove that a wrong bit would be found.

        Raises:
            RuntimeError: The GPU cannot agree with itself, or a check is blind.
        """
        self._begin(seed)
        self._choose_pace()
        self._prove()
        self._compare_with_others()
        for _ in range(_LEAD):
            self._send(self._advance(self.per_quantum))
            self.instruments.wait()
            self._judge(keep=0)
        self._restart()

    def _choose_pace(self) -> None:
        """Measure how many results and how many checks fill a quantum."""
        product, comparison = self.product, self.instruments.comparison
        mark = self._mark[0]
        check = self._ctx.measure(lambda: comparison.mark(self.places[0], mark))
        work = self._ctx.measure(lambda: product.multiply(self.places[0]))
        if self._verify == "full":
            work += check
        quantum = self._ctx.quantum
        most = (len(self.places) - 1) // _LEAD
        self.seconds = max(work, 1e-6)
        self.per_quantum = min(most, max(1, round(quantum / self.seconds)))
        self._checks_per_quantum = max(1, round(quantum / max(check, 1e-6)))

    def _prove(self) -> None:
        """Flip a bit in everything that is looked at, one after another, and see each found.

        Raises:
            RuntimeError: One was not found, or something else was.
        """
        matrices = (self.places[0], *self.product.inputs, self.product.reference)
        for number, matrix in enumerate(matrices):
            element = (matrix.numel() - 1) * number // (len(matrices) - 1)
            self.product.multiply(self.places[0])
            flip(matrix, element, 0)
            with self._reports.withhold() as findings:
                wrong = [self.places[0]] if self.instruments.differs(self.places[0]) else []
                self.examiner.examine(wrong, self.places[1])
            first = self.product.coordinates(matrix, element)
            if [(finding.count, finding.first) for finding in findings] != [(1, first)]:
                message = "a flipped bit was not found; the checks cannot be trusted"
                raise RuntimeError(message)

    # --- a seed ------------------------------------------------------------------------------

    def open(self, seed: int) -> None:
        """Begin with the inputs of ``seed``: the reference is computed until two are alike.

        Raises:
            RuntimeError: No two are, or an input cannot be made.
        """
        with self.instruments.at_once():
            self._begin(seed)
            self._compare_with_others()

    def _begin(self, seed: int) -> None:
        self.seed = self.examiner.seed = seed
        self._restart()
        self.product.fill(seed)
        wrong = self.examiner.check_inputs()
        if wrong:
            self._ctx.report(iterations=0, checks=wrong, errors=wrong)
        for _ in range(_TRIES):
            self.product.multiply(self.product.reference)
            self.product.multiply(self.places[0])
            if not self.instruments.differs(self.places[0]):
                break
            self.examiner.examine_result(self.places[0], "the reference, computed a second time")
            self._ctx.report(iterations=0, checks=1, errors=1)
        else:
            message = "the same matrix product, computed twice, differs; this GPU computes wrongly"
            raise RuntimeError(message)
        matrices = (*self.product.inputs, self.product.reference)
        self.examiner.sums = [self.instruments.checksum(matrix) for matrix in matrices]

    def _compare_with_others(self) -> None:
        """Compare the reference with what is on record, where anything is."""
        if self._ctx.goldens is not None:
            self._compare_with(self._ctx.goldens)
        self.instruments.wait()  # a file that is slow is no quantum that is long

    def _compare_with(self, goldens: Goldens) -> None:
        """Compare the reference with what others computed, or record it as the first."""
        key, checksum = key_of(self.product, self.seed), self.examiner.sums[-1]
        goldens.record(key, checksum)
        known = goldens.known(key)
        if known is None or known == checksum or key in self._strange:
            return
        self._strange.add(key)
        self.examiner.report_golden(checksum, known)
        self._ctx.report(iterations=0, checks=1, errors=1)

    def close(self) -> bool:
        """Check all that was not checked yet, and the inputs and the reference themselves.

        Returns:
            Whether to go on.
        """
        self.settle()
        if self._verify == "sample":
            self._checked = max(0, self._written - len(self.places))
        while self._verify != "off" and self._checked < self._written:
            last = min(self._written, self._checked + self._checks_per_quantum)
            checked = self._check_to(last, every=True)
            self._send(checked)
            self._ctx.report(iterations=0, checks=len(checked))
            self.settle()
            if self.instruments.stopped:
                return False
        if self._verify != "off" and not self.instruments.stopped:
            self._look_into([])
        return not self.instruments.stopped

    def settle(self) -> None:
        """Wait for everything that was queued, and judge it."""
        with self.instruments.at_once():
            self.instruments.wait()
            self._judge(keep=0)

    # --- a quantum ---------------------------------------------------------------------------

    def turn(self, at_most: int | None = None) -> bool:
        """Queue one quantum, wait for the one before it, and judge what that one checked.

        Args:
            at_most: So many results, where that is less than a quantum of them.

        Returns:
            Whether to go on.
        """
        count = self.per_quantum if at_most is None else min(self.per_quantum, max(1, at_most))
        checked = self._advance(count)
        self._send(checked)
        self._ctx.report(
            iterations=count,
            flops=self.product.flops * count,
            bytes=self.product.traffic * count,
            checks=len(checked),
        )
        going = self._ctx.pace(before_rest=lambda: self._judge(keep=0))
        if not going:
            return False  # nobody waited for what is in flight; settle() does
        self._judge(keep=1)
        if self.between is not None:
            self.between()
        return True

    def go_on(self, count: int) -> int:
        """Compute at least ``count`` results outside the workload's pace; return how many.

        Each quantum of them is waited for, and judged one later, as :meth:`turn` does.
        """
        done = 0
        while done < count and not self.instruments.stopped:
            self._send(self._advance(self.per_quantum))
            done += self.per_quantum
            self.instruments.wait()
            self._judge(keep=1)
        return done

    def _advance(self, count: int) -> list[int]:
        """Queue ``count`` results; return the places that were checked."""
        lead = _LEAD * self.per_quantum
        checked: list[int] = []
        for _ in range(count):
            # The result that lies in the place which is needed ``lead`` results from now.
            checked += self._check_to(self._written + lead - len(self.places) + 1)
            self.product.multiply(self.places[self._written % len(self.places)])
            self._written += 1
        return checked

    def _check_to(self, end: int, *, every: bool = False) -> list[int]:
        """Queue the checks of all results before number ``end`` that are due; return the places."""
        checked = []
        while self._checked < end:
            number, self._checked = self._checked, self._checked + 1
            if every or self._due(number):
                place = number % len(self.places)
                self.instruments.comparison.mark(self.places[place], self._mark[place])
                checked.append(place)
        return checked

    def _due(self, number: int) -> bool:
        """Return whether a result is checked; of a sample, others in each round."""
        if self._verify == "sample":
            return (number + number // len(self.places)) % _ONE_IN == 0
        return self._verify == "full"

    def _send(self, checked: list[int]) -> None:
        """Queue a copy of all marks to the host, for the places that were checked."""
        snapshot = self._spare.popleft()
        snapshot.copy_(self._marks, non_blocking=True)
        self._sent.append((snapshot, checked))

    def _judge(self, keep: int) -> None:
        """Look at what came of the checks of all quanta but the last ``keep``."""
        wrong: list[int] = []
        while len(self._sent) > keep:
            snapshot, checked = self._sent.popleft()
            if bool(snapshot.any()):
                wrong += [place for place in checked if snapshot[place]]
            self._spare.append(snapshot)
        if wrong:
            with self.instruments.at_once():
                self.instruments.wait()
                self._look_into([self.places[place] for place in wrong])

    def _look_into(self, wrong: Sequence[Tensor]) -> None:
        """Examine wrong results, or inputs and reference alone; begin anew where all is void."""
        self.examiner.round = self.rounds
        # The next to be overwritten. It may be wrong itself; that is lost where the reference is
        # wrong at the same moment.
        spare = self.places[self._written % len(self.places)]
        with self.instruments.at_once():
            outcome = self.examiner.examine(wrong, spare)
        self.instruments.wait()
        if outcome.errors:
            self._ctx.report(iterations=0, errors=outcome.errors)
        if outcome.void:
            self._restart()
        elif outcome.mended:
            self._check_again()

    def _check_again(self) -> None:
        """Repeat the checks that the host knows nothing of yet: the reference was made anew."""
        for snapshot, checked in self._sent:
            for place in checked:
                self.instruments.comparison.mark(self.places[place], self._mark[place])
            snapshot.copy_(self._marks, non_blocking=True)
        self.instruments.wait()

    def _restart(self) -> None:
        """Count from an empty ring; nothing is on its way any more."""
        while self._sent:
            self._spare.append(self._sent.popleft()[0])
        self._rounds_before = self.rounds
        self._written = self._checked = 0
