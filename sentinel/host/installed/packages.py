"""Inspect installed packages by their files: the build of torch, the provider of ``pynvml``.

Nothing is imported for it: torch takes seconds and 200 MB, and NVML calls may hang.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

Version = tuple[int, ...]

#: NVIDIA's own distribution of the module ``pynvml``.
_BINDING = "nvidia-ml-py"

#: Where a distribution lists its files, each in its own way.
_LISTS = ("RECORD", "installed-files.txt", "SOURCES.txt")

#: From the first to the last of these drivers, the struct of a process differed under the same
#: version number, so that a binding made for any other driver reads wrong PIDs
#: (https://github.com/XuehaiPan/nvitop/pull/79).
_ODD_DRIVERS = ((535, 43), (535, 86))
#: The one binding that was made for them.
ODD_BINDING = (12, 535, 77)


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """The installed torch."""

    version: str | None
    #: The CUDA that it was built for, or None if its version file lacks it.
    cuda: str | None
    #: Whether it was built without CUDA.
    without: bool


@dataclass(frozen=True, kw_only=True)
class Bindings:
    """The provider of the module ``pynvml``."""

    #: The version of nvidia-ml-py, or None if it is not installed.
    version: str | None
    #: Other distributions with a module of that name, each with its version.
    rivals: tuple[str, ...] = ()
    #: The file that an import loads, if it is not nvidia-ml-py's.
    shadow: str | None = None


def version_of(text: str | None) -> Version:
    """Parse the numbers at the start of a version; empty if it is unknown."""
    found = re.match(r"\d+(\.\d+)*", text or "")
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def misreads(driver: Version, binding: Version) -> str | None:
    """Explain why this binding reads wrong PIDs with this driver, or return None."""
    odd_driver = _ODD_DRIVERS[0] <= driver[:2] <= _ODD_DRIVERS[1]
    if odd_driver and binding != ODD_BINDING:
        return "drivers 535.43 to 535.86 list processes in a form that it reads as wrong PIDs"
    if driver and binding == ODD_BINDING and not odd_driver:
        return "this binding was made for drivers 535.43 to 535.86 alone and reads wrong PIDs"
    return None


def binding_version() -> str | None:
    """Read the version of nvidia-ml-py, or None if it is not installed."""
    try:
        return metadata.version(_BINDING)
    except metadata.PackageNotFoundError:
        return None


def torch_build() -> TorchBuild | None:
    """Read what the installed torch was built for, or None if it is not installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.loader is None:  # a folder of that name is no package
        return None
    places = spec.submodule_search_locations
    if not places:
        return TorchBuild(version=None, cuda=None, without=False)
    try:
        text = (Path(places[0]) / "version.py").read_text()
    except OSError:
        return TorchBuild(version=None, cuda=None, without=False)
    cuda, version = (_value(name, text) for name in ("cuda", "__version__"))
    without = cuda == "None"
    return TorchBuild(version=version, cuda=None if without else cuda, without=without)


def _value(name: str, text: str) -> str | None:
    """Extract the value that a version file assigns to ``name``, without its quotes."""
    found = re.search(rf"^{name}\b[^=\n]*=[ \t]*(.+)$", text, re.MULTILINE)
    return found[1].strip().strip("'\"") if found else None


def bindings() -> Bindings:
    """Find the provider of ``pynvml``, and whether an import would load NVIDIA's own."""
    version, own, rivals = None, None, []
    for one in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower()
        files = _module_files(one)
        if name == _BINDING and version is None:  # the first on the path counts
            version = one.version
            own = Path(str(one.locate_file(files[0]))) if files else None
        elif name != _BINDING and files:
            rivals.append(f"{name} {one.version}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from version 12 on, pynvml only warns about its name
        spec = importlib.util.find_spec("pynvml")
    loaded = Path(spec.origin) if spec is not None and spec.origin else None
    other = loaded is not None and own is not None and loaded.resolve() != own.resolve()
    return Bindings(
        version=version, rivals=tuple(sorted(set(rivals))), shadow=str(loaded) if other else None
    )


def _module_files(one: metadata.Distribution) -> list[metadata.PackagePath]:
    """List the files of a distribution that are the module ``pynvml``.

    A distribution may have ten thousand files: only a list with that name is parsed.
    """
    if not any("pynvml" in (one.read_text(name) or "") for name in _LISTS):
        return []
    return [file for file in one.files or () if _is_the_module(str(file))]


def _is_the_module(file: str) -> bool:
    """Check whether a distribution's file is the module ``pynvml``, or the heart of a package."""
    return file in {"pynvml.py", "pynvml/__init__.py"}
