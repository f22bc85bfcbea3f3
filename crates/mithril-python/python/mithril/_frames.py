"""One buffer or array to a frame, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mithril import _mithril
from mithril._source import Source, read, writable
from mithril._types import Coding

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Buffer

    from mithril._source import Readable


def compress(
    data: Readable,
    *,
    dtype: str | None = None,
    level: int | None = None,
    threads: int = 0,
    auto: bool = True,
    effort: str | None = None,
) -> bytes:
    """Compress a buffer or an array to a frame that says itself what it holds.

    Args:
        data: bytes, bytearray, memoryview, mmap or anything else with a buffer; or an array or tensor of numpy, torch, jax,
            mlx or anything with DLPack, whose dtype and shape are kept. Read where it lies; a copy is made only of what is
            not contiguous in C order or not little-endian.
        dtype: type of the elements of a raw buffer, such as "bf16", "fp16", "fp32" or "fp64"; plain bytes by default.
            Arrays have their own.
        level: level of zstd, 1 to 22, where data with repeats is handed to it; the effort decides by default.
        threads: 0 is one per core. The bytes do not depend on it.
        auto: False says that nothing slower than the fast path may be tried, and so contradicts a larger effort.
        effort: "fast" (the default), "balanced" or "max": how much work may go into size. Decoding stays fast.

    Returns:
        The frame.

    Raises:
        ValueError: an argument is out of its range, or `dtype` contradicts the array's.
        TypeError: `data` has neither a buffer nor DLPack.

    >>> import array
    >>> weights = array.array("f", [0.5, 0.25, 0.125] * 1000)
    >>> blob = compress(weights, dtype="fp32", effort="max")
    >>> len(blob) < 200, decompress(blob) == weights.tobytes()
    (True, True)
    """
    source = read(data, dtype)
    return _mithril.compress(source.data, source.dtype, source.shape, _coding(level, threads, auto, effort))


def decompress(blob: Buffer, *, out: Any = None, threads: int = 0, device: str = "cpu") -> Any:
    """Decompress a frame; every bit is as it was.

    Args:
        blob: the frame.
        out: writable memory of exactly the right length (bytearray, memoryview, mmap, array, CPU tensor), which is filled and
            returned; nothing of the size of the data is allocated then. When decompressing fails it may hold part of the
            data.
        threads: 0 is one per core.
        device: `cpu`, or `gpu` where mithril was built with the feature of that name. Blocks that no kernel knows are decoded
            on the CPU; the bytes are the same.

    Returns:
        bytes, or `out` if it was given.

    Raises:
        CorruptError, TruncatedError, UnsupportedError: `blob` is no intact frame; or there is no GPU, or no kernels.
        BaseMismatchError: it needs a base: see `decompress_delta`.
        ValueError: `out` has another length.

    >>> blob = compress(b"weights" * 10)
    >>> decompress(blob, out=bytearray(70))
    bytearray(b'weightsweightsweightsweightsweightsweightsweightsweightsweightsweights')
    """
    if device == "gpu":
        decoded = _mithril.decompress_on_gpu(blob)
        if out is None:
            return decoded
        memory = memoryview(writable(out)).cast("B")
        if len(memory) != len(decoded):
            raise ValueError(f"`out` has {len(memory)} bytes, the data {len(decoded)}")
        memory[:] = decoded
        return out
    if device != "cpu":
        raise ValueError(f"`device` is `cpu` or `gpu`, not `{device}`")
    if out is None:
        return _mithril.decompress(blob, None, threads)
    _mithril.decompress_into(blob, None, writable(out), threads)
    return out


def compress_array(
    arr: Any,
    *,
    level: int | None = None,
    threads: int = 0,
    auto: bool = True,
    effort: str | None = None,
) -> bytes:
    """Compress an array or tensor with its dtype and shape: as `compress`, but refuses what has neither.

    >>> import numpy as np
    >>> blob = compress_array(np.eye(3, dtype=np.float32))
    >>> decompress_array(blob)
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    source = read(arr, None)
    if source.shape is None:
        raise TypeError(f"an array or tensor is needed, not {type(arr).__name__}")
    return _mithril.compress(source.data, source.dtype, source.shape, _coding(level, threads, auto, effort))


def decompress_array(blob: Buffer, *, threads: int = 0) -> np.ndarray[Any, Any]:
    """Decompress a frame to a new numpy array of its dtype and shape; one dimension if the frame has no shape.

    Number types that numpy lacks (bf16, fp8, ...) come as those of the package `ml_dtypes`.

    Raises:
        CorruptError, TruncatedError, UnsupportedError: `blob` is no intact frame, or its type has no numpy counterpart.
    """
    from mithril._adapters import numpy as adapter

    info = _mithril.inspect(blob)
    if info.dtype == "BYTES":
        shape: tuple[int, ...] | None = info.shape
        dtype = "U8"
    else:
        shape, dtype = info.shape, info.dtype
    size = _mithril.output_len(blob)
    if shape is None:
        shape = (size // dtype_width(dtype),)
    array, memory = adapter.empty(dtype, shape, size)
    _mithril.decompress_into(blob, None, memory, threads)
    return array


def compress_delta(
    current: Readable,
    reference: Readable,
    *,
    dtype: str | None = None,
    level: int | None = None,
    threads: int = 0,
    effort: str | None = None,
) -> bytes:
    """Compress a buffer or array as what changed since another of the same length: an earlier step, a base model.

    The frame is never larger than that of `compress`. It names its reference by a digest, so that another one is refused.

    >>> before, after = bytes(4000), bytes(3999) + b"x"
    >>> blob = compress_delta(after, before, dtype="bf16")
    >>> decompress_delta(blob, before) == after
    True

    Raises:
        ValueError: the two have different lengths or types, or an argument is out of its range.
    """
    source, base = read(current, dtype), read(reference, dtype)
    if source.dtype != base.dtype:
        raise ValueError(f"current is {source.dtype or 'bytes'}, reference is {base.dtype or 'bytes'}")
    coding = _coding(level, threads, True, effort)
    return _mithril.compress_delta(source.data, base.data, source.dtype, source.shape, coding)


def decompress_delta(blob: Buffer, reference: Readable, *, out: Any = None, threads: int = 0) -> Any:
    """Decompress a frame that `compress_delta` made, with the same reference.

    Args:
        blob: the frame.
        reference: what it was made with.
        out: as in `decompress`; must not share memory with the reference.
        threads: 0 is one per core.

    Raises:
        BaseMismatchError: the reference is another one. Nothing has been written to `out` then.
    """
    base = read(reference, None)
    if out is None:
        return _mithril.decompress(blob, base.data, threads)
    _mithril.decompress_into(blob, base.data, writable(out), threads)
    return out


def is_mithril(blob: Buffer) -> bool:
    """Tell whether bytes start like something that mithril wrote: a frame or a container.

    >>> is_mithril(compress(b"weights")), is_mithril(b"weights")
    (True, False)
    """
    return _mithril.magic(blob) is not None


def dtype_width(dtype: str | None) -> int:
    """Bytes of one element; 1 where several share a byte, and for plain bytes.

    >>> dtype_width("bf16"), dtype_width("fp64"), dtype_width(None)
    (2, 8, 1)
    """
    return _mithril.dtype_width(dtype)


def inspect(blob: Buffer) -> _mithril.FrameInfo:
    """Describe a frame without decoding it.

    >>> info = inspect(compress(bytes(4096), dtype="fp32"))
    >>> info.dtype, info.original_size, info.ratio > 10
    ('F32', 4096, True)
    """
    return _mithril.inspect(blob)


def _coding(level: int | None, threads: int, auto: bool, effort: str | None) -> Coding:
    if not auto and effort not in (None, "fast"):
        raise ValueError(f"auto=False allows the fast path only, and effort is {effort!r}")
    return (level, threads, effort, None)


__all__ = [
    "Source",
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
