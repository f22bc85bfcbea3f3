"""Waits until the disk has what was written."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """A file's bytes, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
