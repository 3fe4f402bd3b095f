"""Run sentinel's command line on simulated GPUs that its probe reads through NVML.

A stressor needs a CUDA device, and there is none behind a pretended NVML; a simulated one it can
use. So ``--simulate`` holds for everything but the probe, which loads the real driver's binding.
And a GPU on which a call hung or crashed is left out for less long, so that tests see the end of
it; that it is 10 s, ``tests/unit/core/test_probe_supervision.py`` proves.
"""

from __future__ import annotations

import sys
from dataclasses import replace

#: How long a GPU is left out at first, in seconds: longer than a new probe takes to be at work
#: where a GPU does not say who it is, with time for a newcomer on another one.
LEFT_OUT = 6.0


def main() -> int:
    from sentinel.cli.main import run_command_line
    from sentinel.core.node import probe_supervision
    from sentinel.protocol.probe import ProbeSpec
    from sentinel.supervisor import discovery
    from sentinel.supervisor.probe_process import ProbeProcess

    class OnNvml(ProbeProcess):
        def __init__(self, spec: ProbeSpec) -> None:
            super().__init__(replace(spec, simulation=None))

    probe_supervision.FIRST_EXCLUSION = LEFT_OUT
    discovery.ProbeProcess = OnNvml  # type: ignore[attr-defined]
    return run_command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
