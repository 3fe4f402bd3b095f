"""The verdict of a burn-in in one JSON object that fits into a container's termination message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: The most that Kubernetes keeps of a termination message, in bytes
#: (kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure).
MAX_BYTES = 4096
SCHEMA_VERSION = 1
#: The lengths to which reasons are cut, in characters, until the object fits.
_REASON_CHARACTERS = (200, 80, 30, 0)
#: The verdicts of GPUs that need no attention, which are left out first.
_GOOD = frozenset({"PASS", "N/A"})


def verdict_summary(report: Mapping[str, Any], most: int = MAX_BYTES) -> str:
    """Build the summary of a report; the more GPUs there are, the less it says about each.

    It always has the verdict of the node, the number of GPUs with each verdict and, as far as they
    fit, the GPUs that did not pass, FAIL first. `gpus_left_out` counts those that did not fit.

    Args:
        report: The report, as `report.json` has it.
        most: The limit of its length in UTF-8, in bytes.
    """
    gpus = sorted(report["gpus"], key=lambda gpu: (gpu["verdict"] != "FAIL", gpu["index"]))
    bad = [gpu for gpu in gpus if gpu["verdict"] not in _GOOD]
    for chosen in (gpus, bad):
        for characters in _REASON_CHARACTERS:
            text = _text(report, chosen, characters)
            if len(text) <= most:
                return text
    # Hundreds of faulty GPUs: the first that fit, found by halving.
    low, high = 0, len(bad)
    while low < high:
        middle = (low + high + 1) // 2
        if len(_text(report, bad[:middle], 0)) <= most:
            low = middle
        else:
            high = middle - 1
    return _text(report, bad[:low], 0)


def _text(report: Mapping[str, Any], gpus: list[Mapping[str, Any]], characters: int) -> str:
    """Write the summary with these GPUs; ASCII, so that a character is a byte."""
    run = report["run"]
    return json.dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "node": report["node"]["hostname"],
            "run": run["id"],
            "plan": run["plan"]["name"],
            "ended": run["ended"],
            "verdict": report["verdict"],
            "summary": {name: count for name, count in report["summary"].items() if count},
            "gpus": [_gpu(gpu, characters) for gpu in gpus],
            "gpus_left_out": len(report["gpus"]) - len(gpus),
        },
        separators=(",", ":"),
    )


def _gpu(gpu: Mapping[str, Any], characters: int) -> dict[str, Any]:
    """Describe one GPU, with its first reason cut to a length."""
    found = {name: gpu[name] for name in ("index", "uuid", "serial", "verdict")}
    reasons = gpu["reasons"]
    if reasons and characters:
        first = str(reasons[0])
        cut = first if len(first) <= characters else f"{first[: characters - 3]}..."
        found |= {"reason": cut, "reasons": len(reasons)}
    return found
