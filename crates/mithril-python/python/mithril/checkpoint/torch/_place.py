"""Where checkpoints of DCP may be."""

from __future__ import annotations

import os
from pathlib import Path

from mithril._mithril import UnsupportedError


def local_path(place: str | os.PathLike[str]) -> Path:
    """The directory that a path, or a URL of `file://` or `local://`, names."""
    text = os.fspath(place)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Path(text)
    if scheme in ("file", "local"):
        return Path(rest)
    raise UnsupportedError(f"checkpoints of DCP are directories so far: `{text}` is none")
