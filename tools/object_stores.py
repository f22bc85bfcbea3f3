"""Runs checkpoint stores against servers of object stores on this machine: S3 (moto), Azure (azurite), plain HTTP.

Installs the servers below a directory, starts them on free ports of 127.0.0.1, and ends them. For S3 a proxy in between
then injects faults: answers of 500 and 503, connections cut before and after the request, answers lost after success,
answers of 200 that hold an error, slow ones; the server is gone for a while in the middle of uploads, or for good; writers
are killed while they upload. Then the proxy lies to writers and readers: it cuts bodies short, flips bits, sends garbage, lists
that are old, whole objects and longer ones in place of a range, and redirects to a stranger. After each, everything that was
acknowledged must be there, nothing else may be seen, no reader may get wrong bytes, and gc may leave no part of an upload. An
upload whose number was lost with an answer can only be ended by the server's own rules; it stays, without parts, and is counted.

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
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

MOTO = "moto[server]==5.2.5"
AZURITE = "azurite@3.35.0"
# What the worker allows for a request with its retries, in seconds.
GIVES_UP_AFTER = 10
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


FAULTS = ("500", "503", "cut before", "cut behind", "lost answer", "error in 200", "slow")
LIES = ("truncated", "flipped bit", "garbage", "old list", "range ignored", "larger body", "redirect")


class FaultProxy(http.server.ThreadingHTTPServer):
    """Passes requests on, and does something wrong with some of them."""

    daemon_threads = True

    def __init__(self, to_port: int, share: float, seed: int, kinds: tuple[str, ...] = FAULTS) -> None:
        super().__init__(("127.0.0.1", 0), FaultHandler)
        self.kinds = kinds
        self.to_port = to_port
        self.share = share
        self.chance = random.Random(seed)
        self.lock = threading.Lock()
        self.conditional = threading.Lock()
        self.faults: dict[str, int] = {}
        # Until then the server is gone: connections are cut as they come.
        self.gone_until = 0.0
        self.n_parts = 0
        # Uploads that were started by requests whose answers were lost.
        self.untold_uploads: set[str] = set()
        # What each list held when it was asked for last.
        self.old_lists: dict[str, bytes] = {}
        # Where redirects lead.
        self.stranger_port = 0

    def draw(self, method: str, path: str) -> str | None:
        """What goes wrong with a request. A lie needs one that reads."""
        with self.lock:
            if self.chance.random() >= self.share:
                return None
            kind = self.chance.choice(self.kinds)
            is_list = "list-type=" in path
            if kind in LIES and (method != "GET" or is_list != (kind == "old list")):
                return None
            if kind == "old list" and path not in self.old_lists:
                return None
            self.faults[kind] = self.faults.get(kind, 0) + 1
            return kind

    def is_gone(self) -> bool:
        return time.monotonic() < self.gone_until

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away are part of it."""


def upload_ids(answer: bytes) -> set[str]:
    return set(re.findall("<UploadId>([^<]*)</UploadId>", answer.decode(errors="replace")))


class FaultHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultProxy

    def log_message(self, *arguments: object) -> None:
        pass

    def cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while length := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def pass_on(self) -> None:
        fault = self.server.draw(self.command, self.path)
        if fault == "cut before" or self.server.is_gone():
            return self.cut()
        body = self.body()
        if fault in ("500", "503"):
            self.send_response(int(fault))
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if "partNumber=" in self.path:
            self.server.n_parts += 1
        if fault == "cut behind" or self.server.is_gone():
            return self.cut()
        if fault == "error in 200" and self.command in ("POST", "PUT"):
            return self.answer(200, {}, b"<Error><Code>InternalError</Code><Message>injected</Message></Error>")
        if fault == "slow":
            time.sleep(1.5)
        if fault == "redirect":
            location = f"http://localhost:{self.server.stranger_port}{self.path}"
            return self.answer(307, {"Location": location}, b"")
        not_passed = ("connection", "transfer-encoding", "content-length")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in not_passed}
        # Else it would be called a form, and read as one.
        headers.setdefault("content-type", "application/octet-stream")
        if fault == "range ignored":
            headers = {name: value for name, value in headers.items() if name.lower() != "range"}
        url = f"http://127.0.0.1:{self.server.to_port}{self.path}"
        made = urllib.request.Request(url, data=body or None, method=self.command, headers=headers)
        # Object stores look and write in one step where it is asked for; this server does it in two.
        one_by_one = self.server.conditional if self.headers.get("If-None-Match") else contextlib.nullcontext()
        try:
            with one_by_one, urllib.request.urlopen(made, timeout=60) as answer:
                status, answered, content = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            status, answered, content = error.code, error.headers, error.read()
        if fault == "lost answer" or self.server.is_gone():
            self.server.untold_uploads |= upload_ids(content)
            return self.cut()
        kept = {
            name: value
            for name, value in answered.items()
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server")
        }
        length = answered.get("Content-Length", "0") if self.command == "HEAD" else None
        if "list-type=" in self.path:
            before = self.server.old_lists.get(self.path, b"")
            self.server.old_lists[self.path] = content
            content = before if fault == "old list" else content
        elif fault in LIES and status < 300 and content:
            content, length = self.lie(fault, content)
        self.answer(status, kept, content, length)
        if fault == "truncated":
            self.cut()

    def lie(self, kind: str, content: bytes) -> tuple[bytes, str | None]:
        """A body that is not the object's, and the length that is said of it."""
        chance = self.server.chance
        at = chance.randrange(len(content))
        if kind == "truncated":
            return content[:at], str(len(content))
        if kind == "flipped bit":
            return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :], None
        if kind == "garbage":
            return chance.randbytes(len(content)), None
        return (content + chance.randbytes(1 + at) if kind == "larger body" else content), None

    def answer(self, status: int, headers: dict[str, str], content: bytes, length: str | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on


class Stranger(http.server.ThreadingHTTPServer):
    """Another server, to which requests are redirected. It answers with bytes of its own, and keeps what it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StrangerHandler)
        self.seen: list[str] = []


class StrangerHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stranger

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.seen.append(str(self.headers))
        content = random.Random(len(self.server.seen)).randbytes(4096)
        self.send_response(206 if self.headers.get("Range") else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


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


class S3Faults:
    """F15 on one bucket: workers go through a proxy, checks do not."""

    def __init__(self, examples: Path, port: int) -> None:
        self.worker = examples / "store_worker"
        self.port = port
        self.store = "s3://faults/run"
        self.said = ""
        self.first = 0
        self.n_acknowledged = 0
        self.n_checks = 0
        # Uploads whose numbers no answer told, and how often one was there at a check.
        self.untold_uploads: set[str] = set()
        self.n_untold = 0
        self.renew()

    def renew(self) -> None:
        """An empty server: everything is loaded at every check, and it keeps all in memory."""
        self.n_acknowledged += self.said.count("saved ")
        self.said, self.first = "", 0
        request("POST", f"http://127.0.0.1:{self.port}/moto-api/reset", {})
        request("PUT", f"http://127.0.0.1:{self.port}/faults", {})

    def start(self, proxy_port: int, n: int, large: bool) -> subprocess.Popen[str]:
        self.first = max(self.first, 1_000_000 if large else 0)
        arguments = [self.worker, "faulty", self.store, str(self.first), str(n)]
        environment = s3_environment(proxy_port)
        return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def check(self, after: str) -> None:
        """Everything that was said is there, nothing is torn, and behind gc nothing is left over."""
        checked = subprocess.run(
            [self.worker, "check", self.store],
            env=s3_environment(self.port), check=False, input=self.said, capture_output=True, text=True,
        )
        if checked.returncode != 0:
            raise SystemExit(f"after {after}: {checked.stderr}")
        # An upload whose number was lost with the answer that told it is known to nobody. Nothing is ever sent to it.
        left = self.uploads_left()
        told = set(left) - self.untold_uploads
        filled = [upload for upload in left if b"<PartNumber>" in self.read(f"{left[upload]}?uploadId={upload}")]
        if told or filled:
            raise SystemExit(f"after {after}: {len(told)} uploads, {len(filled)} with parts, are left behind gc")
        self.n_untold += len(left)
        self.n_checks += 1
        if self.n_checks % 5 == 0:
            self.renew()

    def read(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/faults{path}", timeout=10) as answer:
            return answer.read()

    def uploads_left(self) -> dict[str, str]:
        """The uploads that are neither complete nor ended, each with the path of its object."""
        found = re.findall("<Upload>(.*?)</Upload>", self.read("?uploads").decode(), re.DOTALL)
        texts = [(re.search(f"<{name}>([^<]*)</{name}>", upload) for name in ("UploadId", "Key")) for upload in found]
        return {number[1]: "/" + urllib.parse.quote(key[1]) for number, key in texts if number and key}

    def finish(self, process: subprocess.Popen[str], after: str) -> str:
        out, errors = process.communicate(timeout=300)
        if process.returncode != 0:
            raise SystemExit(f"{after}: the worker failed: {errors}")
        self.said += out
        return out

    def injected(self, n_faults: int) -> str:
        totals: dict[str, int] = {}
        n_refused, seed = 0, 0
        while sum(totals.values()) < n_faults:
            seed += 1
            proxy = FaultProxy(self.port, 0.15, seed)
            with serving(proxy) as proxy_port:
                out = self.finish(self.start(proxy_port, 6, large=seed % 3 == 0), "injected faults")
            n_refused += out.count("refused ")
            self.untold_uploads |= proxy.untold_uploads
            for kind, n in proxy.faults.items():
                totals[kind] = totals.get(kind, 0) + n
            self.check(f"{sum(totals.values())} faults")
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(totals.items()))
        return (
            f"{sum(totals.values())} faults injected ({kinds}): {n_refused} saves refused; "
            f"empty uploads that no answer told of were there at {self.n_untold} checks"
        )

    def lied_to(self, n_lies: int) -> str:
        """Writers refuse what they cannot trust; readers get the right bytes or none."""
        totals: dict[str, int] = {}
        outcomes = {"refused": 0, "loaded": 0, "saved": 0}
        seed = 0
        stranger = Stranger()
        with serving(stranger) as stranger_port:
            while sum(totals.values()) < n_lies:
                seed += 1
                proxy = FaultProxy(self.port, 0.2, seed, LIES)
                proxy.stranger_port = stranger_port
                with serving(proxy) as proxy_port:
                    out = self.finish(self.start(proxy_port, 4, large=seed % 5 == 0), "lies")
                    reader = [self.worker, "read", self.store]
                    read = subprocess.run(
                        reader, env=s3_environment(proxy_port), check=False, input=self.said, capture_output=True, text=True,
                    )
                if read.returncode != 0:
                    raise SystemExit(f"lies to a reader: {read.stderr}")
                for outcome in outcomes:
                    outcomes[outcome] += (out + read.stdout).count(f"{outcome} ")
                for kind, n in proxy.faults.items():
                    totals[kind] = totals.get(kind, 0) + n
                self.check(f"{sum(totals.values())} lies")
        if any("uthorization" in headers or "secret" in headers for headers in stranger.seen):
            raise SystemExit("a stranger was sent credentials")
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(totals.items()))
        return (
            f"{sum(totals.values())} lies ({kinds}): {outcomes['saved']} saved, {outcomes['loaded']} loaded, "
            f"{outcomes['refused']} refused, 0 wrong bytes, no credentials sent to a stranger"
        )

    def server_gone(self, n: int) -> str:
        """The server goes away in the middle of an upload, and comes back."""
        n_refused = 0
        for number in range(n):
            proxy = FaultProxy(self.port, 0.0, number)
            with serving(proxy) as proxy_port:
                process = self.start(proxy_port, 2, large=True)
                while proxy.n_parts < 1 + number % 3 and process.poll() is None:
                    time.sleep(0.002)
                proxy.gone_until = time.monotonic() + (0.5 if number % 2 else 15)
                out = self.finish(process, "server gone")
            self.untold_uploads |= proxy.untold_uploads
            n_refused += out.count("refused ")
            self.check(f"server gone {number}")
        return f"server gone in the middle of an upload {n} times: {n_refused} saves refused, the others went on"

    def writer_killed(self, n: int) -> str:
        n_killed_uploading = 0
        for number in range(n):
            proxy = FaultProxy(self.port, 0.0, number)
            with serving(proxy) as proxy_port:
                process = self.start(proxy_port, 3, large=True)
                while proxy.n_parts < 1 + number % 4 and process.poll() is None:
                    time.sleep(0.002)
                process.kill()
                out, _ = process.communicate()
                self.said += "".join(line for line in out.splitlines(keepends=True) if line.endswith("\n"))
            n_killed_uploading += bool(self.uploads_left())
            self.check(f"writer killed {number}")
        return f"writer killed {n} times, {n_killed_uploading} of them with an upload at work: 0 uploads left behind gc"

    def gives_up(self) -> str:
        """The server is gone for good: a save ends within the limit, and says why."""
        proxy = FaultProxy(self.port, 0.0, 1)
        with serving(proxy) as proxy_port:
            process = self.start(proxy_port, 3, large=False)
            assert process.stdout is not None
            self.said += process.stdout.readline()
            proxy.gone_until = time.monotonic() + 3600
            gone = time.monotonic()
            line = process.stdout.readline()
            took = time.monotonic() - gone
            process.kill()
            process.communicate()
        if took > GIVES_UP_AFTER * 1.1 or "refused step_" not in line or "s3://faults/run" not in line:
            raise SystemExit(f"the server is gone: {took:.1f} s, {line!r}")
        self.check("the server was gone")
        return f"server gone for good: refused after {took:.1f} s of {GIVES_UP_AFTER} s, with operation, key and cause"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("examples", type=Path, help="directory of the built examples")
    parser.add_argument("--servers", type=Path, required=True, help="where the servers are installed")
    parser.add_argument("--faults", type=int, default=40, help="faults to inject; 500 for a release")
    options = parser.parse_args()
    examples = options.examples.resolve()
    options.servers.mkdir(parents=True, exist_ok=True)
    moto, azurite = install(options.servers.resolve())
    folder = Path(tempfile.mkdtemp(prefix="mithril-object-stores-"))
    conformance = examples / "storage_conformance"
    try:
        port = free_port()
        with server([str(moto), "-H", "127.0.0.1", "-p", str(port)], port, folder):
            request("PUT", f"http://127.0.0.1:{port}/bucket", {})
            with serving(FaultProxy(port, 0.0, 0)) as proxy_port:
                environment = s3_environment(proxy_port)
                subprocess.run([conformance, "s3://bucket/some/prefix"], env=environment, check=True)
            faults = S3Faults(examples, port)
            n = max(2, options.faults // 25)
            print(f"s3: {faults.injected(options.faults)}", flush=True)
            print(f"s3: {faults.lied_to(options.faults)}", flush=True)
            print(f"s3: {faults.server_gone(n)}", flush=True)
            print(f"s3: {faults.writer_killed(n)}", flush=True)
            print(f"s3: {faults.gives_up()}", flush=True)
            faults.renew()
            print(f"s3: {faults.n_acknowledged} saves acknowledged in all: 0 lost, 0 in part", flush=True)
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
