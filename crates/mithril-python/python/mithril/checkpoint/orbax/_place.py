"""Where Orbax says that a checkpoint is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mithril._mithril import UnsupportedError


def local_path(directory: Any) -> Path:
    """The directory of a path of `etils`, which may also be one of an object store."""
    text = os.fspath(directory)
    if "://" in text:
        raise UnsupportedError(f"checkpoints of Orbax are directories so far: `{text}` is none")
    return Path(text)
