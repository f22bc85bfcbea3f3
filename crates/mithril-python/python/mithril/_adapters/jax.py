"""Arrays of JAX, which are never changed: what is decoded goes through numpy."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from mithril._adapters import numpy as numpy_adapter
from mithril._adapters import refuse
from mithril._adapters._immutable import describe as describe
from mithril._adapters._immutable import identity as identity
from mithril._adapters._immutable import place as place
from mithril._adapters._immutable import restore as restore
from mithril._adapters._immutable import together as together

FRAMEWORK = "jax"


def is_tensor(value: Any) -> bool:
    """Whether a value is an array of JAX."""
    return isinstance(value, jax.Array)


def refusal(value: Any) -> str | None:
    """Why a value is more than its numbers, or has none."""
    if isinstance(value, jax.core.Tracer):
        return "it has no values while a function is traced; store what the function returns"
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return "it is a random key; store its `jax.random.key_data`"
    if not value.is_fully_addressable:
        return "other processes have parts of it; save it by mithril.checkpoint.orbax"
    return None


def borrow(tensor: Any) -> tuple[Any, str, tuple[int, ...]]:
    """The bytes of an array; without a copy if it is on the CPU."""
    refuse(tensor, refusal(tensor))
    return numpy_adapter.borrow(np.asarray(tensor))


def empty(dtype: str, shape: tuple[int, ...], size: int) -> tuple[Any, Any]:
    """A new array of numpy, which `finish` makes one of JAX, and its memory."""
    return numpy_adapter.empty(dtype, shape, size)


def finish(filled: Any) -> Any:
    """The array of JAX. 64-bit types need `jax_enable_x64`: without it JAX would narrow them."""
    array = jax.numpy.asarray(filled)
    if array.dtype != filled.dtype:
        raise ValueError(f"JAX narrows {filled.dtype} to {array.dtype} unless `jax_enable_x64` is set")
    return array


def memory(tensor: Any) -> Any:
    """Refuses: these arrays are never written to."""
    raise ValueError("arrays of JAX cannot be written to: decompress into something else")
