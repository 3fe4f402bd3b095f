"""`make site` renders the documents; the site needs no server and no other host."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.harness.browser import NEEDS_BROWSER, Browser
from tests.harness.gpu_environment import ROOT
from tests.harness.programs import run_program

MKDOCS = ROOT / ".venv-site/bin/mkdocs"
ADDRESS = "https://example.org/sentinel"

pytestmark = pytest.mark.skipif(not MKDOCS.exists(), reason="`make site` installs MkDocs")


def build(root: Path, site: Path) -> Path:
    """Render the documents of a checkout; fail at a warning."""
    config = root / "docs/mkdocs/mkdocs.yml"
    words = (MKDOCS, "build", "--strict", "--config-file", config, "--site-dir", site)
    done = run_program(*words, env={"NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("site"))


def links(site: Path) -> list[tuple[Path, str]]:
    """List what the pages of documents link to and load, each with its page."""
    pages = [page for page in site.rglob("*.html") if page.parent.name != "reports"]
    return [
        (page, link)
        for page in pages
        for link in re.findall(r'<[^>]+ (?:href|src)="([^"]+)"', page.read_text())
    ]


def test_everything_that_a_page_links_to_on_the_site_is_there(site: Path) -> None:
    found = links(site)
    assert len({page for page, _ in found}) > 20
    missing = set()
    for page, link in found:
        parts = urlsplit(link)
        folder = site if page.name == "404.html" else page.parent
        if not parts.scheme and not (folder / unquote(parts.path).removeprefix("/")).exists():
            missing.add(f"{page.name}: {link}")
    assert not missing


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loads = r'<(?:script|img|link|iframe|source)\b[^>]* (?:href|src)="(?:https?:)?//[^"]*"'
    assert not [
        (page.name, load)
        for page in site.rglob("*.html")
        for load in re.findall(loads, page.read_text())
    ]


def test_files_outside_the_documents_are_links_once_the_project_has_an_address(
    tmp_path: Path,
) -> None:
    root = tmp_path / "checkout"
    root.mkdir()
    for path in ROOT.iterdir():
        if path.name not in {"docs", "pyproject.toml"}:
            (root / path.name).symlink_to(path)
    shutil.copytree(ROOT / "docs", root / "docs")
    text = (ROOT / "pyproject.toml").read_text()
    (root / "pyproject.toml").write_text(f'{text}\n[project.urls]\nRepository = "{ADDRESS}"\n')
    targets = {link for _, link in links(build(root, tmp_path / "site"))}
    assert f"{ADDRESS}/blob/HEAD/deploy/sentinel.service" in targets
    assert f"{ADDRESS}/blob/HEAD/LICENSE" in targets


class TestInBrowser:
    pytestmark = NEEDS_BROWSER

    def test_search_works_in_files_without_a_server(self, site: Path, chrome: Browser) -> None:
        with chrome.page() as page:
            page.navigate((site / "guides/daemon.html").as_uri())
            page.wait_until("document.querySelector('.md-search__input')?.isConnected")
            page.evaluate("document.getElementById('__search').click()")
            page.evaluate("document.querySelector('.md-search__input').focus()")
            page.type_text("reservation")
            # The theme reads the field when a key is released, once its script listens.
            key = "new KeyboardEvent('keyup', {key: 'ArrowRight', bubbles: true})"
            release = f"document.querySelector('.md-search__input').dispatchEvent({key})"
            found = "document.querySelectorAll('.md-search-result__item').length > 2"
            page.wait_until(f"{release} && {found}")
            assert page.errors == []
