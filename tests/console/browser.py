"""A headless Chromium, driven over its own debugging pipe: standard library only."""

import base64
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium():
    return os.environ.get("LORAD_CHROMIUM") or next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page. Keeps what it asked for over the network, and all errors that it complained of."""

    def __init__(self, program, width=1280, height=900):
        self.profile = tempfile.mkdtemp(prefix="lorad-chromium-")
        read_end, self.to_browser = os.pipe()
        self.from_browser, write_end = os.pipe()
        flags = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
                 "--disable-component-update", "--force-prefers-reduced-motion", "--disable-background-networking", "--disable-dev-shm-usage",
                 f"--user-data-dir={self.profile}", f"--window-size={width},{height}", "about:blank"]
        # It reads commands from descriptor 3 and writes answers to descriptor 4.
        self.process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{read_end} 4>&{write_end}', "bash", program, *flags],
                                        pass_fds=(read_end, write_end), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(read_end)
        os.close(write_end)
        self.answers = {}
        self.arrived = threading.Condition()
        self.requests, self.errors, self.responses = [], [], queue.Queue()
        self.number = 0
        self.session = None
        threading.Thread(target=self._read, daemon=True).start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _read(self):
        rest = b""
        while piece := os.read(self.from_browser, 1 << 16):
            *messages, rest = (rest + piece).split(b"\0")
            for message in map(json.loads, messages):
                self._take(message)
        with self.arrived:
            self.answers["ended"] = True
            self.arrived.notify_all()

    def _take(self, message):
        if "id" in message:
            with self.arrived:
                self.answers[message["id"]] = message
                self.arrived.notify_all()
            return
        method, params = message["method"], message["params"]
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def call(self, method, **params):
        self.number += 1
        number = self.number
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        with self.arrived:
            if not self.arrived.wait_for(lambda: number in self.answers or "ended" in self.answers, 60):
                raise AssertionError(f"{method}: no answer from the browser")
            answer = self.answers.pop(number, {"error": "the browser has ended"})
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def js(self, expression):
        """The value of an expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression, what, seconds=30):
        """Waits until the expression is true, and returns its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.js(expression)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"{what}: not within {seconds} s; {expression}")

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'", f"{url} is loaded")

    def center(self, selector):
        box = self.js(f"""(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;
            e.scrollIntoView({{block: "center", behavior: "instant"}}); const r = e.getBoundingClientRect();
            return {{x: r.x + r.width / 2, y: r.y + r.height / 2}}; }})()""")
        if box is None:
            raise AssertionError(f"there is no {selector}")
        return box

    def click(self, selector):
        at = self.center(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def drop_files(self, selector, paths):
        at = self.center(selector)
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, data=data, **at)

    def press(self, key, code=None, modifiers=0, text=None):
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, modifiers=modifiers,
                      windowsVirtualKeyCode={"Enter": 13, "Tab": 9, "Escape": 27}.get(key, 0), **more)

    def type_text(self, text):
        self.call("Input.insertText", text=text)

    def screenshot(self, path, full=True):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
