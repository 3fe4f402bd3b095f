"""Everything that the author of a workload imports.

Importing it imports torch. A stressor does that anyway; no other process should.
"""

from sentinel.errors import ConfigError
from sentinel.protocol.stressor import Finding, FindingPlace
from sentinel.stressor.comparison import BitComparison, Checksum, ErrorCount
from sentinel.stressor.context import WorkloadContext

__all__ = [
    "BitComparison",
    "Checksum",
    "ConfigError",
    "ErrorCount",
    "Finding",
    "FindingPlace",
    "WorkloadContext",
]
