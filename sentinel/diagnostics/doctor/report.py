"""The whole judgement of a host: what was found of it goes in, lines come out."""

from __future__ import annotations

from sentinel.doctor.cards import judge_cards
from sentinel.doctor.facts import HostFacts
from sentinel.doctor.findings import Finding
from sentinel.doctor.host import judge_host
from sentinel.doctor.software import judge_software

__all__ = ["diagnose"]


def diagnose(facts: HostFacts) -> tuple[Finding, ...]:
    """Return every line about a host: software first, then the host, then each of its GPUs."""
    return (*judge_software(facts), *judge_host(facts), *judge_cards(facts))
