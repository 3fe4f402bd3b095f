"""The report of a burn-in in a state folder, as far as its verdicts are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

ENDED = datetime.now(UTC).replace(microsecond=0) - timedelta(days=3)


def write_report(
    state: Path, verdicts: Mapping[str, str], name: str = "run-1", ended: datetime | None = ENDED
) -> Path:
    """Write a report with the verdict of each GPU, by UUID; return its path."""
    report = {
        "run": {
            "id": name,
            "plan": {"name": "standard"},
            "ended": None if ended is None else ended.isoformat(),
        },
        "gpus": [
            {
                "uuid": uuid,
                "verdict": verdict,
                "index": index,
                "model": "NVIDIA H200",
                "serial": None,
            }
            for index, (uuid, verdict) in enumerate(verdicts.items())
        ],
    }
    path = state / "runs" / name / "report.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(report))
    return path
