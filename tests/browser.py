"""A headless Chromium that opens one page and tells everything that the page did.

It is driven by the DevTools protocol through a pipe, which takes neither a port nor a package.
"""

from __future__ import annotations

import base64
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

NAMES = ("chromium", "chromium-browser", "google-chrome")

# In a container it may have no sandbox to make; a page of our own needs none. The rest keeps it off the network.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)

#: events in which a page complains
_COMPLAINTS = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Audits.issueAdded"}


def find() -> str | None:
    """The path of a Chromium, if one is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A page in a browser.

    Attributes:
        requests: the address of everything that was asked for.
        complaints: whatever came to the console, exceptions, and what the browser found wrong.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._rest = b""
        self._count = 0
        self._session = ""
        self.requests: list[str] = []
        self.complaints: list[dict[str, Any]] = []
        self._events: set[str] = set()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """Sends a command and waits for its answer."""
        self._count += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._count, "method": method, "params": params, **session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, file: Path) -> None:
        """Opens a file, and waits until it and all that it refers to have loaded."""
        self.send("Page.navigate", url=file.as_uri())
        while "Page.loadEventFired" not in self._events:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self.send("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def resize(self, width: int, height: int) -> None:
        """Shows the page as a screen of that size would."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True)

    def screenshot(self) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot")["data"])

    def pdf(self) -> bytes:
        """What a printer gets."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=False)["data"])

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser has said nothing for 60 seconds"
            more = os.read(self._answers, 1 << 20)
            assert more, "the browser is gone"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        method = message.get("method", "")
        self._events.add(method)
        if method == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        elif method in _COMPLAINTS:
            self.complaints.append(message["params"])
        return message


@contextmanager
def browse(chromium: str, profile: Path) -> Iterator[Page]:
    """A page of a browser, which is gone afterwards."""
    inward, commands = os.pipe()
    answers, outward = os.pipe()
    # The protocol's pipe has the numbers 3 and 4.
    shell = ["bash", "-c", f'exec "$0" "$@" 3<&{inward} 4>&{outward}']
    process = subprocess.Popen(
        [*shell, chromium, *_FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(inward, outward),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(inward)
    os.close(outward)
    try:
        page = Page(commands, answers)
        yield page
        page._session = ""
        page.send("Browser.close")
        process.wait(30)
    finally:
        process.kill()
        process.wait()
        os.close(commands)
        os.close(answers)
