"""Training checkpoints in a store: each saved as what changed since an earlier one, and none ever lost.

>>> import numpy as np
>>> import mithril.checkpoint as ckpt
>>> compressor = ckpt.Compressor(storage="memory://")
>>> state = {"model": {"w": np.linspace(-1, 1, 10_000, dtype=np.float32)}, "step": 900}
>>> _ = compressor.save(state, key="step_900")
>>> state["model"]["w"] *= np.float32(1.0001)
>>> meta = compressor.save(state, key="step_1000", previous_key="step_900")
>>> meta.ratio > 1.5
True
>>> np.array_equal(compressor.load("step_1000")["model"]["w"], state["model"]["w"])
True
"""

from __future__ import annotations

from mithril._mithril import CheckpointMeta
from mithril.checkpoint._compressor import Collected, Compressor, Listing, SaveHandle, Verified

__all__ = ["CheckpointMeta", "Collected", "Compressor", "Listing", "SaveHandle", "Verified"]
