"""Arrays of numpy, with the number types of `ml_dtypes`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mithril._adapters import refuse
from mithril._adapters._dtypes import TABLE
from mithril._mithril import UnsupportedError

_NAMES = {names.numpy: names.ours for names in TABLE if names.numpy is not None}
_TYPES = {ours: theirs for theirs, ours in _NAMES.items()}

FRAMEWORK = "numpy"


def is_tensor(value: Any) -> bool:
    """Whether a value is an array or a scalar of numpy."""
    return isinstance(value, (np.ndarray, np.generic))


def refusal(value: Any) -> str | None:
    """Why a value is more than its numbers: masked arrays, matrices and all other subclasses of arrays."""
    # Where the bytes of a `memmap` come from is nothing of the array itself.
    if isinstance(value, np.generic) or type(value) in (np.ndarray, np.memmap):
        return None
    if isinstance(value, np.ma.MaskedArray):
        return "its mask would be lost; store its `data` and its `mask`, or what `filled()` gives"
    return "what it is beside its numbers would be lost; store `numpy.asarray` of it"


def borrow(tensor: Any) -> tuple[Any, str, tuple[int, ...]]:
    """The bytes of an array. Copies only what is not in C order or not little-endian."""
    refuse(tensor, refusal(tensor))
    array = np.asarray(tensor)
    name = dtype_name(array.dtype)
    shape = array.shape
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    array = np.ascontiguousarray(array)
    return array.reshape(-1).view(np.uint8), name, shape


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Our name of a type of numpy or ml_dtypes."""
    name = _NAMES.get(dtype.name)
    if name is None:
        raise TypeError(f"unsupported numpy dtype {dtype}")
    return name


def dtype_of(name: str) -> np.dtype[Any]:
    """numpy's or ml_dtypes' type for our name."""
    theirs = _TYPES.get(name)
    if theirs is None:
        raise UnsupportedError(f"numpy has no type for {name}")
    try:
        return np.dtype(theirs)
    except TypeError:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, theirs))
        return found


def empty(dtype: str, shape: tuple[int, ...], size: int) -> tuple[np.ndarray[Any, Any], Any]:
    """A new array and its memory."""
    memory = np.empty(size, np.uint8)
    return memory.view(dtype_of(dtype)).reshape(shape), memory


def finish(filled: Any) -> Any:
    """The array is there already."""
    return filled


def memory(tensor: Any) -> Any:
    """The writable memory of an array, which must be contiguous."""
    refuse(tensor, refusal(tensor))
    if not isinstance(tensor, np.ndarray) or not tensor.flags.c_contiguous:
        raise ValueError("`out` must be a C-contiguous array")
    return tensor.reshape(-1).view(np.uint8)


def dtype_called(name: str) -> np.dtype[Any]:
    """The type that numpy or ml_dtypes calls by this name."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def describe(tensor: Any) -> dict[str, Any]:
    """Whether it is a scalar, and the order of its bytes if that is not the usual one."""
    kept: dict[str, Any] = {}
    if isinstance(tensor, np.generic):
        kept["scalar"] = True
    if np.asarray(tensor).dtype.byteorder == ">":
        kept["byteorder"] = ">"
    return kept


def identity(tensor: Any) -> Any:
    """Equal for views of the same elements."""
    if isinstance(tensor, np.generic) or tensor.size == 0:
        return id(tensor)
    start: int = tensor.__array_interface__["data"][0]
    return "numpy", start, tensor.shape, tensor.strides, tensor.dtype


def together(tensors: list[Any]) -> tuple[Any, list[dict[str, Any] | None]]:
    """Any of them: they are the same."""
    return tensors[0], [None] * len(tensors)


def place(tensor: Any, entry: dict[str, Any], map_location: Any) -> Any:
    """Arrays of numpy are on the CPU."""
    return tensor


def restore(tensor: Any, entry: dict[str, Any]) -> Any:
    """The scalar, or the order of bytes, that it was."""
    if entry.get("byteorder") == ">":
        tensor = tensor.astype(tensor.dtype.newbyteorder(">"))
    return tensor[()] if entry.get("scalar") else tensor
