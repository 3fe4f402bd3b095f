"""Open the web page of an API process in a browser, and read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.api_harness import ApiServer
from tests.harness.browser import Browser, Page

#: Whether the page shows the present state.
LIVE = "document.body?.dataset.connection === 'live'"


@contextmanager
def opened(
    chrome: Browser, url: str, width: int = 1280, height: int = 800, *, mobile: bool = False
) -> Iterator[Page]:
    """Open the page; in the end it may have complained of nothing."""
    with chrome.page(width, height, mobile=mobile) as page:
        page.navigate(url)
        page.wait_until(LIVE)
        page.wait_until("document.querySelectorAll('.card').length > 0")
        yield page
        assert page.errors == []


def address(api: ApiServer) -> str:
    """Return the address of the page with its token."""
    return f"http://127.0.0.1:{api.port}/#token={token(api)}"


def token(api: ApiServer) -> str:
    """Read the token."""
    return Path(api.spec.token or "").read_text().strip()


def state(index: int) -> str:
    """Write a script with the state of a GPU's card."""
    return f"document.getElementById('gpu-{index}').dataset.state"


def words(index: int) -> str:
    """Write a script with the text of a GPU's card."""
    return f"document.getElementById('gpu-{index}').innerText"


def choose(page: Page, name: str, text: str) -> None:
    """Choose an option of a list by its text."""
    option = f"[...list].find((option) => option.text === '{text}')"
    changed = "list.dispatchEvent(new Event('change'))"
    page.evaluate(
        f"{{ const list = document.getElementById('{name}');"
        f" list.value = {option}.value; {changed}; }}"
    )


def cells(page: Page, table: str) -> list[list[str]]:
    """Read the rows of a table."""
    found: list[list[str]] = page.evaluate(
        f"[...document.getElementById('{table}').tBodies[0].rows]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return found
