"""All checks of a host, in the order of the report."""

from __future__ import annotations

from sentinel.diagnostics.doctor.facts import HostFacts
from sentinel.diagnostics.doctor.finding import Finding
from sentinel.diagnostics.doctor.gpu_checks import judge_gpus
from sentinel.diagnostics.doctor.host_checks import judge_host
from sentinel.diagnostics.doctor.software_checks import judge_software


def diagnose(facts: HostFacts) -> tuple[Finding, ...]:
    """Run all checks: software first, then the host, then each of its GPUs."""
    return (*judge_software(facts), *judge_host(facts), *judge_gpus(facts))
