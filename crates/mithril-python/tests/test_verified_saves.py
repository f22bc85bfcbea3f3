"""How far a save of a `Compressor` is checked before it is committed."""

import contextlib
import pickle
from typing import Any

import numpy as np
import pytest
from object_server import object_server

import mithril
from mithril.checkpoint import Compressor


@pytest.mark.parametrize("verify", ["chain", "full"])
def test_what_is_written_is_decoded_if_asked_for(monkeypatch: pytest.MonkeyPatch, verify: Any) -> None:
    noise = np.random.default_rng(1).bytes(100_000)

    def damaged(key: str, content: bytes) -> bytes:
        # In the middle of the tensor; its container is opened all the same.
        middle = 50_000
        is_data = key.endswith(".mckp")
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :] if is_data else content

    with object_server(monkeypatch, shown=damaged):
        compressor = Compressor("s3://bucket/run", verify=verify)
        with pytest.raises(mithril.CorruptError) if verify == "full" else contextlib.nullcontext():
            compressor.save({"w": np.frombuffer(noise, np.uint8)}, "step_1")
        assert compressor.keys() == ([] if verify == "full" else ["step_1"])
        assert pickle.loads(pickle.dumps(compressor)).keys() == compressor.keys()


def test_a_check_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match='"chain" or "full", not "deep"'):
        Compressor("memory://", verify="deep")  # type: ignore[arg-type]
