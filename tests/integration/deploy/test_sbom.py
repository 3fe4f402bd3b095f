"""The bill of materials of an image has each package that is installed, and no other."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.harness.gpu_environment import ROOT
from tests.harness.programs import output_of, started_program, write_script

#: As dpkg-query prints them: installed, held as in images with CUDA, removed, and never installed.
PACKAGES = """\
ii  tini 0.19.0-1+b3 amd64
hi  libnccl2 2.18.3-1+cuda12.1 amd64
rc  removed 1 amd64
un  unknown   
"""  # noqa: W291


def test_held_packages_are_listed_and_broken_ones_are_not(tmp_path: Path) -> None:
    text = tmp_path / "packages"
    text.write_text(PACKAGES)
    write_script(tmp_path / "dpkg-query", f"cat {text}")
    # What is left of a distribution whose removal was cut short.
    (tmp_path / "broken-1.0.dist-info").mkdir()
    variables = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
    }
    script = ROOT / "deploy" / "docker" / "sbom.py"
    with started_program(sys.executable, script, env={**os.environ, **variables}) as process:
        listed = [part["purl"] for part in json.loads(output_of(process, 0))["components"]]
    debian = [url.partition("/")[2].partition("/")[2] for url in listed if "pkg:deb/" in url]
    assert debian == ["libnccl2@2.18.3-1%2Bcuda12.1?arch=amd64", "tini@0.19.0-1%2Bb3?arch=amd64"]
    assert not any("broken" in url or "pypi/@" in url for url in listed)
