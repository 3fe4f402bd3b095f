"""A wheel has the generated and the shipped files; an editable install needs none of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from sentinel.cli.completion import completion_script
from sentinel.protocol import __version__
from tests.harness.document_programs import document_program
from tests.harness.gpu_environment import ROOT
from tests.harness.openapi_document import openapi_document
from tests.harness.programs import run_program
from tests.harness.wheels import call_hook, copy_of_the_sources

pytestmark = pytest.mark.long

#: Where each shell looks for the completion of a command.
COMPLETIONS = {
    "bash": "bash-completion/completions/sentinel",
    "zsh": "zsh/site-functions/_sentinel",
    "fish": "fish/vendor_completions.d/sentinel.fish",
}
#: The files of deploy/ in a wheel.
SHIPPED = (
    "sentinel.service",
    *(
        str(path.relative_to(ROOT / "deploy"))
        for folder in ("ansible", "docker", "grafana", "kubernetes", "prometheus", "slurm")
        for path in sorted((ROOT / "deploy" / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ),
)


def test_an_editable_install_needs_no_dependency_at_build_time(tmp_path: Path) -> None:
    source = copy_of_the_sources(tmp_path)
    assert call_hook(source, "get_requires_for_build_editable") == []
    wheel = call_hook(source, "get_requires_for_build_wheel")
    assert "fastapi>=0.115" in wheel
    assert not any(requirement.startswith("torch") for requirement in wheel)


@pytest.mark.timeout(300)
def test_a_wheel_from_the_source_distribution_has_the_generated_files(tmp_path: Path) -> None:
    source = copy_of_the_sources(tmp_path)
    archive = source / call_hook(source, "build_sdist", ".")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(tmp_path)]
    subprocess.run([*command, str(archive)], capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = {name.partition("/share/")[2]: name for name in files.namelist()}
        assert (
            files.read(names["man/man1/sentinel.1"]).decode()
            == document_program("generate").manual_page()
        )
        assert json.loads(files.read(names["doc/sentinel/openapi.json"])) == openapi_document()
        for shell, place in COMPLETIONS.items():
            assert files.read(names[place]).decode() == completion_script(shell)
        for file in SHIPPED:
            assert files.read(names[f"sentinel/{file}"]) == (ROOT / "deploy" / file).read_bytes()
        (metadata,) = (name for name in files.namelist() if name.endswith("/METADATA"))
        described = message_from_string(files.read(metadata).decode())
    check_links(str(described.get_payload()), repository=None)


def test_links_lead_to_this_version_in_a_repository() -> None:
    """The project has no public address; this one is reserved for examples (RFC 2606)."""
    repository = "https://example.org/sentinel"
    program = (
        "import sys; from pathlib import Path; import build_backend;"
        "print(build_backend.absolute_links(Path('README.md').read_text(), *sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, repository, __version__]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "docs")}
    done = run_program(*command, env=environment, cwd=ROOT, check=True)
    check_links(done.stdout, repository)


def check_links(text: str, repository: str | None) -> None:
    """Check that no link is relative, and that those to the project name its files."""
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert (len(links) > 10) == (repository is not None)
    for link in links:
        assert link.startswith(("https://", "#")), link
        if repository is not None and link.startswith(repository):
            view, version, path = link.removeprefix(f"{repository}/").split("/", 2)
            assert version == f"v{__version__}"
            assert (ROOT / path.partition("#")[0]).is_file(), link
            assert view == ("raw" if "/pictures/" in path else "blob"), link
