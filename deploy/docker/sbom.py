"""Print what an image contains as CycloneDX 1.6: its Python distributions and Debian packages.

It runs in the image, with nothing but Python:

    docker run --rm -i --entrypoint python3 IMAGE - < deploy/docker/sbom.py > sbom.json
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import distributions, version
from typing import Any
from urllib.parse import quote


def component(name: str, version: str, kind: str, arch: str = "") -> dict[str, str]:
    """Describe a package; its package URL is its identity."""
    url = f"pkg:{kind}/{quote(name)}@{quote(version, safe='')}"
    url += f"?arch={arch}" if arch else ""
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def components() -> Iterator[dict[str, str]]:
    """Yield all packages; of a distribution that is there twice, the one that Python imports."""
    seen = set()
    for found in distributions():
        # Of a package whose removal was cut short, pip knows no name either.
        name = re.sub(r"[-_.]+", "-", found.metadata.get("Name") or "").lower()
        if name and name not in seen:
            seen.add(name)
            yield component(name, found.version, "pypi")
    if not shutil.which("dpkg-query"):
        return
    form = "${db:Status-Abbrev} ${Package} ${Version} ${Architecture}\n"
    words = ["dpkg-query", "--show", f"--showformat={form}"]
    system = platform.freedesktop_os_release()["ID"]
    for line in subprocess.check_output(words, text=True).splitlines():
        status, *package, arch = line.split()
        if status[1] == "i":  # the first letter is "h" for a package that keeps its version
            yield component(*package, f"deb/{system}", arch)


def bill() -> dict[str, Any]:
    """Build the document."""
    subject = {"type": "container", "name": "sentinel", "version": version("gpu-sentry")}
    made = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": made, "component": subject},
        "components": sorted(components(), key=lambda one: one["purl"]),
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
