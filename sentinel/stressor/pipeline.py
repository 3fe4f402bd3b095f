"""Compute one product repeatedly into a ring of slots, and check every result in place.

A result is checked some quanta before its slot is overwritten: late enough that it lay in memory
for most of a round, early enough that a wrong result still exists when the host learns of it. The
host reads the outcome after the event that it waits for anyway. The checksum of a reference is
recorded and compared between GPUs.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from sentinel.config.options import Verify
from sentinel.host.golden_store import GoldenKey, Goldens
from sentinel.protocol.stressor import ReferenceChecksum
from sentinel.stressor.comparison import flip, host_copy_of
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.diagnosis import Examiner, FindingReporter, Inspector
from sentinel.stressor.injection import prove
from sentinel.stressor.matmul import Layout, Product

#: Incremented when the inputs, the multiplication or the checksum change.
_GENERATION = 2

#: Variables that make cuBLAS choose other kernels, whose results differ in the last bits.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)

#: Arguments of cublasGetProperty: major, minor and patch level (libraryPropertyType).
_PROPERTIES = (0, 1, 2)

#: Of how many results one is checked if not every one is.
_ONE_IN = 16

#: The maximum number of quanta between a check and the host's knowledge of it. One is in flight.
_LEAD = 2

#: Snapshots of the check marks that exist at a time: those of two quanta, and a spare one.
_SNAPSHOTS = 3

#: How often the reference is recomputed before a GPU that contradicts itself is given up.
_TRIES = 3


def key_of(product: Product, seed: int) -> GoldenKey:
    """Return everything that determines the bits of a reference."""
    device = product.reference.device
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        name, sms = card.name, card.multi_processor_count
    else:
        name, sms = "Simulated GPU", 0
    compiler = product.dtype.compiler
    return GoldenKey(
        gpu=name,
        sms=sms,
        torch=str(torch.__version__),
        blas=_blas(device.type) + (f", {compiler()}" if compiler is not None else ""),
        dtype=product.dtype.name,
        shape=f"{product.shape} v{_GENERATION}",
        seed=seed,
    )


@cache
def _blas(device: str) -> str:
    """Return the version and settings of cuBLAS, or the CPU capability that torch uses."""
    if device != "cuda" or torch.version.cuda is None:
        return f"cpu {torch.backends.cpu.get_cpu_capability()}"
    settings = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    return " ".join([_cublas_version(torch.version.cuda), *settings])


def _cublas_version(cuda: str) -> str:
    """Return the version of the loaded cuBLAS, or that of CUDA if it cannot be read."""
    name = f"libcublas.so.{cuda.partition('.')[0]}"
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        parts = [ctypes.c_int() for _ in _PROPERTIES]
        failed = [
            library.cublasGetProperty(which, ctypes.byref(part))
            for which, part in zip(_PROPERTIES, parts, strict=True)
        ]
    except (OSError, AttributeError):
        return f"cuda {cuda}"
    if any(failed):
        return f"cuda {cuda}"
    return ".".join(str(part.value) for part in parts)


class ResultPipeline:
    """A ring of results with two monotonic cursors: ``written`` and ``checked``.

    Attributes:
        between: Called between two quanta if set; tests flip bits there.
        computed: The number of results queued so far.
        checks: The number of results checked so far.
        errors: The number of wrong results, inputs and references so far.
        per_quantum: The most results that one call of :meth:`step` computes.
        seconds: The duration of one result and its check.
        proved: Whether the checks have been proved.

    Args:
        ctx: The workload's context.
        product: The product and its slots, at least three.
        layout: The memory that the product is a view of.
        slices: Host memory for two slices of matrices.
        reporter: The receiver of findings.
        verify: Which results are checked.
    """

    def __init__(
        self,
        ctx: WorkloadContext,
        product: Product,
        layout: Layout,
        *,
        slices: Tensor,
        reporter: FindingReporter,
        verify: Verify = "full",
    ) -> None:
        self.product = product
        self.slots = product.slots
        self.between: Callable[[], None] | None = None
        self.seed = self.computed = self.checks = self.errors = 0
        self.inspector = Inspector(ctx, product, layout, slices)
        self.examiner = Examiner(product, self.inspector, reporter)
        self._ctx = ctx
        self._reporter = reporter
        self._verify = verify
        self._deviating: set[GoldenKey] = set()
        self._rounds_before = 0
        self._written = self._checked = 0
        # One bool per slot: whether its last check found it wrong.
        self._marks = torch.zeros(
            len(self.slots), dtype=torch.bool, device=product.reference.device
        )
        self._mark = self._marks.unbind(0)
        self._free_snapshots = deque(host_copy_of(self._marks) for _ in range(_SNAPSHOTS))
        self._pending: deque[tuple[Tensor, list[int]]] = deque()
        self.per_quantum = self._checks_per_quantum = 1
        self.seconds = 0.0
        self.proved = False

    @property
    def rounds(self) -> int:
        """Compute how often the whole ring was written."""
        return self._rounds_before + self._written // len(self.slots)

    @property
    def unchecked(self) -> int:
        """Return the number of results that are not checked yet."""
        return self._written - self._checked

    @property
    def written(self) -> int:
        """Return the number of results queued for the present inputs."""
        return self._written

    def newest(self, back: int = 0) -> Tensor:
        """Return the newest result, or the one ``back`` results before it."""
        return self.slots[(self._written - 1 - back) % len(self.slots)]

    # --- before anything counts --------------------------------------------------------------

    def prepare(self, seed: int) -> None:
        """Open the pipeline and prove its checks.

        Raises:
            RuntimeError: The GPU contradicts itself, or a check misses a flipped bit.
        """
        self.open(seed)
        self.prove()

    def open(self, seed: int) -> None:
        """Fill the inputs, compute the reference, and measure how much work is a quantum.

        Raises:
            RuntimeError: The GPU contradicts itself.
        """
        self._begin(seed)
        self._measure_quantum()

    def prove(self) -> None:
        """Run every operation once, and prove that a wrong bit would be found.

        Nothing counts before this has passed.

        Raises:
            RuntimeError: A check misses a flipped bit.
        """
        checks = self.checks
        with self.inspector.without_rest():
            self._find_flips()
            if self._ctx.inject_faults and not self._ctx.rehearses:
                self.product.multiply(self.slots[0])
                differs, send = self.inspector.differs, self._ctx.send
                prove(self.product, self.slots[0], self.seed, differs, send)
            self.examiner.thorough = True
            if not self._ctx.rehearses:
                self._check_golden()
            for _ in range(_LEAD):
                self._queue_snapshot(self._queue_results(self.per_quantum))
                self.inspector.wait()
                self._collect_checks(keep=0)
        self._restart()
        self.checks, self.proved = checks, True

    def _measure_quantum(self) -> None:
        """Measure how many results and how many checks fill a quantum."""
        product, comparison = self.product, self.inspector.comparison
        mark = self._mark[0]
        check = self._ctx.measure(lambda: comparison.mark(self.slots[0], mark))
        work = self._ctx.measure(lambda: product.multiply(self.slots[0]))
        if self._verify == "full":
            work += check
        quantum = self._ctx.quantum
        most = (len(self.slots) - 1) // _LEAD
        self.seconds = max(work, 1e-6)
        self.per_quantum = min(most, max(1, round(quantum / self.seconds)))
        self._checks_per_quantum = max(1, round(quantum / max(check, 1e-6)))

    def _find_flips(self) -> None:
        """Flip a bit in each kind of matrix in turn, and require that exactly it is found.

        Raises:
            RuntimeError: A flipped bit was missed, or another finding appeared.
        """
        matrices = (self.slots[0], *self.product.matrices)
        for number, matrix in enumerate(matrices):
            element = (matrix.numel() - 1) * number // (len(matrices) - 1)
            self.product.multiply(self.slots[0])
            flip(matrix, element, 0)
            with self._reporter.withhold() as findings:
                wrong = [self.slots[0]] if self.inspector.differs(self.slots[0]) else []
                self.examiner.examine(wrong, self.slots[1])
            first = self.product.coordinates(matrix, element)
            if [(finding.count, finding.first) for finding in findings] != [(1, first)]:
                message = "a flipped bit was not found; the checks cannot be trusted"
                raise RuntimeError(message)

    # --- a seed ------------------------------------------------------------------------------

    def begin_seed(self, seed: int) -> None:
        """Fill the inputs of ``seed`` and compute a reference that two computations agree on.

        The first time, the checks are proved, too.

        Raises:
            RuntimeError: No two computations agree, an input cannot be filled, or a check misses a
                flipped bit.
        """
        with self.inspector.without_rest():
            if self.proved:
                self._begin(seed)
                self._check_golden()
            else:
                self.prepare(seed)

    def _begin(self, seed: int) -> None:
        self.seed = self.examiner.seed = seed
        self.examiner.sums = []
        self._restart()
        self.product.fill(seed)
        wrong = self.examiner.check_inputs()
        if wrong:
            self._count_errors(wrong, checks=wrong)
        for _ in range(_TRIES):
            self.product.multiply(self.product.reference)
            self.product.multiply(self.slots[0])
            if not self.inspector.differs(self.slots[0]):
                break
            self.examiner.examine_result(self.slots[0], "the reference, computed a second time")
            self._count_errors(1, checks=1)
        else:
            message = "the same matrix product, computed twice, differs; this GPU computes wrongly"
            raise RuntimeError(message)
        checksum = self.inspector.checksum
        self.examiner.sums = [checksum(matrix) for matrix in self.product.matrices]

    def _check_golden(self) -> None:
        """Report the checksum of the reference; compare it with the record if records are kept."""
        key, checksum = key_of(self.product, self.seed), self.examiner.sums[-1].total
        goldens = self._ctx.goldens
        stored = goldens.known(key) if goldens is not None else None
        self._ctx.send(
            ReferenceChecksum(
                key=str(key),
                checksum=f"{checksum:#x}",
                stored=None if stored is None else f"{stored:#x}",
            )
        )
        if goldens is not None:
            self._compare_golden(goldens, key, checksum)
        self.inspector.wait()  # a slow file must not count as a long quantum

    def _compare_golden(self, goldens: Goldens, key: GoldenKey, checksum: int) -> None:
        """Compare a checksum with the record of its key, or create that record."""
        goldens.record(key, checksum)
        known = goldens.known(key)
        if known is None or known == checksum or key in self._deviating:
            return
        self._deviating.add(key)
        self.examiner.report_golden(checksum, known)
        self._count_errors(1, checks=1)

    def _count_errors(self, errors: int, checks: int = 0) -> None:
        """Report wrong results that the host has found."""
        self.checks += checks
        self.errors += errors
        self._ctx.report(iterations=0, checks=checks, errors=errors)

    def finish_seed(self) -> bool:
        """Check all unchecked results, the inputs and the reference.

        Returns:
            False if the workload is to return.
        """
        self.settle()
        if self._verify == "sample":
            self._checked = max(0, self._written - len(self.slots))
        if self.check_written() and self._verify != "off":
            self._examine([])
        return not self.inspector.stopped

    def check_written(self) -> bool:
        """Check all unchecked results on a settled pipeline.

        Returns:
            False if the workload is to return.
        """
        while self._verify != "off" and self._checked < self._written:
            last = min(self._written, self._checked + self._checks_per_quantum)
            checked = self._check_to(last, every=True)
            self._queue_snapshot(checked)
            self._ctx.report(iterations=0, checks=len(checked))
            self.settle()
            if self.inspector.stopped:
                return False
        return not self.inspector.stopped

    def settle(self) -> None:
        """Wait for all queued work and collect its checks."""
        with self.inspector.without_rest():
            self.inspector.wait()
            self._collect_checks(keep=0)

    # --- a quantum ---------------------------------------------------------------------------

    def step(self, at_most: int | None = None) -> bool:
        """Queue one quantum, wait for the previous one, and collect that one's checks.

        Args:
            at_most: A limit below ``per_quantum`` for the number of results.

        Returns:
            False if the workload is to return.
        """
        count = self.per_quantum if at_most is None else min(self.per_quantum, max(1, at_most))
        first = self.computed
        checked = self._queue_results(count)
        count = self.computed - first
        self._queue_snapshot(checked)
        self._ctx.report(
            iterations=count,
            flops=self.product.flops * count,
            bytes=self.product.traffic * count,
            checks=len(checked),
        )
        going = self._ctx.pace(before_rest=lambda: self._collect_checks(keep=0))
        if not going:
            return False  # the quantum in flight was not waited for; settle() does that
        self._collect_checks(keep=1)
        if self.between is not None:
            self.between()
        return True

    def compute_unpaced(self, count: int) -> int:
        """Compute ``count`` results without ``ctx.pace()``; return how many, fewer after a stop.

        As in :meth:`step`, each quantum is waited for, and its checks are collected one later.
        """
        first = self.computed
        while (left := first + count - self.computed) > 0 and not self.inspector.stopped:
            self._queue_snapshot(self._queue_results(min(self.per_quantum, left)))
            self.inspector.wait()
            self._collect_checks(keep=1)
        return self.computed - first

    def _queue_results(self, count: int) -> list[int]:
        """Queue up to ``count`` results, and return the slots whose checks were queued.

        Small kernels take as long as the host needs to launch them, on an H100 at times three times
        as long as when they were measured: what does not fit into a quantum is left to the next.
        """
        lead = _LEAD * self.per_quantum
        checked: list[int] = []
        end = time.monotonic() + self._ctx.quantum
        for number in range(count):
            if number and time.monotonic() >= end:
                break
            # The result in the slot that is overwritten ``lead`` results from now.
            checked += self._check_to(self._written + lead - len(self.slots) + 1)
            self.product.multiply(self.slots[self._written % len(self.slots)])
            self._written += 1
            self.computed += 1
        return checked

    def _check_to(self, end: int, *, every: bool = False) -> list[int]:
        """Queue the due checks of all results before number ``end``, and return their slots."""
        checked = []
        while self._checked < end:
            number, self._checked = self._checked, self._checked + 1
            if every or self._due(number):
                slot = number % len(self.slots)
                self.inspector.comparison.mark(self.slots[slot], self._mark[slot])
                checked.append(slot)
        return checked

    def _due(self, number: int) -> bool:
        """Check whether a result is to be checked; a sample covers other slots in each round."""
        if self._verify == "sample":
            return (number + number // len(self.slots)) % _ONE_IN == 0
        return self._verify == "full"

    def _queue_snapshot(self, checked: list[int]) -> None:
        """Queue a copy of all marks to the host, for the slots in ``checked``."""
        self.checks += len(checked)
        snapshot = self._free_snapshots.popleft()
        snapshot.copy_(self._marks, non_blocking=True)
        self._pending.append((snapshot, checked))

    def _collect_checks(self, keep: int) -> None:
        """Read the marks of all quanta but the last ``keep``, and examine wrong results."""
        wrong: list[int] = []
        while len(self._pending) > keep:
            snapshot, checked = self._pending.popleft()
            if bool(snapshot.any()):
                wrong += [slot for slot in checked if snapshot[slot]]
            self._free_snapshots.append(snapshot)
        if wrong:
            with self.inspector.without_rest():
                self.inspector.wait()
                self._examine([self.slots[slot] for slot in wrong])

    def _examine(self, wrong: Sequence[Tensor]) -> None:
        """Examine wrong results, inputs and reference; restart the ring if an input was wrong."""
        self.examiner.round = self.rounds
        # The next slot to be overwritten. If its own result is wrong, that is lost only when the
        # reference is wrong at the same time.
        spare = self.slots[self._written % len(self.slots)]
        with self.inspector.without_rest():
            outcome = self.examiner.examine(wrong, spare)
        self.inspector.wait()
        if outcome.errors:
            self._count_errors(outcome.errors)
        if outcome.void:
            self._restart()
        elif outcome.repaired:
            self._requeue_checks()

    def _requeue_checks(self) -> None:
        """Repeat the checks that the host has not read: the reference was repaired."""
        for snapshot, checked in self._pending:
            for slot in checked:
                self.inspector.comparison.mark(self.slots[slot], self._mark[slot])
            snapshot.copy_(self._marks, non_blocking=True)
        self.inspector.wait()

    def _restart(self) -> None:
        """Start with an empty ring; no snapshot may be in flight."""
        while self._pending:
            self._free_snapshots.append(self._pending.popleft()[0])
        self._rounds_before = self.rounds
        self._written = self._checked = 0
