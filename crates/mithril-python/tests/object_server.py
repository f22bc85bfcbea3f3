"""A server of S3 in this process, as small as the tests need, that can break its promises."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

Objects = dict[str, bytes]


@contextlib.contextmanager
def object_server(
    monkeypatch: pytest.MonkeyPatch, *, is_exclusive: bool = True, shown: Callable[[str, bytes], bytes] | None = None
) -> Iterator[Objects]:
    """The objects of `s3://bucket`, by key. `shown` says what readers get of one."""
    objects: Objects = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_arguments: Any) -> None:
            """Nothing is said."""

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            headers = {"Content-Length": str(len(body)), "ETag": '"e"', **headers}
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        @property
        def key(self) -> str:
            return unquote(urlsplit(self.path).path).removeprefix("/bucket").lstrip("/")

        def content(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def do_PUT(self) -> None:
            content = self.content()
            if is_exclusive and self.headers.get("If-None-Match") == "*" and self.key in objects:
                self.answer(412)
                return
            objects[self.key] = content
            self.answer(200)

        def do_POST(self) -> None:
            keys = re.findall("<Key>(.*?)</Key>", self.content().decode())
            for key in keys:
                objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

        def do_DELETE(self) -> None:
            objects.pop(self.key, None)
            self.answer(204)

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            if "list-type" in query:
                prefix = query.get("prefix", [""])[0]
                entry = "<Contents><Key>{}</Key><Size>{}</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
                found = [entry.format(key, len(objects[key])) for key in sorted(objects) if key.startswith(prefix)]
                self.answer(200, f"<ListBucketResult>{''.join(found)}</ListBucketResult>".encode())
            elif self.key not in objects:
                self.answer(404)
            else:
                body = objects[self.key] if shown is None else shown(self.key, objects[self.key])
                asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                time = {"Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
                if asked is None:
                    self.answer(200, body, **time)
                else:
                    first, last = int(asked[1]), min(int(asked[2]), len(body) - 1)
                    self.answer(206, body[first : last + 1], Content_Range=f"bytes {first}-{last}/{len(body)}", **time)

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        for name, value in {
            "AWS_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "anything",
        }.items():
            monkeypatch.setenv(name, value)
        yield objects
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
