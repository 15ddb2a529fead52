"""Firefox under remote control, with nothing but Python's own library: WebDriver BiDi, which
Firefox speaks itself, over a WebSocket. The interface is that of webdriver.Browser, as far as the
playground's tests need it."""

import base64
import json
import os
import re
import socket
import struct
import subprocess
import tempfile
import time

from webdriver import KEYS, Failure, free_port

PREFERENCES = {
    "browser.shell.checkDefaultBrowser": False,
    "browser.aboutwelcome.enabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.reportingpolicy.firstRun": False,
    "app.update.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "remote.prefs.recommended": True,
    "layers.acceleration.disabled": True,
}


class Socket:
    """A WebSocket's client end: text messages, one at a time (RFC 6455)."""

    def __init__(self, port, path):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self._exactly(1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise Failure(f"no WebSocket: {head.decode(errors='replace')}")

    def close(self):
        self.socket.close()

    def _exactly(self, size):
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise Failure("the browser closed the connection")
            data += piece
        return data

    def send(self, text):
        data = text.encode()
        mask = os.urandom(4)
        size = len(data)
        head = bytes([0x81])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 65536:
            head += bytes([0x80 | 126]) + struct.pack(">H", size)
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", size)
        masked = (int.from_bytes(data, "big") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "big")).to_bytes(size, "big")
        self.socket.sendall(head + mask + masked)

    def receive(self):
        message = b""
        while True:
            first, second = self._exactly(2)
            size = second & 127
            if size == 126:
                size = struct.unpack(">H", self._exactly(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self._exactly(8))[0]
            data = self._exactly(size)
            if first & 15 in (0, 1):
                message += data
                if first & 128:
                    return message.decode()
            elif first & 15 == 8:
                raise Failure("the browser closed the connection")


class Firefox:
    """One window. Use it in a `with`, so that nothing is left running."""

    def __init__(self, width=1400, height=860):
        self.port = free_port()
        self.home = tempfile.TemporaryDirectory()
        self.socket = None
        self.commands = 0
        self.entries = []
        profile = os.path.join(self.home.name, "profile")
        os.mkdir(profile)
        with open(os.path.join(profile, "user.js"), "w", encoding="utf-8") as file:
            for name, value in PREFERENCES.items():
                file.write(f"user_pref({json.dumps(name)}, {json.dumps(value)});\n")
        self.log = open(os.path.join(self.home.name, "firefox.log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            ["firefox-esr", "--headless", "--no-remote", "--profile", profile,
             f"--remote-debugging-port={self.port}"],
            stdout=self.log, stderr=subprocess.STDOUT,
            env=dict(os.environ, HOME=self.home.name, MOZ_HEADLESS_WIDTH=str(width), MOZ_HEADLESS_HEIGHT=str(height)))
        try:
            self._connect()
            self._ask("session.new", capabilities={})
            self._ask("session.subscribe", events=["log.entryAdded"])
            self.context = self._ask("browsingContext.getTree")["contexts"][0]["context"]
            self._ask("browsingContext.setViewport", context=self.context,
                      viewport={"width": width, "height": height})
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        if self.socket:
            self.socket.close()
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.home.cleanup()

    def _connect(self):
        for _ in range(600):
            if self.process.poll() is not None:
                raise Failure(f"firefox-esr ended with status {self.process.returncode}")
            with open(self.log.name, encoding="utf-8", errors="replace") as file:
                if re.search(r"WebDriver BiDi listening on", file.read()):
                    self.socket = Socket(self.port, "/session")
                    return
            time.sleep(0.05)
        raise Failure("firefox-esr did not become ready")

    def _ask(self, method, **params):
        self.commands += 1
        self.socket.send(json.dumps({"id": self.commands, "method": method, "params": params}))
        while True:
            answer = json.loads(self.socket.receive())
            if answer.get("type") == "event":
                self.entries.append(answer["params"])
            elif answer.get("id") == self.commands:
                if answer["type"] == "error":
                    raise Failure(f"{answer['error']}: {answer['message']}")
                return answer["result"]

    def open(self, path, fragment=""):
        self.open_url("file://" + os.path.abspath(path) + fragment)

    def open_url(self, url):
        """Looks by itself whether the page is there: Firefox's answer to a navigation that waits for
        it has been seen to stay away, and one that still goes on to break it off."""
        seen = None
        for _ in range(3):
            try:
                self._ask("browsingContext.navigate", context=self.context, url=url, wait="none")
            except Failure as failure:
                if "NS_BINDING_ABORTED" not in str(failure):
                    raise
                seen = str(failure)
                time.sleep(0.2)
                continue
            until = time.monotonic() + 30
            while time.monotonic() < until:
                try:
                    answer = self._ask("script.evaluate", target={"context": self.context}, awaitPromise=False,
                                       expression="location.href + ' ' + document.readyState")
                    seen = answer["result"]["value"] if answer["type"] == "success" else seen
                except Failure:  # the page before it is just going
                    pass
                if seen and seen.startswith(url.split("#")[0]) and seen.endswith(" complete"):
                    return
                time.sleep(0.02)
        raise Failure(f"{url} was not opened, but: {seen}")

    def run(self, script, *arguments):
        """Runs the body of a function in the page and returns its result, which JSON can carry."""
        called = self._ask("script.callFunction", target={"context": self.context}, awaitPromise=True,
                           functionDeclaration="async function (given) { const result = await (async function () {" + script +
                           "}).apply(null, JSON.parse(given)); return JSON.stringify(result === undefined ? null : result); }",
                           arguments=[{"type": "string", "value": json.dumps(arguments)}])
        if called["type"] == "exception":
            raise Failure(called["exceptionDetails"]["text"])
        return json.loads(called["result"]["value"])

    def text(self, selector):
        return self.run("const e = document.querySelector(arguments[0]);"
                        "return e && e.innerText.trim()", selector)

    def press(self, *names):
        """Keys by name or character, one after the other."""
        actions = []
        for name in names:
            key = KEYS.get(name, name)
            actions += [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._ask("input.performActions", context=self.context,
                  actions=[{"type": "key", "id": "keyboard", "actions": actions}])
        self.frame()

    def click(self, x, y):
        move = {"type": "pointerMove", "x": int(x), "y": int(y)}
        self._ask("input.performActions", context=self.context, actions=[
            {"type": "pointer", "id": "mouse", "actions": [
                move, {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]}])
        self.frame()

    def frame(self):
        self.run("await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def log_entries(self):
        """What the page wrote to the console since the last call, warnings and errors."""
        found = [entry for entry in self.entries if entry.get("level") in ("warn", "error")]
        self.entries = []
        return found

    def screenshot(self, path):
        shot = self._ask("browsingContext.captureScreenshot", context=self.context)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))
