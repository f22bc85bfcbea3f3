"""Opens the page of `mithril inspect --html` in a headless Chromium and looks at what it shows.

Needs no Python packages: Chromium is driven through chromedriver's own protocol. Installs Debian's `chromium` and
`chromium-driver` when they are missing.

    python3 tools/test_report.py target/release/mithril [--screenshot report.png]
"""

import argparse
import base64
import json
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ASSET = Path(__file__).resolve().parent.parent / "assets" / "minilm-demo.safetensors"


def find_browser() -> tuple[str, str]:
    """Paths of Chromium and of its driver; installs them when they are missing."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium", "chromium-driver"]
        for command in (["apt-get", "update"], install):
            print("+", *command, flush=True)
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        sys.exit("chromium and chromium-driver are needed, and could not be installed")
    return chromium, driver


class Browser:
    """A session of chromedriver."""

    def __init__(self, chromium: str, driver: str) -> None:
        self.port = random.Random().randrange(20000, 60000)
        self.process = subprocess.Popen([driver, f"--port={self.port}"], stdout=subprocess.DEVNULL)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--window-size=1200,1600"]
        wanted = {"browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
                  "goog:chromeOptions": {"binary": chromium, "args": arguments}}
        deadline = time.monotonic() + 60
        while True:
            try:
                self.base = f"http://127.0.0.1:{self.port}"
                session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        self.base += f"/session/{session['sessionId']}"

    def call(self, method: str, path: str, body: dict | None = None) -> object:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)["value"]

    def script(self, text: str) -> object:
        return self.call("POST", "/execute/sync", {"script": text, "args": []})

    def close(self) -> None:
        try:
            self.call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait()


def tuned_copy(source: Path, target: Path) -> None:
    """The model with some weights of its second half changed in their lowest bits."""
    data = bytearray(source.read_bytes())
    header_end = 8 + struct.unpack("<Q", data[:8])[0]
    changes = random.Random(1)
    for _ in range(20000):
        data[changes.randrange((header_end + len(data)) // 2, len(data))] ^= 1
    target.write_bytes(data)


def check(condition: bool, what: str) -> None:
    if not condition:
        sys.exit(f"FAILED: {what}")
    print(f"ok: {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mithril", type=Path, help="the program")
    parser.add_argument("--screenshot", type=Path, help="where to save a picture of the page")
    options = parser.parse_args()
    chromium, driver = find_browser()
    folder = Path(tempfile.mkdtemp(prefix="mithril-report-"))
    browser = None
    try:
        base, tuned = folder / "base.safetensors", folder / "tuned <b>&.safetensors"
        shutil.copyfile(ASSET, base)
        tuned_copy(base, tuned)
        program = str(options.mithril)
        subprocess.run([program, "compress", str(tuned), "--base", str(base)], check=True, stderr=subprocess.DEVNULL)
        page = folder / "report.html"
        packed = f"{tuned}.mckp"
        subprocess.run([program, "inspect", packed, "--html", str(page)], check=True, stderr=subprocess.DEVNULL)
        listed = json.loads(subprocess.check_output([program, "inspect", packed, "--json"]))

        browser = Browser(chromium, driver)
        browser.call("POST", "/url", {"url": page.as_uri()})
        check(browser.script("return document.body.dataset.ready") == "yes", "the page's script ran to its end")
        logs = browser.call("POST", "/se/log", {"type": "browser"})
        check(logs == [], f"no errors or warnings in the console {logs}")
        events = browser.call("POST", "/se/log", {"type": "performance"})
        requests = [json.loads(event["message"])["message"] for event in events]
        asked = {event["params"]["request"]["url"] for event in requests
                 if event["method"] == "Network.requestWillBeSent"}
        check(asked == {page.as_uri()}, "the page asks for nothing but itself")
        check(browser.script("return document.getElementById('file').textContent").endswith("<b>&.safetensors.mckp"),
              "names are shown as they are")
        names = browser.script("return [...document.querySelectorAll('#ratios tbody tr td:first-child')]"
                               ".map((cell) => cell.textContent)")
        check(names == [tensor["name"] for tensor in listed["tensors"]], f"all {len(names)} tensors are in the table")
        sort = "[...document.querySelectorAll('#ratios th button')].find((b) => b.textContent === 'stored').click();"
        stored = browser.script(sort + "return [...document.querySelectorAll('#ratios tbody tr')]"
                                ".map((row) => Number(row.cells[4].textContent.replaceAll(',', '')))")
        check(stored == sorted((tensor["stored_bytes"] for tensor in listed["tensors"]), reverse=True),
              "a heading sorts the table")
        for section, least in [("layers", 2), ("fields", 4), ("changes", 1)]:
            shown = browser.script(f"return [...document.querySelectorAll('#{section} .row')]"
                                   ".map((row) => [row.getBoundingClientRect().width, row.children[1].offsetHeight])")
            check(len(shown) >= least and all(width > 300 and height > 5 for width, height in shown),
                  f"{section}: {len(shown)} rows with pictures")
        strips = browser.script("return [...document.querySelectorAll('#changes .strip')].map((strip) =>"
                                "new Set([...strip.children].map((part) => part.style.background)).size)")
        check(max(strips) > 1, "the change map shows where weights changed")
        wide = browser.script("return document.documentElement.scrollWidth <= window.innerWidth")
        check(wide, "nothing is wider than the window")
        if options.screenshot:
            height = browser.script("return document.documentElement.scrollHeight")
            browser.call("POST", "/window/rect", {"width": 1200, "height": min(height + 150, 6000)})
            options.screenshot.write_bytes(base64.b64decode(browser.call("GET", "/screenshot")))
        print("report: all checks passed")
    finally:
        if browser:
            browser.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
