"""Hooks of MkDocs: documents of the repository become pages of the site, and links as on GitHub.

The documents are written for GitHub: they link to any file of the repository, and headings get
anchors by its rule.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from xml.etree.ElementTree import Element, SubElement

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from markdown.util import AtomicString
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

#: Documents outside docs/ that are pages of the site.
PROJECT = {
    "README.md": "project/overview.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
}
_SOURCES = {page: source for source, page in PROJECT.items()}


class GitHubLike(Treeprocessor):
    """Direct the links of one page to pages of the site, or to files of the repository.

    Without an address of the repository, such a link becomes a text that shows the file's path.
    """

    page: str
    files: Files
    repository: str | None

    def run(self, root: Element) -> None:
        """Change the links and pictures of a page, and code in its tables."""
        for cell in root.iter("td"):
            for code in cell.iter("code"):
                _unescape(code)
        for element in root.iter():
            for name in ("href", "src"):
                if name in element.attrib:
                    self._direct(element, name)

    def _direct(self, element: Element, name: str) -> None:
        link = urlsplit(element.attrib[name])
        if link.scheme or link.netloc or not link.path:
            return
        source = _SOURCES.get(self.page, f"docs/{self.page}")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link.path))
        page = PROJECT.get(path, path.removeprefix("docs/"))
        file = self.files.get_file_from_path(page)
        if file is not None and not file.inclusion.is_excluded():
            folder = posixpath.dirname(self.page)
            element.attrib[name] = link._replace(path=posixpath.relpath(page, folder)).geturl()
        elif path.startswith("../") or not (ROOT / path).exists():
            pass  # MkDocs reports it
        elif self.repository is not None:
            there = link._replace(path=f"/blob/HEAD/{quote(path)}").geturl()
            element.attrib[name] = self.repository + there
        else:
            del element.attrib[name]
            element.tag = "abbr"
            element.attrib["title"] = f"{path} in the repository"


def _unescape(code: Element) -> None:
    """Remove the escapes of bars, and allow breaks in the name of a test, which is long."""
    text = (code.text or "").replace(r"\|", "|")
    parts = re.split(r"(?<=[/:_])(?=\w)", text) if "::" in text else [text]
    code.text = AtomicString(parts[0])
    for part in parts[1:]:
        SubElement(code, "wbr").tail = AtomicString(part)


class _Links(Extension):
    """The links of the page that is rendered at the moment; MkDocs renders one after another."""

    def __init__(self) -> None:
        self.processor = GitHubLike()

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name is Markdown's
        """Run after the links are parsed, and before MkDocs checks them."""
        self.processor.md = md
        md.treeprocessors.register(self.processor, "repository links", 5)


_LINKS = _Links()
_ANCHORS: Counter[str] = Counter()


def anchor(heading: str, separator: str) -> str:
    """Return the anchor of a heading as GitHub makes it: the second one of a page ends in -1."""
    plain = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)
    count = _ANCHORS[plain]
    _ANCHORS[plain] += 1
    return f"{plain}-{count}" if count else plain


def on_config(config: MkDocsConfig) -> None:
    """Set what the configuration file cannot name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    _LINKS.processor.repository = project.get("urls", {}).get("Repository")
    config.markdown_extensions.append(_LINKS)
    config.mdx_configs["toc"]["slugify"] = anchor


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Add the documents outside docs/."""
    for source, page in PROJECT.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Prepare the conversion of a page.

    On GitHub, an item of a list may follow a code block of the former item without a blank line.
    """
    _ANCHORS.clear()
    _LINKS.processor.page = page.file.src_uri
    _LINKS.processor.files = files
    return re.sub(r"^( +```\n)(?=- |\d+\. )", r"\1\n", markdown, flags=re.MULTILINE)
