"""Run sentinel's command line on simulated GPUs that its probe reads through NVML.

A stressor needs a CUDA device, and there is none behind a pretended NVML; a simulated one it can
use. So ``--simulate`` holds for everything but the probe, which loads the real driver's binding.
"""

from __future__ import annotations

import sys
from dataclasses import replace


def main() -> int:
    from sentinel import discovery
    from sentinel.children import ProbeProcess
    from sentinel.cli.main import run_command_line
    from sentinel.messages import ProbeSpec

    class OnNvml(ProbeProcess):
        def __init__(self, spec: ProbeSpec) -> None:
            super().__init__(replace(spec, simulation=None))

    discovery.ProbeProcess = OnNvml  # type: ignore[attr-defined]
    return run_command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
