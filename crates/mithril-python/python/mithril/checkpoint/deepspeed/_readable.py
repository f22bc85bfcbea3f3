"""Compressed files for code that calls `torch.load` itself."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mithril.checkpoint.deepspeed import _file
from mithril.checkpoint.deepspeed._engine import load_file


@contextlib.contextmanager
def readable_by_torch() -> Iterator[None]:
    """While this lasts, `torch.load` reads the files of compressed checkpoints as well.

    For those parts of DeepSpeed that read files by themselves, such as `get_fp32_state_dict_from_zero_checkpoint`, and
    `engine.load_checkpoint(..., load_optimizer_states=False)` at stage 3. It holds for the whole process, on all threads.
    """
    before = torch.load

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(f, (str, os.PathLike)) or not _file.is_ours(Path(f)):
            return before(f, map_location, *args, **kwargs)
        # As in torch, pickles are run only where that was asked for.
        return load_file(Path(f), map_location=map_location, trusted=kwargs.get("weights_only") is False)

    torch.load = load
    try:
        yield
    finally:
        torch.load = before
