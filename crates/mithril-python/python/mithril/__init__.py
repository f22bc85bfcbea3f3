"""Lossless compression of neural-network weights at close to memory speed.

>>> import mithril
>>> weights = bytes(range(256)) * 64
>>> blob = mithril.compress(weights, dtype="u8")
>>> mithril.decompress(blob) == weights
True

Whatever has a buffer or DLPack is read where it lies, without a copy. The interpreter runs other threads meanwhile: whoever
changes a buffer while it is being compressed gets the bytes of some moment in between.

Importing this package imports no framework, and not numpy either: each is imported when one of its objects comes along.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mithril._frames import (
    compress,
    compress_array,
    compress_delta,
    decompress,
    decompress_array,
    decompress_delta,
    dtype_width,
    inspect,
    is_mithril,
)
from mithril._mithril import (
    BaseMismatchError,
    ConflictError,
    CorruptError,
    FrameInfo,
    MithrilError,
    NotFoundError,
    StorageError,
    TruncatedError,
    UnsupportedError,
    __version__,
)

if TYPE_CHECKING:
    from types import ModuleType

    from mithril import checkpoint as checkpoint
    from mithril import chunked as chunked
    from mithril import df11 as df11
    from mithril import dictionary as dictionary
    from mithril import model_delta as model_delta
    from mithril import safetensors as safetensors

__all__ = [
    "BaseMismatchError",
    "ConflictError",
    "CorruptError",
    "FrameInfo",
    "MithrilError",
    "NotFoundError",
    "StorageError",
    "TruncatedError",
    "UnsupportedError",
    "__version__",
    "compress",
    "compress_array",
    "compress_delta",
    "decompress",
    "decompress_array",
    "decompress_delta",
    "dtype_width",
    "inspect",
    "is_mithril",
]

# Modules that are imported when they are first used, so that `import mithril` is quick.
_SUBMODULES = ("checkpoint", "chunked", "df11", "dictionary", "model_delta", "safetensors")


def __getattr__(name: str) -> ModuleType:
    if name in _SUBMODULES:
        return importlib.import_module(f"mithril.{name}")
    raise AttributeError(f"module 'mithril' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES])
