"""Sharded checkpoints in object stores that keep their promises, and that do not."""

from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from object_server import object_server

import mithril
from mithril import _mithril
from mithril.checkpoint import torch as ours

pytestmark = pytest.mark.filterwarnings("ignore")


def state() -> dict[str, Any]:
    return {"w": torch.arange(3000.0)}


def save(url: str, **options: Any) -> None:
    dcp.save(state(), storage_writer=ours.MithrilStorageWriter(url, **options), no_dist=True)


def test_sharded_checkpoints_are_refused_where_writers_replace_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with object_server(monkeypatch, is_exclusive=False) as objects:
        with pytest.raises(BaseException, match="ignores the header If-None-Match"):
            save("s3://bucket/run/step_1")
        assert objects == {}, "nothing is left"
        with pytest.raises(mithril.UnsupportedError, match="ignores the header If-None-Match"):
            _mithril.Storage("s3://bucket/run").put_new("name", b"content")
        assert objects == {}


def test_sharded_checkpoints_are_saved_where_one_of_two_writers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with object_server(monkeypatch) as objects:
        save("s3://bucket/run/step_1")
        found = {"w": torch.zeros(3000)}
        dcp.load(found, storage_reader=ours.MithrilStorageReader("s3://bucket/run/step_1"), no_dist=True)
        assert torch.equal(found["w"], state()["w"])
        with pytest.raises(BaseException, match="overwrite=True"):
            save("s3://bucket/run/step_1")
        assert "run/step_1/manifest.json" in objects
        assert ours.clean("s3://bucket/run", min_age=0).removed == []
        objects["run/step_2/conditional"] = b"of a save that was killed"
        assert ours.clean("s3://bucket/run", min_age=0).removed == ["s3://bucket/run/step_2/conditional"]
        assert ours.latest("s3://bucket/run") == "s3://bucket/run/step_1"
