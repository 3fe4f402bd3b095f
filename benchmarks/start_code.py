"""A hash of the code that decides a start and its hand-over: counts of several runs add up."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import sentinel

#: The stressor, the probe, what they are told, and the way from a reading to the SIGKILL, relative
#: to the package. The rest of Sentinel decides whether a start begins, not what happens in it.
PATHS = (
    "stressor",
    "probe",
    "protocol/gpu.py",
    "protocol/shared_memory.py",
    "protocol/stressor.py",
    "core/attribution.py",
    "core/child_facts.py",
    "core/gpu_step.py",
    "core/lifecycle.py",
    "core/newcomer.py",
    "core/start_memory.py",
    "core/occupancy.py",
    "core/teardown.py",
    "supervisor/child_process.py",
    "supervisor/loop.py",
    "supervisor/probe_process.py",
    "supervisor/stressor_pool.py",
)


def start_code(package: Path | None = None) -> str:
    """Compute the hash, which comments, docstrings and blank lines do not change.

    Args:
        package: The folder of the package; the default is that of the imported one.

    Returns:
        Twelve hexadecimal digits.

    Raises:
        FileNotFoundError: A file of ``PATHS`` does not exist.
    """
    package = package or Path(sentinel.__path__[0])
    digest = hashlib.sha256()
    for name in PATHS:
        path = package / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            code = _without_docstrings(ast.parse(file.read_bytes()))
            digest.update(f"{file.relative_to(package)}\0{ast.unparse(code)}\0".encode())
    return digest.hexdigest()[:12]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # A string is a statement only to document something.
            node.body = [one for one in body if not _is_string(one)]  # type: ignore[attr-defined]
    return tree


def _is_string(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
