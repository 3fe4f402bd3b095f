"""The manifests for Kubernetes as kustomize builds them, and the commands in them."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from typing import Any

import click
import pytest

from sentinel.cli.main import sentinel_command
from tests.harness.gpu_environment import ROOT
from tests.harness.timing import TIMEOUT_S

yaml = pytest.importorskip("yaml")

DEPLOY = ROOT / "deploy" / "kubernetes"
RENDERED = (
    *("base", "acceptance", "node-problem-detector"),
    *("examples/overlay", "examples/acceptance-overlay"),
)
KUBECTL = shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="needs kubectl")


@cache
def rendered(folder: str) -> str:
    """Build the manifests of a folder, relative to deploy/kubernetes or absolute."""
    command = ["kubectl", "kustomize", str(DEPLOY / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(folder: str, kind: str) -> list[dict[str, Any]]:
    """Build the manifests of a folder; return the objects of one kind."""
    return [one for one in yaml.safe_load_all(rendered(folder)) if one["kind"] == kind]


def check_words(words: list[str]) -> None:
    """Check that a command of sentinel exists and takes these options."""
    context = click.Context(sentinel_command, info_name="sentinel")
    name, command, rest = sentinel_command.resolve_command(context, words[1:])
    assert command is not None
    command.make_context(name, rest, parent=context)
