"""The distribution of tests over the workers of pytest-xdist."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_ROOT = Path(__file__).parents[2]


class ModuleFixtureScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Run a module with module fixtures in one worker, so that they are set up once.

    Any other test runs on its own, in whichever worker is free. Marks of ``xdist_group`` would
    do, but xdist 3.8 writes them to an attribute that pytest 9.2 no longer has.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return path if _has_module_fixture(path) else nodeid


@cache
def _has_module_fixture(path: str) -> bool:
    return 'scope="module"' in (_ROOT / path).read_text()
