"""What a daemon knows of before: readings of a GPU, and where its temperature went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from sentinel.client.verbs import Client

__all__ = ["history", "trend"]


def history(client: Client, gpu: str | int, minutes: float) -> tuple[Mapping[str, Any], ...]:
    """Return the readings of a GPU in the last minutes, the oldest first."""
    asked = urlencode({"gpu": gpu, "since": f"{round(60 * minutes)}s"})
    answer = client.request("GET", f"/v1/history/readings?{asked}")
    return tuple(answer.get("readings", ()))


def trend(client: Client, gpu: str | int, minutes: int) -> Mapping[str, Any]:
    """Return where the temperature of a GPU went in the last minutes."""
    path = f"/v1/gpus/{quote(str(gpu), safe='')}/trend?minutes={minutes}"
    return client.request("GET", path)
