"""Run sentinel's command line on simulated GPUs that its probe reads through NVML.

A stressor needs a CUDA device, which a fake NVML lacks, so it uses a simulated one.
``--simulate`` applies to every process but the probe, which loads the binding of the real driver. A
GPU on which a call hung or crashed is excluded for less than the usual 10 s, which
``tests/unit/core/test_probe_supervision.py`` covers.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from tests.harness.timing import MACHINE_SLOWNESS

#: The first exclusion of a GPU: enough for a new probe to start without the identity of that GPU,
#: and for a newcomer on another one.
FIRST_EXCLUSION_S = 6.0 * MACHINE_SLOWNESS


def main() -> int:
    from sentinel.cli.main import run_command_line
    from sentinel.core.node import probe_supervision
    from sentinel.protocol.probe import ProbeSpec
    from sentinel.supervisor import discovery
    from sentinel.supervisor.probe_process import ProbeProcess

    class NvmlProbeProcess(ProbeProcess):
        def __init__(self, spec: ProbeSpec) -> None:
            super().__init__(replace(spec, simulation=None))

    probe_supervision.MIN_EXCLUSION_S = FIRST_EXCLUSION_S
    discovery.ProbeProcess = NvmlProbeProcess  # type: ignore[attr-defined]
    return run_command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
