"""Users, passwords and queries of URLs are in no message, no `repr` and no manifest."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import mithril
from mithril.checkpoint import torch as ours
from mithril.checkpoint._place import Place
from mithril.checkpoint._pointers import Pointers

pytestmark = pytest.mark.filterwarnings("ignore")

SECRETS = ("alice", "hunter2", "signature9")


def state() -> dict[str, Any]:
    return {"w": torch.arange(30.0)}


def save(url: str, **options: Any) -> None:
    dcp.save(state(), storage_writer=ours.MithrilStorageWriter(url, **options), no_dist=True)


URLS = ("http://alice:hunter2@HOST/run/step_1", "http://HOST/run?sig=signature9", "ftp://alice:hunter2@host/x")
CALLS: list[Callable[[str], Any]] = [
    ours.latest,
    lambda url: Place(url).parent.storage.get("name", 10),
    lambda url: dcp.load(state(), storage_reader=ours.MithrilStorageReader(url), no_dist=True),
    save,
    lambda url: ours.save(state(), checkpoint_id=url, no_dist=True),
    lambda url: save("s3://bucket/x", base=url),
    lambda url: ours.MithrilStorageWriter("s3://bucket/x", base=url).base.relative_to(Place("s3://bucket/x")),  # type: ignore[union-attr]
    lambda url: Pointers(None, {}).save(url, state()),
    lambda url: Pointers(url, {}).save("pointer", state()),
    lambda url: mithril.safetensors.torch.load_file(url),
]


@pytest.fixture
def host() -> Iterator[str]:
    """A server that has nothing, and repeats what it was asked for."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_arguments: Any) -> None:
            """Nothing is said."""

        def do_GET(self) -> None:
            self.send_error(404, f"no {self.path}")

        do_HEAD = do_PUT = do_PROPFIND = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("call", CALLS)
def test_no_secret_of_a_url_is_in_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, host: str, call: Any, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BaseException) as raised:
        call(url.replace("HOST", host))
    error: BaseException | None = raised.value
    said = [caplog.text]
    while error is not None:
        said += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    assert not [secret for secret in SECRETS if secret in "\n".join(said)], said


def test_no_secret_of_a_url_is_shown_or_stored() -> None:
    for url in ("s3://alice:hunter2@bucket/run/step_1", "https://alice:hunter2@host/run/step_1?sig=signature9"):
        for place in (Place(url), ours.MithrilStorageWriter(url).path, ours.MithrilStorageReader(url).path):
            shown = [str(place), repr(place), f"{place}", f"{place!s:>90}", repr([place])]
            assert not [text for text in shown for secret in SECRETS if secret in text]
            assert place.text == url
        with pytest.raises(mithril.UnsupportedError, match="has secrets"):
            Place(url).relative_to(Place("gs://other/run/step_2"))
    one = Place("s3://alice:hunter2@bucket/run/step_1")
    assert one.relative_to(Place("s3://alice:hunter2@bucket/run/step_2")) == "../step_1"
    assert str(Place("gs://bucket/run/step_1")) == "gs://bucket/run/step_1"
