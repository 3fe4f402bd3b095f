"""Prove on one GPU that flipped bits are found: a stressor tries it, under a real supervisor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from sentinel.diagnostics.trial.assessment import why_incomplete
from sentinel.diagnostics.trial.recorder import Listener, run_heard
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

_WORKLOAD = "sentinel.stressor.verification.selftest:selftest"

#: What is set for it. A person looks on, so it begins sooner than a sentinel that runs for months;
#: and what is computed beside flipped bits is no record for others.
_SET: Mapping[str, Any] = {
    "memory": MemoryTarget(size=2 * 2**30),
    "goldens": "off",
    "poll": 0.2,
    "rearm": 0.1,
}


@dataclass(frozen=True, kw_only=True)
class Trials:
    """What is to be tried: ``flips`` bits in each place, ``rounds`` results with none.

    No ``dtypes`` are all that the GPU can do.
    """

    flips: int
    rounds: int
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a selftest of ``gpu`` went.

    ``proofs`` are the trials that came to their end, in their order. ``error`` is why these are not
    all, if so: an IncompleteError where others needed the GPU or a signal came, a ConfigError where
    the GPU or its torch cannot do what was asked, else a SelftestError. ``code`` is what it all
    comes to, and ``clean`` whether nothing of ours is stuck, both for
    :func:`sentinel.supervisor.bootstrap.leave`.
    """

    gpu: Gpu
    proofs: tuple[SelftestResult, ...]
    error: SentinelError | None
    code: ExitCode
    clean: bool


def run_selftest(
    options: Options, trials: Trials, tell: Callable[[SelftestResult], object]
) -> Outcome:
    """Run the trials on the first GPU that is meant, until all are told or the GPU is needed.

    Args:
        options: Which GPUs are meant, and how the supervisor is set, but for what a selftest sets.
        trials: What is to be tried.
        tell: Called with each as it is known, in a thread of its own; what it raises is lost.

    Raises:
        SentinelError: As for :func:`sentinel.supervisor.bootstrap.supervise`: nothing was started.
    """
    config = replace(options.config, workload=_workload(trials), **_SET)
    # The loop must never wait for a terminal, so another thread tells of the proofs. That one is
    # waited for in the end, when nothing is held any more.
    with ThreadPoolExecutor(1, "selftest") as teller:
        listener = _Listener(config.workload, lambda proof: teller.submit(tell, proof))
        ended, clean = run_heard(replace(options, config=config, only_first=True), listener)
    proofs, error = tuple(listener.proofs), listener.why_early()
    (gpu,) = listener.gpus.values()
    code = ended if ended is ExitCode.UNKILLABLE else _code(proofs, error)
    return Outcome(gpu=gpu, proofs=proofs, error=error, code=code, clean=clean)


def is_well(proof: SelftestResult) -> bool:
    """Return whether all that was flipped was found, or nothing where nothing was."""
    return proof.found == (0 if proof.place == CLEAN else proof.tried)


def summary(proofs: Sequence[SelftestResult]) -> str:
    """Return in a few words what was found in all trials together."""
    flipped = [proof for proof in proofs if proof.place != CLEAN]
    clean = [proof for proof in proofs if proof.place == CLEAN]
    found, tried = sum(p.found for p in flipped), sum(p.tried for p in flipped)
    alarms, results = sum(p.found for p in clean), sum(p.tried for p in clean)
    return f"{found} of {tried} flipped bits found, {alarms} false alarms in {results} results"


def _workload(trials: Trials) -> str:
    """Return what is run, as ``--workload`` takes it."""
    given = {"flips": trials.flips, "rounds": trials.rounds}
    named = {"dtypes": "+".join(trials.dtypes)} if trials.dtypes else {}
    return f"{_WORKLOAD}:{','.join(f'{key}={value}' for key, value in (given | named).items())}"


def _code(proofs: Sequence[SelftestResult], error: SentinelError | None) -> ExitCode:
    """Return the exit code; a trial that failed counts, however the others went."""
    if error is not None and not isinstance(error, IncompleteError):
        return error.exit_code
    if not all(map(is_well, proofs)):
        return ExitCode.FAIL
    return error.exit_code if error is not None else ExitCode.OK


class _Listener(Listener):
    """Keeps what was proved, and ends it with the last proof or a fault that nobody planted."""

    def __init__(self, workload: str, tell: Callable[[SelftestResult], object]) -> None:
        super().__init__(workload)
        self.proofs: list[SelftestResult] = []
        self._tell = tell
        self._proved = False
        self._finding: Finding | None = None

    def why_early(self) -> SentinelError | None:
        """Return why it ended before all was proved, if it did; for when it is over."""
        trial = self.trial
        if self._proved:
            return None
        if self._finding is not None:
            return SelftestError(_describe(self._finding))
        if trial.gpu is None and trial.interrupted is None:
            (gpu,) = self.gpus.values()
            return IncompleteError(
                f"GPU {gpu.index} is not idle: {trial.waiting or 'it was not read in time'}",
                "Choose another one with --gpu, or wait: nothing was started.",
            )
        if trial.failure is not None and trial.interrupted is None:
            if trial.failure.kind == FailureKind.UNUSABLE:
                return ConfigError(trial.failure.reason)
            return SelftestError(f"the stressor failed: {trial.failure.reason}")
        why = why_incomplete(trial) or "somebody came to the GPU who is not listed"
        told = f"until then {summary(self.proofs)}" if self.proofs else "nothing was proved"
        remedy = "Run it again when the GPU is idle." if trial.interrupted is None else ""
        return IncompleteError(f"the selftest was not finished: {why}; {told}", remedy)

    def _hear_message(self, message: ChildMessage) -> None:
        match message:
            case SelftestResult():
                self.proofs.append(message)
                self._tell(message)
            case SelftestDone():
                self._proved = True
            case Finding():
                self._finding = self._finding or message
            case _:
                super()._hear_message(message)

    def _why_done(self) -> str | None:
        if self._proved:
            return "all trials were told"
        return None if self._finding is None else "the GPU was wrong of its own"


def _describe(finding: Finding) -> str:
    """Return a finding that nobody planted, in words."""
    where = f" at {finding.first}" if finding.first else ""
    dtype = f" of {finding.dtype}" if finding.dtype else ""
    return f"a {finding.place.value}{dtype} was wrong{where}, and nothing had been flipped in it"
