"""Read the tables of data that come with Sentinel, as TOML beside the code that uses them."""

from __future__ import annotations

import pkgutil
import tomllib
from typing import Any


def shipped_table(package: str, name: str) -> dict[str, Any]:
    """Parse a file of a package."""
    return tomllib.loads((pkgutil.get_data(package, name) or b"").decode())
