"""Boxes of a tensor's elements, put together from the chunks that overlap with them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from mithril._mithril import CorruptError
from mithril.checkpoint._chunks import Checkpoint
from mithril.checkpoint._manifest import Chunk, Tensor

Array = np.ndarray[Any, Any]


class Box(NamedTuple):
    """Where a box lies in its tensor, and the array that it is read into: of the tensor's type, in C order."""

    offsets: tuple[int, ...]
    array: Array


class _Overlap(NamedTuple):
    """What a box and a chunk have in common: from where to where in each of them."""

    box: Box
    in_box: tuple[slice, ...]
    in_chunk: tuple[slice, ...]
    n_elements: int


def read(checkpoint: Checkpoint, name: str, boxes: list[Box]) -> None:
    """Fills boxes of a tensor that do not overlap with each other. Every chunk is decoded once, and only rows in use."""
    tensor = checkpoint.manifest.tensors[name]
    wanted = sum(box.array.size for box in boxes)
    for chunk in tensor.chunks:
        overlaps = [overlap for box in boxes if (overlap := _overlap(box, chunk)) is not None]
        wanted -= sum(overlap.n_elements for overlap in overlaps)
        _read_chunk(checkpoint, chunk, overlaps)
    if wanted != 0:
        raise CorruptError(f"the chunks of `{name}` do not make up the whole of it")


def whole(tensor: Tensor, dtype: np.dtype[Any]) -> Box:
    """A box for all of a tensor."""
    return Box((0,) * len(tensor.size), np.empty(tensor.size, dtype))


def _overlap(box: Box, chunk: Chunk) -> _Overlap | None:
    if len(chunk.sizes) != box.array.ndim:
        raise CorruptError(f"chunk `{chunk.name}` has other dimensions than its tensor")
    in_box, in_chunk = [], []
    for start, length, at, size in zip(box.offsets, box.array.shape, chunk.offsets, chunk.sizes, strict=True):
        low, high = max(start, at), min(start + length, at + size)
        if low >= high:
            return None
        in_box.append(slice(low - start, high - start))
        in_chunk.append(slice(low - at, high - at))
    n_elements = math.prod(part.stop - part.start for part in in_box)
    return _Overlap(box, tuple(in_box), tuple(in_chunk), n_elements)


def _read_chunk(checkpoint: Checkpoint, chunk: Chunk, overlaps: list[_Overlap]) -> None:
    scattered = []
    for overlap in overlaps:
        array = overlap.box.array
        if chunk.sizes[1:] == array.shape[1:] and chunk.offsets[1:] == overlap.box.offsets[1:]:
            # Whole rows: they lie in the box as they do in the chunk.
            rows = array[overlap.in_box[0]] if array.ndim else array
            checkpoint.read_rows(chunk, *_bounds(overlap), array.itemsize, _memory(rows))
        else:
            scattered.append(overlap)
    if not scattered:
        return
    first = min(_bounds(overlap)[0] for overlap in scattered)
    end = max(_bounds(overlap)[1] for overlap in scattered)
    dtype = scattered[0].box.array.dtype

    def empty(n_rows: int) -> tuple[Array, Any]:
        rows = np.empty((n_rows, *chunk.sizes[1:]), dtype)
        return rows, _memory(rows)

    for start, stop, rows in checkpoint.rows(chunk, first, end, dtype.itemsize, empty):
        for overlap in scattered:
            lowest, highest = _bounds(overlap)
            low, high = max(start, lowest), min(stop, highest)
            if low < high:
                at = overlap.in_box[0].start - lowest
                part = rows[(slice(low - start, high - start), *overlap.in_chunk[1:])]
                overlap.box.array[(slice(low + at, high + at), *overlap.in_box[1:])] = part


def _bounds(overlap: _Overlap) -> tuple[int, int]:
    """First row of the chunk that is needed, and the one behind the last. Without dimensions it is one row."""
    return (overlap.in_chunk[0].start, overlap.in_chunk[0].stop) if overlap.in_chunk else (0, 1)


def _memory(array: Array) -> Any:
    return array.reshape(-1).view(np.uint8)
