"""The calls of `safetensors.flax`, on packed files: arrays of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mithril.safetensors import _save
from mithril.safetensors._save import save, save_file

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from mithril._types import Path

__all__ = ["load", "load_file", "save", "save_file"]


def load(data: Buffer, *, threads: int = 0) -> dict[str, Any]:
    """All tensors of the bytes of a packed or plain file, by name."""
    return _save.load(data, framework="flax", threads=threads)


def load_file(filename: Path, *, backend: str = "mmap", base: Path | None = None, threads: int = 0) -> dict[str, Any]:
    """All tensors of a packed or plain file, by name."""
    return _save.load_file(filename, framework="flax", backend=backend, base=base, threads=threads)
