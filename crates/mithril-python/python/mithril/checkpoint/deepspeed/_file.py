"""One file of a DeepSpeed checkpoint: a container with the tensors of a state, and the rest of it as text.

The text is the tensor `state`, in bytes: a version, the number type and shape of each tensor, and the text of `_state`.
Objects that have no representation there are pickles in it, which DeepSpeed's own files are as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mithril import _mithril
from mithril._mithril import CorruptError, UnsupportedError
from mithril._types import Coding
from mithril.checkpoint import _state

_STATE = "state"
_PREFIX = "tensor/"
_VERSION = 1
_MAGIC = b"MCKP"

StoredTensors = list[tuple[str, str, tuple[int, ...], Any]]


def is_ours(path: Path) -> bool:
    """Whether a file is one that `write` wrote."""
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def encode(state: Any, *, trusted: bool, byte_grouping: bool, copied: bool) -> StoredTensors:
    """A state as tensors of a container. With `copied`, the state may be changed while they are being written."""
    encoded = _state.encode(state, trusted=trusted, keeps_views=False)
    described = {name: [dtype, list(shape)] for name, dtype, shape, _ in encoded.tensors}
    text = json.dumps({"version": _VERSION, "tensors": described, "state": encoded.text}).encode()
    stored: StoredTensors = [(_STATE, "U8", (len(text),), text)]
    for name, dtype, shape, borrowed in encoded.tensors:
        data = bytes(borrowed) if copied else borrowed
        if byte_grouping:
            stored.append((_PREFIX + name, dtype, shape, data))
        else:
            stored.append((_PREFIX + name, "U8", (len(data),), data))
    return stored


def write(path: Path, tensors: StoredTensors, coding: Coding, bases: Sequence[Path]) -> None:
    """Writes a file that appears whole or not at all, and is on disk when this returns."""
    _mithril.pack_tensors(tensors, None, path, bases, coding, None)


def read(path: Path, bases: Sequence[Path], *, map_location: Any = None, threads: int = 0, trusted: bool = True) -> Any:
    """The state of a file."""
    model = _mithril.Model.open(path, bases)
    try:
        try:
            outer = json.loads(model.read_bytes(_STATE, threads))
            version = outer["version"]
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"`{path}` holds no state: {error}") from None
        if version != _VERSION:
            raise UnsupportedError(f"`{path}` is of version {version}; this mithril reads version {_VERSION}")
        stored = [(name, dtype, shape, _size(dtype, shape)) for name, (dtype, shape) in outer["tensors"].items()]

        def load(buffers: list[tuple[str, Any]]) -> None:
            for name, memory in buffers:
                model.read(_PREFIX + name, None, _given(memory), threads)

        return _state.decode(outer["state"], stored, load, map_location=map_location, trusted=trusted)
    finally:
        model.close()


def _given(memory: Any) -> Callable[[int], Any]:
    return lambda _size: memory


def _size(dtype: str, shape: list[int]) -> int:
    size = _mithril.dtype_width(dtype)
    for length in shape:
        size *= length
    return size
