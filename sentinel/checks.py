"""Everything that the author of a check imports; ``examples/sentinel-check-site`` describes it.

A check runs in a process of its own after a run, on what the run has recorded.
"""

from sentinel.burnin.checks.check import (
    Judgement,
    Limit,
    Limits,
    Severity,
    Status,
    above,
    at_least,
    at_most,
    below,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.load_evidence import LoadEvidence
from sentinel.burnin.checks.own_checks import GpuCheck, NodeCheck, RunEvidence
from sentinel.burnin.record import Checksum, GpuRecord, Interruption, PhaseRecord, Sample
from sentinel.config.plan import Phase, Plan
from sentinel.protocol.counters import Counters

__all__ = [
    "Checksum",
    "Counters",
    "GpuCheck",
    "GpuRecord",
    "Interruption",
    "Judgement",
    "Limit",
    "Limits",
    "LoadEvidence",
    "NodeCheck",
    "Phase",
    "PhaseRecord",
    "Plan",
    "RunEvidence",
    "Sample",
    "Severity",
    "Status",
    "above",
    "at_least",
    "at_most",
    "below",
    "by_limits",
    "not_applicable",
    "untested",
]
