"""Let the NVML calls of one process hang, as those of a broken driver do.

Python imports this module at its start. The benchmark puts this folder on PYTHONPATH, and writes
the PID of that process into a file.
"""  # noqa: INP001 - a folder for PYTHONPATH, no package

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class _Finder:
    """Finds pynvml, and makes each of its calls wait while the file has this process's PID."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find pynvml in the usual way; it is patched once it has been executed."""
        del path, target
        if name != "pynvml":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            self._patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec

    def _hangs(self) -> bool:
        try:
            return self._file.read_text() == str(os.getpid())
        except FileNotFoundError:
            return False

    def _patch(self, module: Any) -> None:
        find: Callable[[str], Callable[..., Any]] = module._nvmlGetFunctionPointer  # noqa: SLF001

        def found(symbol: str) -> Callable[..., Any]:
            call = find(symbol)

            def wait_and_call(*arguments: Any) -> Any:
                while self._hangs():
                    time.sleep(0.01)
                return call(*arguments)

            return wait_and_call

        module._nvmlGetFunctionPointer = found  # noqa: SLF001


if "BENCHMARK_HANG_FILE" in os.environ:
    sys.meta_path.insert(0, _Finder(Path(os.environ["BENCHMARK_HANG_FILE"])))
