"""Frames of small blocks, for readers that need short ranges.

The same codec as `mithril.compress`, which works on blocks and on all cores anyway; here the caller says how large a block
may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mithril import _mithril
from mithril._frames import decompress as _decompress
from mithril._source import read

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from mithril._source import Readable

__all__ = ["compress", "decompress"]


def compress(
    data: Readable,
    *,
    dtype: str | None = None,
    level: int | None = None,
    threads: int = 0,
    chunk_size: int = 2 << 20,
) -> bytes:
    """Compress a buffer or array to a frame whose blocks hold at most `chunk_size` bytes each.

    Args:
        data, dtype, level, threads: as in `mithril.compress`.
        chunk_size: bytes of a block at most, before compression; at least 32768. The codec may choose smaller ones.

    >>> blob = compress(bytes(300_000), dtype="fp32", chunk_size=65536)
    >>> import mithril
    >>> mithril.inspect(blob).block_size <= 65536, decompress(blob) == bytes(300_000)
    (True, True)
    """
    if chunk_size < 32768:
        raise ValueError(f"chunk_size is at least 32768, not {chunk_size}")
    source = read(data, dtype)
    return _mithril.compress(source.data, source.dtype, source.shape, (level, threads, None, chunk_size))


def decompress(blob: Buffer, *, threads: int = 0) -> Any:
    """Decompress a frame: the same as `mithril.decompress`."""
    return _decompress(blob, threads=threads)
