"""Build a whole HTML document: one file that needs no network, and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from string import Template

from sentinel.burnin.reports.markup import Markup, escape


def html_document(*, title: str, style: str, body: Markup, script: str) -> str:
    """Build the document around a body.

    Args:
        title: The title, as text.
        style: The style sheet.
        body: What it shows.
        script: The JavaScript, which the policy of the document allows by its hash.
    """
    return Template(asset(__package__, "report.html")).substitute(
        title=escape(title),
        style=re.sub(r"/\*.*?\*/\n*", "", style, flags=re.DOTALL).strip(),
        body=body,
        script=script,
        script_hash=_hash(script),
    )


def asset(package: str, name: str) -> str:
    """Read a file that lies in a package."""
    return resources.files(package).joinpath(name).read_text()


def _hash(script: str) -> str:
    """Compute the hash that allows this script, and no other one, in the page."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
