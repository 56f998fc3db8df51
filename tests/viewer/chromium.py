"""Headless Chromium over its DevTools pipe: the standard library only, no driver and no open port.

The protocol's messages are JSON, each ended by a zero byte; Chromium reads them from file descriptor 3 and answers on 4
(https://chromedevtools.github.io/devtools-protocol/).
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--remote-debugging-pipe",
)  # fmt: skip
# puts the two pipes where Chromium expects them, then becomes Chromium
LAUNCH = "import os, sys; a = sys.argv; os.dup2(int(a[1]), 3); os.dup2(int(a[2]), 4); os.execv(a[3], a[3:])"
PATIENCE = 60  # seconds for any one answer, on a busy machine
# keys that type no character, and their virtual key codes
KEYS = {"Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def find() -> str | None:
    """The path of a Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a fresh Chromium. `requests` are the addresses it asked for, `errors` what went wrong in scripts."""

    def __init__(self, executable: str, profile: Path):
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        passed = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (commands, answers)]  # neither is the other's 3 or 4
        browser = [executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *map(str, passed), *browser],
            pass_fds=passed,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (commands, answers, *passed):
            os.close(fd)
        self._buffer, self._next, self._session = b"", 0, None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")
        self.resize(1440, 900)

    def close(self) -> None:
        self._session = None
        self._call("Browser.close")
        self._process.wait(PATIENCE)
        os.close(self._commands)
        os.close(self._answers)

    def open(self, address: str) -> None:
        """Goes to an address and waits until the viewer there is ready."""
        self.requests.clear()
        self.errors.clear()
        self._call("Page.navigate", url="about:blank")  # so that a new hash alone loads the page afresh
        self._call("Page.navigate", url=address)
        self.wait("location.protocol !== 'about:' && document.documentElement?.dataset.ready === 'yes'")
        self.settle()

    def run(self, script: str) -> object:
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < deadline, f"{condition} did not come true; errors: {self.errors}"
            time.sleep(0.02)

    def settle(self) -> None:
        """Waits until two frames were drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def state(self) -> dict[str, str]:
        """The data attributes of the page: what is selected and shown."""
        self.settle()
        found = self.run("({...document.documentElement.dataset})")
        assert isinstance(found, dict)
        return found

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {} if key in KEYS else {"text": key}
            code = {"windowsVirtualKeyCode": KEYS[key]} if key in KEYS else {}
            for kind in ("keyDown", "keyUp"):
                self._call("Input.dispatchKeyEvent", type=kind, key=key, **code, **(text if kind == "keyDown" else {}))

    def point(self, x: float, y: float, click: bool = False) -> None:
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point_at(self, selector: str, click: bool = False, x: float = 0.5, y: float = 0.5) -> None:
        """Moves the pointer to a place inside an element: shares of its width and height."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{element}.scrollIntoViewIfNeeded()")
        box = self.run(f"(b => [b.left, b.top, b.width, b.height])({element}.getBoundingClientRect())")
        assert isinstance(box, list)
        self.point(box[0] + x * box[2], box[1] + y * box[3], click)

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def scheme(self, name: str) -> None:
        """Prefers "light" or "dark"."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])
        self.settle()

    def cut_network(self, cut: bool) -> None:
        speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self._call("Network.emulateNetworkConditions", offline=cut, **speed)

    def screenshot(self, path: Path) -> None:
        data = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=False)["data"]
        path.write_bytes(base64.b64decode(data))

    def _call(self, method: str, **params: object) -> dict:
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._next:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _read(self) -> dict:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE)
            chunk = os.read(self._answers, 1 << 20) if ready else b""
            assert chunk, "Chromium does not answer"
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(message["params"]["exceptionDetails"])[:500])
        if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.errors.append(message["params"]["entry"]["text"])
        return message
