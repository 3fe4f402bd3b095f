"""Messages between the processes, and their codec; the versions of Sentinel and of its API."""

from typing import Final

__version__ = "0.3.0"

#: The version of the API's responses. Within one version, fields are added and never removed.
SCHEMA_VERSION: Final = 1
