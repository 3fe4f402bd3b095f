"""Files that are installed beside the package, such as the systemd unit and the dashboard."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from sentinel.errors import ConfigError

#: The distribution, and the folder of its data files.
_DISTRIBUTION, _FOLDER = "gpu-sentry", "share/sentinel"


def shipped_file(name: str) -> Path:
    """Find a file of ``deploy/``, in a checkout or among the data files of the installation.

    Raises:
        ConfigError: The installation lacks it.
    """
    in_checkout = Path(__file__).resolve().parents[3] / "deploy" / name
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
