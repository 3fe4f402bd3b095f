"""What is installed: packages, torch, and the files that come with Sentinel."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import warnings
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sentinel.errors import ConfigError

Version = tuple[int, ...]

#: NVIDIA's own distribution of the module ``pynvml``.
_BINDING = "nvidia-ml-py"

#: Where a distribution lists its files, each in its own way.
_LISTS = ("RECORD", "installed-files.txt", "SOURCES.txt")

#: The files that are the module ``pynvml``, or the heart of a package.
_MODULE = {"pynvml.py", "pynvml/__init__.py"}

#: From the first to the last of these drivers, the struct of a process differed under the same
#: version number, so that a binding made for any other driver reads wrong PIDs
#: (https://github.com/XuehaiPan/nvitop/pull/79).
_ODD_DRIVERS = ((535, 43), (535, 86))
#: The one binding that was made for them.
ODD_BINDING = (12, 535, 77)

#: By the oldest driver, newest first: the index with torch's builds, and the requirement.
BUILDS: tuple[tuple[Version, str, str], ...] = (
    ((580,), "https://download.pytorch.org/whl/cu130", "torch"),
    ((525,), "https://download.pytorch.org/whl/cu126", "torch"),
    ((450, 80), "https://download.pytorch.org/whl/cu118", "torch"),
)

#: Where torch's own selector is, for a driver that is unknown.
_SELECTOR = "https://pytorch.org/get-started/locally/"

#: The distribution, and the folder of its data files.
_DISTRIBUTION, _FOLDER = "gpu-sentry", "share/sentinel"


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
    for distribution in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        files = _module_files(distribution)
        if name == _BINDING and version is None:  # the first on the path counts
            version = distribution.version
            own = Path(str(distribution.locate_file(files[0]))) if files else None
        elif name != _BINDING and files:
            rivals.append(f"{name} {distribution.version}")
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
    return [file for file in one.files or () if str(file) in _MODULE]


@dataclass(frozen=True, kw_only=True)
class Installer:
    """What installs packages for the Python that runs Sentinel."""

    #: The path of that Python.
    python: str = "python"
    #: Whether its environment has pip; those of uv have none.
    pip: bool = True

    def command(self, requirement: str, index: str, *, replace: bool) -> str:
        """Return the command that installs a package from an index, instead of another build.

        Builds differ in their local version alone, so a plain installation keeps the present one.
        """
        python = shlex.quote(self.python)
        if not self.pip:
            instead = f" --reinstall-package {requirement}" if replace else ""
            return f"uv pip install --python {python}{instead} {requirement} --index-url {index}"
        remove = f"{python} -m pip uninstall --yes {requirement} && " if replace else ""
        return f"{remove}{python} -m pip install {requirement} --index-url {index}"


def installer() -> Installer:
    """Find out what installs packages for this Python."""
    return Installer(python=sys.executable, pip=importlib.util.find_spec("pip") is not None)


def how_to_install(driver: str | None, tool: Installer, *, replace: bool = False) -> str:
    """Return a sentence with the command that installs a torch for a driver.

    Args:
        driver: The version of the driver, such as ``"580.65.06"``, or None if it is unknown.
        tool: What installs packages.
        replace: Whether another build of torch is installed.
    """
    version = version_of(driver)
    for oldest, index, requirement in BUILDS:
        if version >= oldest:
            return f"Run: {tool.command(requirement, index, replace=replace)}"
    if version:
        return "No build of torch 2.6 or newer runs on this driver: install driver 525 or newer."
    return f"Install a CUDA build of torch; {_SELECTOR} has the command."


def shipped_file(name: str) -> Path:
    """Find a file of ``deploy/``, in a checkout or among the data files of the installation.

    Raises:
        ConfigError: The installation lacks it.
    """
    in_checkout = Path(__file__).resolve().parents[2] / "deploy" / name
    if in_checkout.is_file():
        return in_checkout
    try:
        files = metadata.files(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if str(file).endswith(f"{_FOLDER}/{name}"):
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path
    raise ConfigError(
        f"this installation lacks {_FOLDER}/{name}", "Install sentinel with pip, uv, or pipx."
    )
