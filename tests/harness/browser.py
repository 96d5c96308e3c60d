"""A headless Chromium, driven by the DevTools protocol through two pipes: no driver, no library."""

import base64
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

NAMES = ["chromium", "chromium-browser", "google-chrome", "chrome"]


class Missing(RuntimeError):
    """There is no browser, and none could be installed."""


def find():
    """The browser's path: LOCKSTEP_TEST_BROWSER, or one that is installed, or Debian's, which is
    installed where this process may. A machine without one fails the test; it does not skip it."""
    named = os.environ.get("LOCKSTEP_TEST_BROWSER")
    if named:
        return named
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    how = "install Debian's chromium (apt-get install chromium), or name one in LOCKSTEP_TEST_BROWSER"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Missing(f"there is no headless browser here, and this is not root with apt-get: {how}")
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
    for command in (["apt-get", "update"], install):
        ran = subprocess.run(command, env=env, timeout=900, **quiet)
        if ran.returncode != 0:
            raise Missing(f"{' '.join(command)} failed: {ran.stdout[-600:]}; {how}")
    return shutil.which("chromium") or find()


class Browser:
    """One browser with one page. Keeps what the page logs and every request that it makes."""

    def __init__(self, width=1280, height=900, dark=False):
        self.size, self.dark = (width, height), dark
        self.console, self.requests, self.responses = [], [], {}
        self._next = 0
        self._events = queue.Queue()
        self._answers = {}
        self._session = None

    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(prefix="lockstep-browser-")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        argv = [
            find(), "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}",
            "--no-first-run", "--no-default-browser-check", "--disable-gpu", "--disable-extensions",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--mute-audio", "--hide-scrollbars", "--disable-dev-shm-usage",
            # A sandbox needs namespaces that containers often lack; the page is our own.
            "--no-sandbox", "about:blank",
        ]

        def wire():
            # The browser reads commands at descriptor 3 and writes answers at 4.
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            argv, preexec_fn=wire, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._errors = []
        threading.Thread(target=self._drain, daemon=True).start()
        threading.Thread(target=self._listen, daemon=True).start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(*self.size)
        self.theme(self.dark)
        return self

    def __exit__(self, *exc):
        try:
            self._session = None
            self.call("Browser.close", wait_s=10)
            self.process.wait(20)
        except Exception:
            self.process.kill()
            self.process.wait()
        os.close(self._write)
        self.process.stderr.close()
        self.profile.cleanup()

    def _drain(self):
        for text in self.process.stderr:
            self._errors.append(text.decode(errors="replace"))

    def _listen(self):
        kept = b""
        while True:
            try:
                piece = os.read(self._read, 1 << 16)
            except OSError:
                piece = b""
            if not piece:
                os.close(self._read)
                return
            *whole, kept = (kept + piece).split(b"\0")
            for text in whole:
                message = json.loads(text)
                if "id" in message:
                    self._answers[message["id"]].put(message)
                else:
                    self._note(message["method"], message.get("params", {}))

    def _note(self, method, params):
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.console.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Network.responseReceived":
            self.responses[params["response"]["url"]] = params["response"]
        elif method == "Page.javascriptDialogOpening":
            self.console.append(f"a dialog opened: {params['message']}")

    def call(self, method, wait_s=180, **params):
        """A command of the protocol and its result."""
        self._next += 1
        number, answers = self._next, queue.Queue()
        self._answers[number] = answers
        command = {"id": number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        try:
            answer = answers.get(timeout=wait_s)
        except queue.Empty:
            raise RuntimeError(f"{method}: no answer; {''.join(self._errors)[-600:]}") from None
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def resize(self, width, height, scale=1, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=scale, mobile=mobile)

    def theme(self, dark):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def eval(self, script):
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, script, wait_s=300):
        """Waits until an expression is true; returns its value."""
        end = time.monotonic() + wait_s
        while time.monotonic() < end:
            value = self.eval(script)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"still not so after {wait_s} s: {script}; console: {self.console}")

    def screenshot(self, path, whole=True):
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))
