"""Files that are there already."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mithril._types import Path


@contextlib.contextmanager
def named_if_there(out_path: Path) -> Iterator[None]:
    """Says of an output that is there already how it may be replaced."""
    try:
        yield
    except FileExistsError:
        what = "the output is there already; `overwrite=True` replaces it"
        raise FileExistsError(errno.EEXIST, what, os.fspath(out_path)) from None
