"""Run sentinel's command line with the driver of a package.

A stressor needs a CUDA device, which the GPUs of such a driver lack in a test, so it uses a
simulated one: ``--simulate`` applies to every process but the probe.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any


def main() -> int:
    from sentinel.cli.main import run_command_line
    from sentinel.config.specs import find_driver
    from sentinel.protocol.probe import ProbeSpec
    from sentinel.protocol.stressor import StressorSpec
    from sentinel.supervisor import bootstrap, discovery
    from sentinel.supervisor.probe_process import ProbeProcess

    driver = os.environ["OWN_DRIVER"]

    def folder(spec: ProbeSpec) -> str:
        return spec.driver.options["folder"]

    class OwnProbeProcess(ProbeProcess):
        def __init__(self, spec: ProbeSpec) -> None:
            super().__init__(replace(spec, driver=find_driver(f"{driver}:folder={folder(spec)}")))

    discovery.ProbeProcess = OwnProbeProcess  # type: ignore[attr-defined]

    def without_watch(**options: Any) -> StressorSpec:
        return StressorSpec(**options | {"self_watch": False})

    bootstrap.StressorSpec = without_watch  # type: ignore[attr-defined,assignment]
    return run_command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
