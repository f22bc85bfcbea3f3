"""Whether boxes of a tensor's elements can be its chunks: inside of it, apart from each other, and all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Numbers = tuple[int, ...]
Box = tuple[Numbers, Numbers]
"""Offsets and sizes."""


def numbers(values: Any) -> Numbers:
    """Offsets or sizes, if that is what they are."""
    if not isinstance(values, (list, tuple)) or not all(type(value) is int and value >= 0 for value in values):
        raise ValueError(f"{values} are not sizes or offsets")
    return tuple(values)


def check(tensor: str, size: Numbers, boxes: Sequence[Box], *, is_whole: bool = True) -> None:
    """Refuses chunks that leave their tensor, or overlap, or with `is_whole` leave something of it out."""
    for offsets, sizes in boxes:
        if len(offsets) != len(size) or len(sizes) != len(size):
            raise ValueError(f"a chunk of `{tensor}` at {list(offsets)} has other dimensions than the tensor")
        if any(start + length > end for start, length, end in zip(offsets, sizes, size, strict=True)):
            raise ValueError(f"a chunk of `{tensor}` at {list(offsets)} leaves the tensor, which has the shape {list(size)}")
    full = [box for box in boxes if 0 not in box[1]]
    if not _are_apart(full, set(range(len(size)))):
        raise ValueError(f"chunks of `{tensor}` overlap")
    if is_whole and sum(math.prod(sizes) for _, sizes in full) != math.prod(size):
        raise ValueError(f"the chunks of `{tensor}` do not make up the whole of it")


def _are_apart(boxes: Sequence[Box], dimensions: set[int]) -> bool:
    """Whether no two boxes overlap; in other dimensions than these all of them do."""
    if len(boxes) < 2:
        return True
    for dimension in dimensions:
        groups = _groups(boxes, dimension)
        if len(groups) > 1:
            return all(_are_apart(group, dimensions) for group in groups)
        if len({(offsets[dimension], sizes[dimension]) for offsets, sizes in boxes}) == 1:
            # It tells none of them apart.
            return _are_apart(boxes, dimensions - {dimension})
    # No cut goes between them: seldom, and of few.
    return bool(dimensions) and not any(
        _overlap(one, other) for number, one in enumerate(boxes) for other in boxes[number + 1 :]
    )


def _groups(boxes: Sequence[Box], dimension: int) -> list[list[Box]]:
    """Boxes by stretches of a dimension that do not overlap."""
    groups: list[list[Box]] = []
    end = 0
    for box in sorted(boxes, key=lambda box: box[0][dimension]):
        start = box[0][dimension]
        if not groups or start >= end:
            groups.append([])
        groups[-1].append(box)
        end = max(end, start + box[1][dimension])
    return groups


def _overlap(one: Box, other: Box) -> bool:
    return all(
        start < other_start + other_length and other_start < start + length
        for start, length, other_start, other_length in zip(*one, *other, strict=True)
    )
