"""The edges of stores: which checkpoint is the newest, which stay, and what a place is where nothing was saved."""

import numpy as np
import pytest

import mithril
import mithril.checkpoint as ckpt

STATE = {"w": np.arange(1000, dtype=np.float32)}


def test_what_was_just_saved_is_not_removed_by_its_own_retention(tmp_path):
    compressor = ckpt.Compressor(tmp_path / "store", keep_last=2, keep_every=4000)
    for step in (8000, 9000, 10_000):
        compressor.save(STATE, f"step_{step}")
    # A run that went back: nothing of it is lost.
    for step in (8100, 8200):
        compressor.save(STATE, f"retry_{step}", step=step)
    assert compressor.keys() == ["retry_8100", "retry_8200", "step_10000", "step_8000"]
    assert compressor.latest().key == "step_10000"
    for key in ("best", "epoch=4-val_loss=0.20"):
        compressor.save(STATE, key)
        assert compressor.latest().key == key
    assert compressor.save_async(STATE, "final").result().key == "final"
    assert [meta.key for meta in compressor.list().checkpoints] == ["step_8000", "epoch=4-val_loss=0.20", "final"]


def test_a_place_where_nothing_was_saved_is_no_store(tmp_path):
    compressor = ckpt.Compressor(tmp_path / "runn7")
    # What a run asks that starts.
    assert compressor.latest() is None
    assert compressor.keys() == []
    assert compressor.list() == ([], [])
    for call in (
        lambda: compressor.load("step_1"),
        lambda: compressor.load_tensor("step_1", "w"),
        lambda: compressor.meta("step_1"),
        lambda: compressor.verify(),
        lambda: compressor.verify("step_1"),
        lambda: compressor.gc(),
        lambda: compressor.delete("step_1"),
        lambda: compressor.rebase("step_1"),
        lambda: compressor.apply_retention(),
    ):
        with pytest.raises(mithril.NotFoundError, match="there is no store at"):
            call()
    assert not (tmp_path / "runn7").exists()
    with pytest.raises(ValueError, match="stands for the newest"):
        compressor.save(STATE, "latest")
    compressor.save(STATE, "step_1")
    compressor.delete("step_1")
    assert compressor.gc().removed == []
    assert compressor.latest() is None


def test_no_secret_of_a_url_is_in_a_message(tmp_path):
    for url in ("ftp://alice:hunter2@host/x?sig=signature9", "s3://alice:hunter2@bucket/a//b?sig=signature9"):
        with pytest.raises((ValueError, mithril.MithrilError)) as raised:
            ckpt.Compressor(url).load("step_1")
        for secret in ("alice", "hunter2", "signature9"):
            assert secret not in str(raised.value)


@pytest.mark.parametrize("url", ["s3://alice:hunter2@bucket/runs", "https://alice:hunter2@host/runs?sig=signature9"])
def test_no_secret_of_a_url_is_shown_by_repr(url):
    shown = repr(ckpt.Compressor(url))
    assert shown.startswith("Compressor('") and "/runs" in shown
    assert not [secret for secret in ("alice", "hunter2", "signature9") if secret in shown]
