"""The main loop of a process of clients: run them, and print what they have seen."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any


async def run_clients(
    clients: Iterable[Coroutine[Any, Any, None]], seen: Callable[[], Mapping[str, object]]
) -> None:
    """Run clients until the benchmark ends this process.

    Args:
        clients: The clients; none of them ends without an error.
        seen: Returns the fields to print each second.
    """
    tasks = [asyncio.create_task(client) for client in clients]
    began = time.monotonic()
    print(json.dumps({"ready": True}), flush=True)
    while True:
        await asyncio.sleep(1.0)
        print(json.dumps({"s": time.monotonic() - began, **seen()}), flush=True)
        for task in tasks:
            if task.done():
                task.result()  # an error of the benchmark ends it
