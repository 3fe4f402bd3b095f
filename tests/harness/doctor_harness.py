"""Runs of ``sentinel doctor``, and facts about a healthy host with two GPUs to vary."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

from sentinel.diagnostics.doctor_facts import DriverFacts, Folder, GpuFacts, HostFacts, Room, Unread
from sentinel.host.packages import Bindings, TorchBuild
from tests.harness.programs import run_program

GIB = 2**30
GPU = GpuFacts(
    index=0,
    uuid="GPU-0",
    name="NVIDIA H200",
    node="/dev/nvidia0",
    memory=(2**37,),
    persistence=(1,),
    compute_mode=(0,),
    mig=(0, 0),
    display=(0,),
    ecc=(1, 1),
    volatile=(0,),
    aggregate=(0,),
    remapped=(0, 0, 0, 0),
    retiring=Unread(),
    compute=(),
    mps=(),
)
HOST = HostFacts(
    driver=DriverFacts(version="580.159", cuda=(13000,)),
    gpus=(GPU, replace(GPU, index=1, uuid="GPU-1", node="/dev/nvidia1")),
    usable_gpus=2,
    bindings=Bindings(version="13.615.71"),
    torch=TorchBuild(version="2.11.0+cu130", cuda="13.0", without=False),
    folders=(Folder(path="/run/lock/sentinel"), Folder(path="/tmp/sentinel-locks")),  # noqa: S108
    room=Room(available=64 * GIB, where="MemAvailable"),
)
NO_DRIVER = DriverFacts(missing="there is no NVIDIA driver here")
FAILED = Unread(why="no permission")


def with_gpu(**changes: Any) -> HostFacts:
    """Change the second GPU of the healthy host."""
    return replace(HOST, gpus=(GPU, replace(HOST.gpus[1], **changes)))


def doctor(*arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run ``sentinel doctor``; return its exit code, output and errors."""
    words = [sys.executable, "-m", "sentinel", "doctor", *arguments]
    done = run_program(*words, env={**os.environ, **variables})
    return done.returncode, done.stdout, done.stderr


def rows(output: str) -> dict[str, dict[str, Any]]:
    """Parse the JSON report; return the last line of each check."""
    body = json.loads(output)
    assert body.keys() == {"schema_version", "verdict", "lines"}
    for row in body["lines"]:
        assert row.keys() == {"check", "gpu", "level", "found", "means", "do"}
    return {row["check"]: row for row in body["lines"]}
