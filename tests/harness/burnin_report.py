"""What a daemon shows of burn-ins: a report in its state folder, and the progress of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sentinel.burnin.levels import find_plan
from sentinel.burnin.run_folder import plan_object
from sentinel.protocol.views import BurninFields

ENDED = datetime.now(UTC).replace(microsecond=0) - timedelta(days=3)


def write_report(
    state: Path,
    verdicts: Mapping[str, str],
    name: str = "run-1",
    ended: datetime | None = ENDED,
    *,
    level: str = "standard",
) -> Path:
    """Write a report of a level with the verdict of each GPU, by UUID; return its path."""
    report = {
        "run": {
            "id": name,
            "plan": plan_object(find_plan(level)),
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


#: In the third of twelve phases.
PROGRESS = BurninFields(
    plan="standard",
    phase="fp16",
    number=3,
    phases=12,
    done_s=4.0,
    quota_s=9.0,
    passes=0,
    quota_passes=0,
    left_s=200.0,
    seconds=250.0,
    iterations=1,
    flops=1.0,
    bytes=1.0,
    checks=10,
    errors=0,
)
