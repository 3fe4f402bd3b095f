"""The whole judgement of a host: what was found of it goes in, lines come out."""

from __future__ import annotations

from sentinel.diagnostics.doctor.facts import HostFacts
from sentinel.diagnostics.doctor.finding import Finding
from sentinel.diagnostics.doctor.gpu_checks import judge_cards
from sentinel.diagnostics.doctor.host_checks import judge_host
from sentinel.diagnostics.doctor.software_checks import judge_software


def diagnose(facts: HostFacts) -> tuple[Finding, ...]:
    """Return every line about a host: software first, then the host, then each of its GPUs."""
    return (*judge_software(facts), *judge_host(facts), *judge_cards(facts))
