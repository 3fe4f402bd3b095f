"""All checks of a node and of a burn-in, in the order of the report."""

from __future__ import annotations

from sentinel.burnin.checks import (
    growth_checks,
    load_checks,
    measured_link_checks,
    peer_checks,
    xid_checks,
)
from sentinel.burnin.checks.check import Table
from sentinel.burnin.checks.node_checks import MOMENT

CHECKS = Table(
    MOMENT,
    growth_checks.TABLE,
    load_checks.TABLE,
    peer_checks.TABLE,
    measured_link_checks.TABLE,
    xid_checks.TABLE,
)
