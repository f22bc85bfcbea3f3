"""Arrays that another thread changes while they are compressed or saved."""

import contextlib
import threading

import numpy as np
import pytest

import mithril
import mithril.checkpoint

RNG = np.random.default_rng(6)
# Two states of the same weights, far enough from each other that no element is the same in both.
BEFORE = (RNG.standard_normal(600_000) * 0.02).astype(np.float32)
AFTER = (BEFORE * np.float32(1.5) + np.float32(1e-3)).astype(np.float32)


@contextlib.contextmanager
def changing(array, states):
    """Another thread writes one state over the other, again and again, in pieces of odd lengths."""
    stop = threading.Event()

    def change():
        while not stop.is_set():
            for state in states:
                for at in range(0, len(array), 77_777):
                    array[at : at + 77_777] = state[at : at + 77_777]

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def had(values, states):
    """Whether every element is one that the array had at some moment."""
    return bool(np.logical_or(*(values == state for state in states)).all())


@pytest.mark.parametrize("effort", ["fast", "balanced", "max"])
def test_frames_of_a_changing_array_decode_to_what_it_had(effort):
    states = [state[:150_000] if effort == "max" else state for state in (BEFORE, AFTER)]
    array = states[0].copy()
    with changing(array, states):
        blobs = [mithril.compress(array, effort=effort, threads=threads) for threads in (1, 2) * 3]
    for blob in blobs:
        assert had(np.frombuffer(mithril.decompress(blob), np.float32), states)


def test_deltas_of_a_changing_array_decode_to_what_it_had():
    array = BEFORE.copy()
    with changing(array, [BEFORE, AFTER]):
        blobs = [mithril.compress_delta(array, BEFORE) for _ in range(6)]
    for blob in blobs:
        assert had(np.frombuffer(mithril.decompress_delta(blob, BEFORE), np.float32), [BEFORE, AFTER])


def test_saves_of_changing_arrays_load_and_can_be_built_on(tmp_path):
    compressor = mithril.checkpoint.Compressor(tmp_path / "store")
    small = [BEFORE[:3000], AFTER[:3000]]
    array, part = BEFORE.copy(), BEFORE[:3000].copy()
    # One that is equal to one state of another.
    fixed = AFTER.copy()
    previous = None
    with changing(array, [BEFORE, AFTER]), changing(part, small):
        for number in range(8):
            key = f"step_{number}"
            compressor.save({"array": array, "fixed": fixed, "part": part}, key, previous)
            # Full ones and ones of several levels.
            previous = key if number % 4 else None
    report = compressor.verify(deep=True)
    assert report.damaged == [] and len(report.intact) == 8
    for number in range(8):
        state = compressor.load(f"step_{number}")
        assert had(state["array"], [BEFORE, AFTER]) and had(state["part"], small)
        assert np.array_equal(state["fixed"], AFTER)
