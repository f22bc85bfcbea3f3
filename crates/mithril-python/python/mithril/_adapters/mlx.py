"""Arrays of MLX."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mithril._adapters import numpy as numpy_adapter
from mithril._adapters import refuse
from mithril._adapters._dtypes import TABLE
from mithril._adapters._immutable import describe as describe
from mithril._adapters._immutable import identity as identity
from mithril._adapters._immutable import place as place
from mithril._adapters._immutable import restore as restore
from mithril._adapters._immutable import together as together
from mithril._mithril import UnsupportedError

_NAMES = {getattr(mx, names.mlx): names.ours for names in TABLE if names.mlx is not None}
_TYPES = {ours: theirs for theirs, ours in _NAMES.items()}

FRAMEWORK = "mlx"


def is_tensor(value: Any) -> bool:
    """Whether a value is an array of MLX."""
    return isinstance(value, mx.array)


def refusal(value: Any) -> str | None:
    """Why a value is more than its numbers: subclasses of arrays."""
    return None if type(value) is mx.array else "what it is beside its numbers would be lost; store `mx.array` of it"


def borrow(tensor: Any) -> tuple[Any, str, tuple[int, ...]]:
    """The bytes of an array."""
    refuse(tensor, refusal(tensor))
    name = _NAMES.get(tensor.dtype)
    if name is None:
        raise TypeError(f"unsupported MLX dtype {tensor.dtype}")
    if tensor.size == 0:
        return b"", name, tuple(tensor.shape)
    flat = mx.contiguous(tensor).reshape(-1)
    flat = flat.view(mx.uint8)
    mx.eval(flat)
    # It has a buffer, which its types do not say.
    lent: Any = flat
    return memoryview(lent), name, tuple(tensor.shape)


def empty(dtype: str, shape: tuple[int, ...], size: int) -> tuple[Any, Any]:
    """A new array of numpy, which `finish` makes one of MLX, and its memory."""
    return numpy_adapter.empty(dtype, shape, size)


def finish(filled: Any) -> Any:
    """The array of MLX."""
    dtype = _TYPES.get(numpy_adapter.dtype_name(filled.dtype))
    if dtype is None:
        raise UnsupportedError(f"MLX has no type for {filled.dtype}")
    if filled.size == 0:
        return mx.zeros(filled.shape, dtype)
    # Through bytes: MLX would convert some types by value.
    return mx.array(filled.reshape(-1).view("uint8")).view(dtype).reshape(filled.shape)


def memory(tensor: Any) -> Any:
    """Refuses: these arrays are never written to."""
    raise ValueError("arrays of MLX cannot be written to: decompress into something else")
