"""Types that several modules speak of."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Union

# A name of a file.
Path = Union[str, "os.PathLike[str]"]

# Called with bytes that are done, all bytes, and the tensor at work.
Callback = Callable[[int, int, str], object]

# What users give as `progress`: True for a bar.
Progress = Union[bool, Callback, None]

# Level, threads, effort, and bytes of a block at most.
Coding = tuple[int | None, int, str | None, int | None]

# Bytes of the original file, bytes of the container, tensors.
Sizes = tuple[int, int, int]

# Deltas, fields, level, effort, threads, depth of chains, cost of restoring; the newest, every n-th and named checkpoints
# that are kept; whether weights start where their moments say; how saves are checked.
StoreConfig = tuple[bool, bool, int | None, str | None, int, int, float, int | None, int | None, tuple[str, ...], bool, str]

# Name, number type, dimensions and bytes of a tensor that is stored.
StoredTensor = tuple[str, str, list[int], int]

# Size of a dictionary, level, k, d, id, whether to search, whether it is bare content, threads.
DictionaryTraining = tuple[int | None, int, int | None, int | None, int | None, bool, bool, int]

# Patterns with their submodules, one file or many, threads and bytes of a workgroup, shared memory, range of modules, whether
# every bit is compared, threads.
Df11Encoding = tuple[list[tuple[str, list[str]]] | None, bool, int, int, int | None, tuple[int, int] | None, bool, int]
