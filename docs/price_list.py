"""Print the price list of docs/internals/architecture.md: the code lines of each feature.

Code lines are those with a token that is neither a comment nor part of a docstring. A file counts
for the first feature that has a pattern for it; ``*`` also stands for folders.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: The patterns of each feature, below ``sentinel``; the last ones take what is left.
FEATURES: Mapping[str, str] = {
    "simulated GPUs": "*simulat*",
    "MCP server": "cli/mcp_server.py",
    "notifications": "api/notifier.py api/recipients.py",
    "Manager's routes (KeepGPU)": "api/routes/compat*",
    "metrics": "api/metric* api/counters.py",
    "`top`": "cli/tui/*",
    "doctor, install-unit, demo": "*doctor* *install_unit* cli/tools/demo.py",
    "drivers: NVML and those of packages": "probe/nvml* probe/*driver.py drivers.py",
    "history": "*history*",
    "Python client: monitor, hold, callbacks": "client/* __init__.py",
    "burn-in of many hosts, with Slurm or ClusterShell": "fleet/* *fleet*",
    "workloads and their verification: GEMM, memory test, links, self-test": (
        "*trial* *workload* *golden* *verified* *rendezvous* *acknowledgement* *last_verdicts*"
        " cli/daemon/health.py cli/daemon/known_cards.py"
        " stressor/comparison.py stressor/diagnosis.py stressor/injection.py stressor/links.py"
        " stressor/loader.py stressor/matmul.py stressor/mem* stressor/numa.py"
        " stressor/pipeline.py stressor/selftest.py stressor/sizing.py stressor/transfers.py"
    ),
    "burn-in: plans, record, checks, verdict, reports": (
        "burnin/* *burnin* config/plan.py cli/tools/check.py"
        " cli/tools/report.py *counters* checks.py diagnostics/kernel_log.py probe/xids.py web/*"
    ),
    "reservations, allocations, sessions, pauses": (
        "*reserv* *grants.py core/node/sessions.py core/node/commands.py"
        " core/node/command_result.py"
    ),
    "settings, schedules, selection of GPUs": "config/* *settings*",
    "one daemon per state: registry, locks, detaching, systemd, log": (
        "*daemon_* *daemonize* cli/daemon/start.py host/gpu_locks.py host/lock_holders.py"
        " host/log* host/paths.py host/regi* host/regular_file.py host/systemd.py"
        " host/timed_file.py host/unprivileged.py supervisor/event_log.py"
        " supervisor/single_instance.py"
    ),
    "HTTP API, access, live page": (
        "api/* protocol/api_types.py protocol/problem.py protocol/views.py"
        " supervisor/api_process.py"
    ),
    "the command line itself: options, tables, errors, completion, manual": (
        "cli/* __main__.py errors.py units.py diagnostics/*"
    ),
    "**the hand-over: probe, decision, supervisor, stressor, messages**": (
        "core/* supervisor/* probe/* stressor/* protocol/* host/*"
    ),
}


def code_lines(path: Path) -> int:
    """Count the code lines of a file."""
    text = path.read_text()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, documented) and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in blank | {tokenize.ENDMARKER}
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - docstrings)


def lines_of(folder: str) -> int:
    """Count the code lines of all files below a folder."""
    return sum(map(code_lines, (ROOT / folder).rglob("*.py")))


def prices() -> Counter[str]:
    """Count the code lines of each feature."""
    found: Counter[str] = Counter()
    for path in (ROOT / "sentinel").rglob("*.py"):
        name = str(path.relative_to(ROOT / "sentinel"))
        feature = next(
            feature
            for feature, patterns in FEATURES.items()
            if any(fnmatch(name, pattern) for pattern in patterns.split())
        )
        found[feature] += code_lines(path)
    return found


if __name__ == "__main__":
    for feature, lines in prices().most_common():
        sys.stdout.write(f"| {feature} | {lines:,} |\n")
    sys.stdout.write(f"sentinel {lines_of('sentinel'):,}, tests {lines_of('tests'):,}\n")
