"""Runs checkpoint stores against servers of object stores on this machine: S3 (moto), Azure (azurite), plain HTTP.

Installs the servers below a directory, starts them on free ports of 127.0.0.1, and ends them. For S3 a proxy in between
then injects faults: answers of 500 and 503, connections cut before and behind the request, answers lost after success.
After that, everything that was acknowledged must be there, and nothing else may be seen.

    cargo build --release -p mithril --features cloud --example storage_conformance --example store_worker
    python3 tools/object_stores.py target/release/examples --servers target/object-stores
"""

import argparse
import base64
import contextlib
import hashlib
import hmac
import http.server
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

MOTO = "moto[server]==5.2.5"
AZURITE = "azurite@3.35.0"
# The account that every azurite has; its key is published and opens nothing else.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"the server on port {port} does not start")


@contextlib.contextmanager
def server(arguments: list[str], port: int, folder: Path) -> Iterator[None]:
    with (folder / f"server-{port}.log").open("wb") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log, cwd=folder)
        try:
            wait_for(port, process)
            yield
        finally:
            process.terminate()
            process.wait()


def install(servers: Path) -> tuple[Path, Path]:
    moto = servers / "venv" / "bin" / "moto_server"
    if not moto.exists():
        subprocess.run([sys.executable, "-m", "venv", servers / "venv"], check=True)
        pip = servers / "venv" / "bin" / "pip"
        subprocess.run([pip, "install", "--quiet", "--disable-pip-version-check", MOTO], check=True)
    azurite = servers / "node_modules" / ".bin" / "azurite-blob"
    if not azurite.exists():
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(servers), AZURITE]
        subprocess.run(npm, check=True)
    return moto, azurite


def request(method: str, url: str, headers: dict[str, str]) -> int:
    made = urllib.request.Request(url, method=method, headers=headers)
    with urllib.request.urlopen(made, timeout=10) as answer:
        return int(answer.status)


def make_container(port: int, name: str) -> None:
    date, version = formatdate(usegmt=True), "2021-08-06"
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
    to_sign = f"PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:{version}\n{resource}"
    signed = hmac.new(base64.b64decode(AZURE_KEY), to_sign.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date,
        "x-ms-version": version,
        "Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(signed).decode()}",
    }
    request("PUT", f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}/{name}?restype=container", headers)


class FaultProxy(http.server.ThreadingHTTPServer):
    """Passes requests on, and does something wrong with some of them."""

    daemon_threads = True

    def __init__(self, to_port: int, share: float, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), FaultHandler)
        self.to_port = to_port
        self.share = share
        self.chance = random.Random(seed)
        self.lock = threading.Lock()
        self.faults: dict[str, int] = {}

    def draw(self) -> str | None:
        with self.lock:
            if self.chance.random() >= self.share:
                return None
            kinds = ["500", "503", "cut before", "cut behind", "lost answer"]
            kind = self.chance.choice(kinds)
            self.faults[kind] = self.faults.get(kind, 0) + 1
            return kind

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away are part of it."""


class FaultHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultProxy

    def log_message(self, *arguments: object) -> None:
        pass

    def cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def pass_on(self) -> None:
        fault = self.server.draw()
        if fault == "cut before":
            return self.cut()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault in ("500", "503"):
            self.send_response(int(fault))
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if fault == "cut behind":
            return self.cut()
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        url = f"http://127.0.0.1:{self.server.to_port}{self.path}"
        made = urllib.request.Request(url, data=body or None, method=self.command, headers=headers)
        try:
            with urllib.request.urlopen(made, timeout=60) as answer:
                status, answered, content = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            status, answered, content = error.code, error.headers, error.read()
        if fault == "lost answer":
            return self.cut()
        self.send_response(status)
        for name, value in answered.items():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(name, value)
        length = answered.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """A web server with ranges, which Python's own lacks."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        wanted = self.headers.get("Range", "")
        if not wanted.startswith("bytes=") or not path.is_file():
            return super().do_GET()
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        content = path.read_bytes()
        start = int(first)
        end = min(int(last or len(content) - 1) + 1, len(content))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
        self.end_headers()
        self.wfile.write(content[start:end])
        return None


@contextlib.contextmanager
def serving(made: http.server.ThreadingHTTPServer) -> Iterator[int]:
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    try:
        yield made.server_address[1]
    finally:
        made.shutdown()
        made.server_close()


def s3_environment(port: int) -> dict[str, str]:
    return {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }


def s3_faults(examples: Path, port: int, n_faults: int) -> None:
    """F15: saves through the proxy, then a look at the store without it."""
    said, n_refused, n_injected, seed = "", 0, 0, 0
    store = "s3://faults/run"
    while n_injected < n_faults:
        seed += 1
        proxy = FaultProxy(port, 0.15, seed)
        with serving(proxy) as proxy_port:
            worker = subprocess.run(
                [examples / "store_worker", "faulty", store, str(seed), "10"],
                env=s3_environment(proxy_port), check=False, capture_output=True, text=True,
            )
        if worker.returncode != 0:
            raise SystemExit(f"the worker failed: {worker.stderr}")
        said += worker.stdout
        n_refused += worker.stdout.count("refused")
        n_injected += sum(proxy.faults.values())
        check = subprocess.run(
            [examples / "store_worker", "check", store],
            env=s3_environment(port), check=False, input=said, capture_output=True, text=True,
        )
        if check.returncode != 0:
            raise SystemExit(f"after {n_injected} faults: {check.stderr}")
    n_saved = said.count("saved ")
    print(f"s3: {n_injected} faults injected: {n_saved} saves acknowledged, {n_refused} refused, 0 lost, 0 in part")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("examples", type=Path, help="directory of the built examples")
    parser.add_argument("--servers", type=Path, required=True, help="where the servers are installed")
    parser.add_argument("--faults", type=int, default=60, help="faults to inject; 500 for a release")
    options = parser.parse_args()
    examples = options.examples.resolve()
    options.servers.mkdir(parents=True, exist_ok=True)
    moto, azurite = install(options.servers.resolve())
    folder = Path(tempfile.mkdtemp(prefix="mithril-object-stores-"))
    conformance = examples / "storage_conformance"
    try:
        port = free_port()
        with server([str(moto), "-H", "127.0.0.1", "-p", str(port)], port, folder):
            for bucket in ("bucket", "faults"):
                request("PUT", f"http://127.0.0.1:{port}/{bucket}", {})
            subprocess.run([conformance, "s3://bucket/some/prefix"], env=s3_environment(port), check=True)
            s3_faults(examples, port, options.faults)
        port = free_port()
        arguments = [str(azurite), "--silent", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
        with server([*arguments, "--blobHost", "127.0.0.1", "--blobPort", str(port)], port, folder):
            make_container(port, "container")
            emulator = {**os.environ, "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}"}
            settings = ["use_emulator=true", f"account_name={AZURE_ACCOUNT}", f"account_key={AZURE_KEY}"]
            subprocess.run([conformance, "az://container/prefix", *settings], env=emulator, check=True)
        local = folder / "store"
        subprocess.run([examples / "store_worker", "race", str(local), "0", "2"], check=True, stdout=subprocess.DEVNULL)

        def handler(*arguments: object) -> RangeHandler:
            return RangeHandler(*arguments, directory=str(folder))  # type: ignore[arg-type]

        with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as port:
            url = f"http://127.0.0.1:{port}/store"
            subprocess.run([conformance, "read", url, "step_1"], check=True)
        return 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
