"""Lossless compression of neural-network weights at close to memory speed.

>>> import mithril
>>> weights = bytes(range(256)) * 64
>>> blob = mithril.compress(weights, dtype="u8")
>>> mithril.decompress(blob) == weights
True

Whatever has a buffer or DLPack is read where it lies. The interpreter runs other threads meanwhile: of a buffer that one of
them changes while it is being compressed, each block is kept as it was at some moment in between, and comes back so.

Importing this package imports no framework, and not numpy either: each is imported when one of its objects comes along.
"""

from __future__ import annotations

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
from mithril._submodules import submodules

if TYPE_CHECKING:
    from mithril import checkpoint as checkpoint
    from mithril import chunked as chunked
    from mithril import df11 as df11
    from mithril import dictionary as dictionary
    from mithril import mlx as mlx
    from mithril import model_delta as model_delta
    from mithril import safetensors as safetensors
    from mithril import torch as torch

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

if not TYPE_CHECKING:
    # Imported when they are first used, so that `import mithril` is quick. Hidden from type checkers, which take a module
    # with `__getattr__` to have every name, misspelled ones too.
    __getattr__, __dir__ = submodules(
        __name__,
        ("checkpoint", "chunked", "df11", "dictionary", "mlx", "model_delta", "safetensors", "torch"),
        __all__,
    )
