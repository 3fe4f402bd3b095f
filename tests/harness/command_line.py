"""Run commands of `sentinel` in the process of a test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from sentinel.cli.main import run_command_line


@dataclass(frozen=True)
class CommandOutput:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class CommandLine:
    """Runs commands, each of which must end with the expected exit code."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str, code: int | None = 0) -> CommandOutput:
        """Run a command and return its output; with None, any exit code is expected."""
        found = run_command_line(list(words))
        out, err = self.capsys.readouterr()
        assert code in {found, None}, f"{out}{err}"
        return CommandOutput(found, out, err)

    def json(self, *words: str, code: int = 0) -> Any:
        """Run a command and parse the object that it prints."""
        return json.loads(self(*words, code=code).out)
