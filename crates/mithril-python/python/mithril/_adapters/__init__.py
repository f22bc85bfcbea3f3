"""What mithril knows of each framework: one module each, imported when one of its objects comes along.

Every adapter has

- `is_tensor(value)`: whether a value is one of its arrays, or of a type that is made of them;
- `refusal(value)`: why one of those is no plain array, whose type, shape and numbers are all of it, and what to do; else None;
- `borrow(tensor)`: contiguous little-endian bytes of it, the name of its number type, its shape. Refuses what is not plain;
- `empty(dtype, shape, size)`: something to decode into, and its memory of `size` bytes; `finish` makes the array of it;
- `memory(tensor)`: the writable memory of an array.

For whole states of training runs also

- `describe(tensor)`: what else is to be kept of an array, as JSON;
- `identity(tensor)`: equal for arrays that share memory;
- `together(tensors)`: one array that holds the memory of several, and how each is a view of it;
- `place(tensor, entry, map_location)`: the array on the device where it belongs;
- `restore(tensor, entry)`: the view that an array was, with all that `describe` kept.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Protocol, cast

# The module that is there once a framework is in use, and its adapter. The order decides for objects of two kinds.
_FRAMEWORKS = {"numpy": "numpy", "torch": "torch", "jax": "jax", "mlx.core": "mlx"}


class Adapter(Protocol):
    """What the module of a framework offers."""

    FRAMEWORK: str

    def is_tensor(self, value: Any) -> bool: ...
    def refusal(self, value: Any) -> str | None: ...
    def borrow(self, tensor: Any) -> tuple[Any, str, tuple[int, ...]]: ...
    def empty(self, dtype: str, shape: tuple[int, ...], size: int) -> tuple[Any, Any]: ...
    def finish(self, filled: Any) -> Any: ...
    def memory(self, tensor: Any) -> Any: ...
    def describe(self, tensor: Any) -> dict[str, Any]: ...
    def identity(self, tensor: Any) -> Any: ...
    def together(self, tensors: list[Any]) -> tuple[Any, list[dict[str, Any] | None]]: ...
    def place(self, tensor: Any, entry: dict[str, Any], map_location: Any) -> Any: ...
    def restore(self, tensor: Any, entry: dict[str, Any]) -> Any: ...


def of(value: Any) -> Adapter | None:
    """The adapter of a value, if it is an array of a framework. Imports no framework that is not in use."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return None
    for module, name in _FRAMEWORKS.items():
        if module in sys.modules:
            adapter = named(name)
            if adapter.is_tensor(value):
                return adapter
    return None


def refuse(value: Any, reason: str | None) -> None:
    """Refuses what is more than a plain array, if there is a reason: something would be lost without a word."""
    if reason is not None:
        raise TypeError(f"a {name_of_type(value)} is not stored: {reason}")


def name_of_type(value: Any) -> str:
    """The full name of a value's type."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def named(name: str) -> Adapter:
    """The adapter of a framework, which is imported."""
    return cast("Adapter", importlib.import_module(f"mithril._adapters.{name}"))
