"""Everything that the author of a workload imports.

Importing it imports torch. A stressor does that anyway; no other process should.
"""

from sentinel.errors import ConfigError
from sentinel.protocol.stressor import Finding, FindingPlace
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verification.comparison import BitComparison, Checksum, ErrorCount

__all__ = [
    "BitComparison",
    "Checksum",
    "ConfigError",
    "ErrorCount",
    "Finding",
    "FindingPlace",
    "WorkloadContext",
]
