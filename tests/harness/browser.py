"""Drive a headless Chromium through its DevTools pipe, and read the web page of an API process."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.timing import TIMEOUT_S

if TYPE_CHECKING:
    from tests.harness.api_harness import ApiServer

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
#: The virtual key code of each key, and the text that it types.
KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
    "/": (191, "/"),
}


def chromium() -> str | None:
    """Find the path of a Chromium, or None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


#: The marks of tests that take the fixture ``chrome``.
NEEDS_BROWSER = [
    pytest.mark.long,
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium on this host"),
]


class Browser:
    """A running Chromium; its messages are JSON that ends with a null byte."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin.fileno(), process.stdout.fileno()
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._pages: dict[str, Page] = {}

    @contextmanager
    def page(self, width: int = 1280, height: int = 800, *, mobile: bool = False) -> Iterator[Page]:
        """Open a page with a size, and close it at the end."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        created = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        target = {"targetId": created["targetId"], "flatten": True}
        page = Page(self, self.call("Target.attachToTarget", **target)["sessionId"])
        self._pages[page.session] = page
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.resize(width, height, mobile=mobile)
        yield page
        self.call("Target.disposeBrowserContext", browserContextId=context)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method of DevTools, and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self._input, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            reply = self._receive(deadline)
            if reply.get("id") == number:
                assert "error" not in reply, (method, reply["error"])
                result: dict[str, Any] = reply["result"]
                return result

    def _receive(self, deadline: float) -> dict[str, Any]:
        """Read the next message; pass an event to its page."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select(
                [self._output], [], [], max(0.0, deadline - time.monotonic())
            )
            assert ready, "the browser does not answer"
            self._buffer += os.read(self._output, 2**20)
        data, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(data)
        page = self._pages.get(message.get("sessionId", ""))
        if page is not None and "method" in message:
            page.on_event(message["method"], message["params"])
        return message


class Page:
    """One page; ``errors`` are exceptions, violations of its policy and errors in the console.

    Failed requests do not count: some tests stop the daemon.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self.session = session
        self.errors: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of DevTools for this page, and return its result."""
        return self._browser.call(method, self.session, **params)

    def on_event(self, method: str, params: dict[str, Any]) -> None:
        """Keep an event that is an error."""
        match method:
            case "Runtime.exceptionThrown":
                self.errors.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "warning", "assert"}:
                self.errors.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["source"] != "network":
                self.errors.append(f"{params['entry']['level']}: {params['entry']['text']}")

    def resize(self, width: int, height: int, *, mobile: bool = False, scale: float = 1) -> None:
        """Change the size."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def navigate(self, url: str) -> None:
        """Open an address."""
        self.call("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """Evaluate a script, and return the value of its last expression; wait for a promise."""
        params = {"expression": script, "returnByValue": True, "awaitPromise": True}
        reply = self.call("Runtime.evaluate", **params)
        assert "exceptionDetails" not in reply, (script, reply["exceptionDetails"])
        return reply["result"].get("value")

    def wait_until(self, script: str) -> None:
        """Wait until a script evaluates to a true value."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self.evaluate(script):
            text = self.evaluate("document.body?.innerText ?? ''")
            assert time.monotonic() < deadline, (script, text, self.errors)
            time.sleep(0.02)

    def press(self, key: str, times: int = 1) -> None:
        """Press a key."""
        code, text = KEYS[key]
        params = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **params)
            self.call("Input.dispatchKeyEvent", type="keyUp", **{**params, "text": ""})

    def type_text(self, text: str) -> None:
        """Type a text into the focused element."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Save a picture of the visible part."""
        path.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Run a Chromium with a profile in ``folder``; without a sandbox, as the pages are trusted."""
    path = chromium()
    assert path
    command = [
        path,
        "--headless=new",
        "--remote-debugging-pipe",  # file descriptors 3 and 4
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--hide-scrollbars",
        f"--user-data-dir={folder}",
        "about:blank",
    ]
    pipes = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1'
    process = subprocess.Popen(
        ["/bin/sh", "-c", pipes, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        running = Browser(process)
        try:
            yield running
        finally:
            with contextlib.suppress(AssertionError, OSError):
                running.call("Browser.close")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TIMEOUT_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


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
