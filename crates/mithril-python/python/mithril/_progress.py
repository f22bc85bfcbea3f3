"""What `progress=` may be, made a function that is called from time to time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mithril._types import Callback, Progress


@contextlib.contextmanager
def callback(progress: Progress) -> Iterator[Callback | None]:
    """A function to call, or none. True draws a bar if `tqdm` is there, and nothing without it."""
    if callable(progress):
        yield progress
        return
    if not progress:
        yield None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield None
        return
    with tqdm(unit="B", unit_scale=True, unit_divisor=1024) as bar:
        yield lambda done, total, name: _draw(bar, done, total, name)


def _draw(bar: Any, done: int, total: int, name: str) -> None:
    bar.total = total
    bar.set_postfix_str(name, refresh=False)
    bar.update(done - bar.n)
