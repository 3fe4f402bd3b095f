"""A real headless Chromium, told what to do over its DevTools pipe."""

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
from typing import Any

from tests.harness.timing import TIMEOUT_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
#: Keys as DevTools wants them: a virtual key code, and the text that it types.
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), "ArrowDown": (40, "")}


def chromium() -> str | None:
    """Return the path of a Chromium, where there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One Chromium; what it says is null-ended JSON, and so is what it is told."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._into, self._out = process.stdin.fileno(), process.stdout.fileno()
        self._numbers = itertools.count(1)
        self._left = b""
        self._pages: dict[str, Page] = {}

    @contextmanager
    def page(self, width: int = 1280, height: int = 800, *, mobile: bool = False) -> Iterator[Page]:
        """Open a page of this size, and close it at the end."""
        context = self.tell("Target.createBrowserContext")["browserContextId"]
        made = self.tell("Target.createTarget", url="about:blank", browserContextId=context)
        target = {"targetId": made["targetId"], "flatten": True}
        page = Page(self, self.tell("Target.attachToTarget", **target)["sessionId"])
        self._pages[page.session] = page
        for domain in ("Page", "Runtime", "Log"):
            page.tell(f"{domain}.enable")
        page.resize(width, height, mobile=mobile)
        yield page
        self.tell("Target.disposeBrowserContext", browserContextId=context)

    def tell(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Have it do something, and return its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self._into, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + TIMEOUT_S
        while True:
            said = self._read(until)
            if said.get("id") == number:
                assert "error" not in said, (method, said["error"])
                result: dict[str, Any] = said["result"]
                return result

    def _read(self, until: float) -> dict[str, Any]:
        """Return the next thing that it says, after its page has heard it."""
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._out], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser says nothing"
            self._left += os.read(self._out, 2**20)
        data, _, self._left = self._left.partition(b"\0")
        said: dict[str, Any] = json.loads(data)
        page = self._pages.get(said.get("sessionId", ""))
        if page is not None and "method" in said:
            page.hear(said["method"], said["params"])
        return said


class Page:
    """One page; ``complaints`` are its errors: exceptions, violations of its policy, the console's.

    Requests that failed are none: a daemon that is away is what is tested.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self.session = session
        self.complaints: list[str] = []

    def tell(self, method: str, **params: Any) -> dict[str, Any]:
        """Have it do something, and return its answer."""
        return self._browser.tell(method, self.session, **params)

    def hear(self, method: str, params: dict[str, Any]) -> None:
        """Keep what it complains about."""
        match method:
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "warning", "assert"}:
                self.complaints.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["source"] != "network":
                self.complaints.append(f"{params['entry']['level']}: {params['entry']['text']}")

    def resize(self, width: int, height: int, *, mobile: bool = False, scale: float = 1) -> None:
        """Give it another size."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}
        self.tell("Emulation.setDeviceMetricsOverride", **size)

    def go(self, url: str) -> None:
        """Open an address."""
        self.tell("Page.navigate", url=url)

    def get(self, script: str) -> Any:
        """Return what a script's last expression is, once it is known."""
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = self.tell("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in answer, (script, answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, script: str, within: float = TIMEOUT_S) -> float:
        """Wait until a script says something true; return how many seconds that took."""
        began = time.monotonic()
        while not self.get(script):
            text = self.get("document.body?.innerText ?? ''")
            assert time.monotonic() - began < within, (script, text, self.complaints)
            time.sleep(0.02)
        return time.monotonic() - began

    def press(self, key: str, times: int = 1) -> None:
        """Press a key."""
        code, text = KEYS[key]
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
        for _ in range(times):
            self.tell("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **about)
            self.tell("Input.dispatchKeyEvent", type="keyUp", **{**about, "text": ""})

    def write(self, text: str) -> None:
        """Type a text where the focus is."""
        self.tell("Input.insertText", text=text)

    def shoot(self, path: Path) -> None:
        """Take a picture of what is in sight."""
        path.write_bytes(
            base64.b64decode(self.tell("Page.captureScreenshot", format="png")["data"])
        )


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Run a Chromium with a profile of its own, without a sandbox, since the pages are ours."""
    found = chromium()
    assert found
    words = [
        found,
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
        ["/bin/sh", "-c", pipes, "sh", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        one = Browser(process)
        try:
            yield one
        finally:
            with contextlib.suppress(AssertionError, OSError):
                one.tell("Browser.close")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TIMEOUT_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
