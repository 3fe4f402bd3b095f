"""Load the programs in docs/, and read what its tables say."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

from tests.harness.gpu_environment import ROOT


def document_program(name: str) -> ModuleType:
    """Load a program in docs/, which is not part of a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documented_rules() -> dict[str, str]:
    """Read the rules of docs/reference/events.md, and until when each decides, or nothing."""
    text = (ROOT / "docs/reference/events.md").read_text()
    (table,) = re.findall(r"^\| Rule \|.*\n.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    return dict(
        re.findall(r"^\| `([\w.]+)` \|.*?(?: \(\*until (.+)\*\))? \|$", table, re.MULTILINE)
    )
