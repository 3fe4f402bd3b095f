"""What the core knows of burn-ins is in one package: no other rule names a plan or a phase."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sentinel

CORE = Path(sentinel.__file__).parent / "core"

#: A plan, a phase, the progress of a GPU through a plan, and what a client has asked for.
NAMED = re.compile(r"(?i)(.*_)?(plans?|phases?|burnin_run)|\.burnin")

#: What names one elsewhere, and why.
ELSEWHERE = {
    "gpu_state.py": {".burnin": "the state has the progress"},
    "state.py": {"burnin_run": "and the run"},
    "child_facts.py": {".burnin": "records the end of a stressor for a run"},
    "teardown.py": {".burnin": "says until when a stressor has failed", "in_plan": "the same"},
    "lifecycle.py": {"plan": "each failure of a plan's workload counts"},
    "node/status.py": {"Phase": "of the daemon", "_phase": "", "phase": "", ".burnin": "of a view"},
}


def names(tree: ast.AST) -> Iterator[str]:
    """Yield the names of a module, those of attributes and keyword arguments called ``.burnin``."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield ".burnin" if name == "burnin" else name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield ".burnin" if name == "burnin" else name
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                yield name
            case ast.alias(name=name):
                yield name


MODULES = [
    str(path.relative_to(CORE))
    for path in sorted(CORE.rglob("*.py"))
    if path.parent != CORE / "burnin"
]


@pytest.mark.parametrize("module", MODULES)
def test_no_rule_outside_of_the_package_names_a_plan_or_a_phase(module: str) -> None:
    tree = ast.parse((CORE / module).read_text())
    assert {name for name in names(tree) if NAMED.fullmatch(name)} == {*ELSEWHERE.get(module, ())}
