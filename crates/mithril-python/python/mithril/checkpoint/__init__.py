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

from typing import TYPE_CHECKING

from mithril._mithril import CheckpointMeta
from mithril._submodules import submodules
from mithril.checkpoint._compressor import Collected, Compressor, Listing, SaveHandle, Verified

if TYPE_CHECKING:
    from mithril.checkpoint import deepspeed as deepspeed
    from mithril.checkpoint import lightning as lightning
    from mithril.checkpoint import orbax as orbax
    from mithril.checkpoint import torch as torch
    from mithril.checkpoint import transformers as transformers

__all__ = ["CheckpointMeta", "Collected", "Compressor", "Listing", "SaveHandle", "Verified"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = submodules(__name__, ("deepspeed", "lightning", "orbax", "torch", "transformers"), __all__)
