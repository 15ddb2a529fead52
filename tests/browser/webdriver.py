"""A browser under remote control, with nothing but Python's own library: the
part of the W3C WebDriver protocol that the page's tests need, spoken to
chromedriver."""

import base64
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"

KEYS = {
    "Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004", "Shift": "\ue008",
    "Home": "\ue011", "Left": "\ue012", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015",
}

ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",  # as root it does not start otherwise; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--allow-file-access-from-files",
]


class Failure(Exception):
    """What the driver answered instead of a result."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Browser:
    """One window. Use it in a `with`, so that nothing is left running."""

    def __init__(self, width=1400, height=860):
        self.port = free_port()
        self.home = tempfile.TemporaryDirectory()
        self.log = open(os.path.join(self.home.name, "driver.log"), "w+", encoding="utf-8")
        environment = dict(os.environ, HOME=self.home.name)
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={self.port}"],
            stdout=self.log, stderr=subprocess.STDOUT, env=environment)
        self.session = None
        try:
            self._wait_for_driver()
            self._start(width, height)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        try:
            if self.session:
                self._ask("DELETE", "")
        except (Failure, OSError):
            pass  # it is being stopped anyway
        self.driver.terminate()
        self.driver.wait(timeout=20)
        self.log.close()
        self.home.cleanup()

    def _wait_for_driver(self):
        for _ in range(200):
            if self.driver.poll() is not None:
                raise Failure(f"chromedriver ended with status {self.driver.returncode}")
            try:
                if self._request("GET", "/status")["ready"]:
                    return
            except OSError:
                time.sleep(0.1)
        raise Failure("chromedriver did not become ready")

    def _start(self, width, height):
        arguments = ARGUMENTS + [f"--window-size={width},{height}"]
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments},
                  "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self._request("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = answer["sessionId"]

    def _request(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data=data, method=method,
            headers={"Content-Type": "application/json"})
        # Never through a proxy: the driver is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            told = json.load(error)["value"]
            raise Failure(f"{told['error']}: {told['message']}") from None

    def _ask(self, method, path, body=None):
        return self._request(method, f"/session/{self.session}{path}", body)

    def open(self, path):
        self._ask("POST", "/url", {"url": "file://" + os.path.abspath(path)})

    def run(self, script, *arguments):
        """Runs JavaScript in the page and returns its result."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector):
        return self.run("const e = document.querySelector(arguments[0]);"
                        "return e && e.innerText.trim()", selector)

    def _act(self, *sources):
        self._ask("POST", "/actions", {"actions": list(sources)})

    @staticmethod
    def _pointer(*actions):
        return {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
                "actions": list(actions)}

    @staticmethod
    def _move(x, y):
        return {"type": "pointerMove", "duration": 0, "x": int(x), "y": int(y)}

    def hover(self, x, y):
        self._act(self._pointer(self._move(x, y)))
        self.frame()

    def click(self, x, y):
        self._act(self._pointer(self._move(x, y), {"type": "pointerDown", "button": 0},
                                {"type": "pointerUp", "button": 0}))
        self.frame()

    def drag(self, x, y, to_x, to_y):
        self._act(self._pointer(self._move(x, y), {"type": "pointerDown", "button": 0},
                                self._move((x + to_x) / 2, (y + to_y) / 2), self._move(to_x, to_y),
                                {"type": "pointerUp", "button": 0}))
        self.frame()

    def wheel(self, x, y, delta_y):
        self._act({"type": "wheel", "id": "wheel", "actions": [
            {"type": "scroll", "x": int(x), "y": int(y), "deltaX": 0, "deltaY": delta_y,
             "duration": 0}]})
        self.frame()

    def pinch(self, x, y, apart_from, apart_to):
        """Two fingers on a level, that far apart before and after."""
        def finger(name, side):
            touch = {"pointerType": "touch"}
            return {"type": "pointer", "id": name, "parameters": touch, "actions": [
                self._move(x + side * apart_from / 2, y), {"type": "pointerDown", "button": 0},
                self._move(x + side * (apart_from + apart_to) / 4, y),
                self._move(x + side * apart_to / 2, y), {"type": "pointerUp", "button": 0}]}
        self._act(finger("left", -1), finger("right", 1))
        self.frame()

    def swipe(self, x, y, by):
        """One finger, that far down (or up, if negative); the browser may scroll with it."""
        def touch(kind, *points):
            self._ask("POST", "/goog/cdp/execute", {"cmd": "Input.dispatchTouchEvent",
                                                    "params": {"type": kind, "touchPoints": list(points)}})
        touch("touchStart", {"x": x, "y": y})
        for k in range(1, 9):
            touch("touchMove", {"x": x, "y": y + by * k / 8})
            self.frame()
        touch("touchEnd")
        self.frame()

    def press(self, *names, shift=False):
        """Keys by name or character, one after the other."""
        actions = [{"type": "keyDown", "value": KEYS["Shift"]}] if shift else []
        for name in names:
            key = KEYS.get(name, name)
            actions += [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        actions += [{"type": "keyUp", "value": KEYS["Shift"]}] if shift else []
        self._act({"type": "key", "id": "keyboard", "actions": actions})
        self.frame()

    def choose_file(self, selector, path):
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"/element/{found[ELEMENT]}/value", {"text": os.path.abspath(path)})
        self.frame()

    def frame(self):
        """Waits until what happened so far has been drawn."""
        self._ask("POST", "/execute/async", {"args": [], "script":
                  "const done = arguments[0];"
                  "requestAnimationFrame(() => requestAnimationFrame(() => done()))"})

    def log_entries(self):
        """What the page wrote to the console since the last call."""
        return self._ask("POST", "/se/log", {"type": "browser"})

    def emulate_dark(self, dark):
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("POST", "/goog/cdp/execute",
                  {"cmd": "Emulation.setEmulatedMedia", "params": {"features": [feature]}})
        self.frame()

    def emulate_print(self, printing):
        """Whether the page is styled as on paper."""
        self._ask("POST", "/goog/cdp/execute",
                  {"cmd": "Emulation.setEmulatedMedia", "params": {"media": "print" if printing else ""}})
        self.frame()

    def emulate_screen(self, ratio, width=0, height=0):
        """So many pixels of the screen to one of the page; 0: as it was. Sizes of 0 stay."""
        if ratio == 0:
            self._ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.clearDeviceMetricsOverride", "params": {}})
        else:
            metrics = {"width": width, "height": height, "deviceScaleFactor": ratio, "mobile": False}
            self._ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})
        self.frame()

    def print(self):
        """The page as the browser prints it, a PDF, without background graphics."""
        return base64.b64decode(self._ask("POST", "/print", {"background": False, "shrinkToFit": True}))

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self._ask("GET", "/screenshot")))
