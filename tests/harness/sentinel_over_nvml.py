"""Run sentinel's command line on simulated GPUs that its probe reads through NVML.

A stressor needs a CUDA device, which a fake NVML lacks, so it uses a simulated one.
``--simulate`` applies to every process but the probe, which loads the binding of the real driver.

Limits differ from the usual ones, which tests of the core cover. A GPU on which a call hung or
crashed is excluded for less than 10 s. What a host without processor time for a second exceeds is
longer, so that only the driver ends a stressor or replaces a probe.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from tests.harness.timing import MACHINE_SLOWNESS

#: The first exclusion of a GPU: enough for a new probe to start without the identity of that GPU,
#: and for a newcomer on another one.
FIRST_EXCLUSION_S = 6.0 * MACHINE_SLOWNESS
#: The limits of what depends on the speed of the host, in seconds: of a GPU without readings, and
#: of the other things, which no test waits for.
STALE_AFTER_S = 15.0
NEVER_S = 600.0


def main() -> int:
    from sentinel.cli.main import run_command_line
    from sentinel.config.model import Config
    from sentinel.core import newcomer
    from sentinel.core.node import probe_supervision
    from sentinel.protocol.probe import NVML, ProbeSpec
    from sentinel.supervisor import discovery, stressor_pool
    from sentinel.supervisor.probe_process import ProbeProcess

    class NvmlProbeProcess(ProbeProcess):
        def __init__(self, spec: ProbeSpec) -> None:
            super().__init__(replace(spec, driver=NVML))

    probe_supervision.MIN_EXCLUSION_S = FIRST_EXCLUSION_S
    probe_supervision.STOPPED_AFTER_S = NEVER_S
    newcomer.SELF_WATCH_TIMEOUT_S = NEVER_S
    stressor_pool.LONG_LEASE_S = NEVER_S
    Config.stale_after = STALE_AFTER_S
    discovery.ProbeProcess = NvmlProbeProcess  # type: ignore[attr-defined]
    return run_command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
