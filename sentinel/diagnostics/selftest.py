"""Prove on one GPU that flipped bits are found: a stressor runs trials under a real supervisor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from sentinel.diagnostics.trial.assessment import why_incomplete
from sentinel.diagnostics.trial.recorder import Listener, run_recorded
from sentinel.errors import ConfigError, ExitCode, IncompleteError, SelftestError, SentinelError
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import (
    ChildMessage,
    FailureKind,
    Finding,
    MemoryTarget,
    SelftestDone,
    SelftestResult,
)
from sentinel.supervisor.discovery import Options

#: The place of a trial in which nothing was flipped.
CLEAN = "clean"

_WORKLOAD = "sentinel.stressor.selftest:selftest"

#: Settings of a selftest. A person waits for it, so it starts sooner than a daemon; and results
#: next to flipped bits must not become golden checksums.
_SETTINGS: Mapping[str, Any] = {
    "memory": MemoryTarget(size=2 * 2**30),
    "goldens": "off",
    "poll": 0.2,
    "rearm": 0.1,
}


@dataclass(frozen=True, kw_only=True)
class Trials:
    """The trials to run."""

    #: How many bits to flip in each place.
    flips: int
    #: How many results to compute without a flip.
    rounds: int
    #: All that the GPU supports, if empty.
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a selftest."""

    gpu: Gpu
    #: The completed trials, in order.
    proofs: tuple[SelftestResult, ...]
    #: Why trials are missing, or None: an IncompleteError if a process needed the GPU or a signal
    #: came, a ConfigError if the GPU or torch does not support them, else a SelftestError.
    error: SentinelError | None
    code: ExitCode
    #: Whether nothing is stuck; see :func:`sentinel.supervisor.bootstrap.leave`.
    clean: bool


def run_selftest(
    options: Options, trials: Trials, report: Callable[[SelftestResult], object]
) -> Outcome:
    """Run the trials on the first selected GPU, until all are done or the GPU is needed.

    Args:
        options: The selection of GPUs and the settings, except those that a selftest sets.
        trials: The trials to run.
        report: Receives each result, in a thread of its own; what it raises is lost.

    Raises:
        SentinelError: As for :func:`sentinel.supervisor.bootstrap.supervise`: nothing was started.
    """
    config = replace(options.config, workload=_workload(trials), **_SETTINGS)
    # The loop must never wait for a terminal, so another thread reports the results. It is joined
    # at the end, when no GPU is held.
    with ThreadPoolExecutor(1, "selftest") as reporter:
        listener = _Listener(config.workload, lambda proof: reporter.submit(report, proof))
        ended, clean = run_recorded(replace(options, config=config, only_first=True), listener)
    proofs, error = tuple(listener.proofs), listener.why_early()
    (gpu,) = listener.gpus.values()
    code = ended if ended is ExitCode.UNKILLABLE else _code(proofs, error)
    return Outcome(gpu=gpu, proofs=proofs, error=error, code=code, clean=clean)


def is_well(proof: SelftestResult) -> bool:
    """Check that all flipped bits were found, or that there was no false alarm."""
    return proof.found == (0 if proof.place == CLEAN else proof.tried)


def summary(proofs: Sequence[SelftestResult]) -> str:
    """Summarise the results of all trials."""
    flipped = [proof for proof in proofs if proof.place != CLEAN]
    clean = [proof for proof in proofs if proof.place == CLEAN]
    found, tried = sum(p.found for p in flipped), sum(p.tried for p in flipped)
    alarms, results = sum(p.found for p in clean), sum(p.tried for p in clean)
    return f"{found} of {tried} flipped bits found, {alarms} false alarms in {results} results"


def _workload(trials: Trials) -> str:
    """Format the workload with its options, as ``--workload`` takes it."""
    given = {"flips": trials.flips, "rounds": trials.rounds}
    named = {"dtypes": "+".join(trials.dtypes)} if trials.dtypes else {}
    return f"{_WORKLOAD}:{','.join(f'{key}={value}' for key, value in (given | named).items())}"


def _code(proofs: Sequence[SelftestResult], error: SentinelError | None) -> ExitCode:
    """Compute the exit code; a failed trial counts, however the others went."""
    if error is not None and not isinstance(error, IncompleteError):
        return error.exit_code
    if not all(map(is_well, proofs)):
        return ExitCode.FAIL
    return error.exit_code if error is not None else ExitCode.OK


class _Listener(Listener):
    """Collects the results, and ends with the last one or with a fault that was not injected."""

    def __init__(self, workload: str, report: Callable[[SelftestResult], object]) -> None:
        super().__init__(workload)
        self.proofs: list[SelftestResult] = []
        self._report = report
        self._done = False
        self._finding: Finding | None = None

    def why_early(self) -> SentinelError | None:
        """Explain why the selftest ended before all trials were done, or return None."""
        trial = self.trial
        if self._done:
            return None
        if self._finding is not None:
            return SelftestError(_describe(self._finding))
        if trial.gpu is None and trial.interrupted is None:
            (gpu,) = self.gpus.values()
            return IncompleteError(
                f"GPU {gpu.index} is not idle: {trial.waiting or 'it was not read in time'}",
                "Choose another GPU with --gpus, or wait. Nothing was started.",
            )
        if trial.failure is not None and trial.interrupted is None:
            if trial.failure.kind == FailureKind.UNUSABLE:
                return ConfigError(trial.failure.reason)
            return SelftestError(f"the stressor failed: {trial.failure.reason}")
        why = why_incomplete(trial) or "an unlisted process took memory of the GPU"
        results = (
            f"before that, {summary(self.proofs)}" if self.proofs else "no trial was completed"
        )
        remedy = "Run it again when the GPU is idle." if trial.interrupted is None else ""
        return IncompleteError(f"the selftest is incomplete: {why}; {results}", remedy)

    def _take_message(self, message: ChildMessage) -> None:
        match message:
            case SelftestResult():
                self.proofs.append(message)
                self._report(message)
            case SelftestDone():
                self._done = True
            case Finding():
                self._finding = self._finding or message
            case _:
                super()._take_message(message)

    def _why_done(self) -> str | None:
        if self._done:
            return "all trials are done"
        return None if self._finding is None else "the GPU had a fault of its own"


def _describe(finding: Finding) -> str:
    """Describe a finding that was not injected."""
    where = f" at {finding.first}" if finding.first else ""
    dtype = f" of {finding.dtype}" if finding.dtype else ""
    return f"a {finding.place.value}{dtype} was wrong{where} although no bit was flipped in it"
