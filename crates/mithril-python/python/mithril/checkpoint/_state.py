"""State of a training run as named tensors and a JSON text, and back. No pickle, unless the caller trusts it.

The text mirrors the state: objects, lists and plain values stand for themselves; everything else is an object with a key
"$" that says what it is. Tensors are named by their path, so that single ones can be loaded.
"""

from __future__ import annotations

import base64
import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from mithril import _adapters
from mithril.checkpoint._tensors import MARK, LoadedTensors, TensorTable

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST = 1 << 62
_DEEPEST = 200


class Encoded(NamedTuple):
    """A state in its two parts."""

    text: str
    # Name, number type, dimensions and bytes of each tensor.
    tensors: list[tuple[str, str, tuple[int, ...], Any]]


def encode(state: Any, *, trusted: bool = False, keeps_views: bool = True) -> Encoded:
    """Take a state apart. What has no representation is refused, and its path named.

    `keeps_views`: whether tensors that share memory do so again when they are loaded.
    """
    encoder = _Encoder(trusted, TensorTable(keeps_views=keeps_views))
    tree = encoder.encode(state, ())
    # Before the text is written: tensors have their names and places from here on.
    tensors = encoder.table.finish()
    return Encoded(json.dumps(tree, allow_nan=False), tensors)


def decode(
    text: str,
    stored: list[tuple[str, str, list[int], int]],
    load: Callable[[list[tuple[str, Any]]], None],
    *,
    map_location: Any = None,
    trusted: bool = False,
) -> Any:
    """Put a state together.

    `stored` are name, number type, dimensions and bytes of the tensors that are there; `load` is called once with names and
    the memory that each tensor is decoded into.
    """
    tree = json.loads(text)
    tensors = LoadedTensors(stored, map_location)
    _collect(tree, tensors)
    load(tensors.buffers())
    return _Decoder(tensors, trusted).decode(tree)


class _Encoder:
    def __init__(self, trusted: bool, table: TensorTable) -> None:
        self.trusted = trusted
        self.table = table
        # Containers on the way to the value at hand: one that is met again contains itself.
        self.open: set[int] = set()

    def encode(self, value: Any, path: tuple[str, ...]) -> Any:
        if value is None or isinstance(value, bool) or type(value) is str:
            return value
        if type(value) is int:
            return value if abs(value) < _LARGEST else {MARK: "int", "value": str(value)}
        if type(value) is float:
            return value if value - value == 0 else {MARK: "float", "value": repr(value)}
        adapter = _adapters.of(value)
        if adapter is not None:
            reason = adapter.refusal(value)
            if reason is None:
                return self.table.add(adapter, value, ".".join(path) or "state")
            return self.other(value, path, reason)
        if isinstance(value, (dict, list, tuple, set, frozenset)):
            return self.contained(value, path)
        return self.other(value, path)

    def contained(self, value: Any, path: tuple[str, ...]) -> Any:
        if id(value) in self.open or len(path) > _DEEPEST:
            raise ValueError(f"{_shown(path)} contains itself, or is nested too deeply")
        self.open.add(id(value))
        try:
            return self.container(value, path)
        finally:
            self.open.remove(id(value))

    def container(self, value: Any, path: tuple[str, ...]) -> Any:
        if type(value) is dict and all(type(key) is str and key != MARK for key in value):
            return {key: self.encode(item, (*path, key)) for key, item in value.items()}
        if type(value) in (dict, OrderedDict):
            pairs = [
                [self.encode(key, (*path, f"key {key!r}")), self.encode(item, (*path, str(key)))] for key, item in value.items()
            ]
            return {MARK: type(value).__name__, "items": pairs, **_attributes(value)}
        if type(value) in (list, tuple, set, frozenset):
            items = [self.encode(item, (*path, str(number))) for number, item in enumerate(value)]
            return items if type(value) is list else {MARK: type(value).__name__, "items": items}
        return self.other(value, path)

    def other(self, value: Any, path: tuple[str, ...], reason: str | None = None) -> Any:
        kind = type(value)
        if kind in (bytes, bytearray):
            return {MARK: kind.__name__, "value": base64.b64encode(value).decode()}
        if kind is complex:
            return {MARK: "complex", "value": [repr(value.real), repr(value.imag)]}
        if kind.__module__ == "torch" and kind.__name__ in ("dtype", "device", "Size"):
            what = list(value) if kind.__name__ == "Size" else str(value)
            return {MARK: f"torch.{kind.__name__}", "value": what}
        if kind.__module__ in ("numpy", "numpy.dtypes") and hasattr(value, "newbyteorder"):
            return {MARK: "numpy.dtype", "value": value.name}
        if self.trusted:
            import pickle

            return {MARK: "pickle", "value": base64.b64encode(pickle.dumps(value)).decode()}
        name, why = _adapters.name_of_type(value), "" if reason is None else f": {reason}"
        raise TypeError(f"{_shown(path)} is a {name}, which is stored only with trusted=True, by pickle{why}")


class _Decoder:
    def __init__(self, tensors: LoadedTensors, trusted: bool) -> None:
        self.tensors = tensors
        self.trusted = trusted

    def decode(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self.decode(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        kind = tree.get(MARK)
        if kind is None:
            return {key: self.decode(item) for key, item in tree.items()}
        if kind == "tensor":
            return self.tensors.finished(tree)
        if kind in ("dict", "OrderedDict"):
            pairs = ((self.decode(key), self.decode(item)) for key, item in tree["items"])
            return _with_attributes(dict(pairs) if kind == "dict" else OrderedDict(pairs), tree)
        if kind in ("tuple", "set", "frozenset"):
            return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](self.decode(item) for item in tree["items"])
        return self.plain(kind, tree["value"])

    def plain(self, kind: str, value: Any) -> Any:
        if kind in ("int", "float"):
            return int(value) if kind == "int" else float(value)
        if kind in ("bytes", "bytearray"):
            raw = base64.b64decode(value)
            return raw if kind == "bytes" else bytearray(raw)
        if kind == "complex":
            return complex(float(value[0]), float(value[1]))
        if kind.startswith("torch."):
            import torch

            if kind == "torch.dtype":
                return _torch_dtype(torch, value)
            return torch.Size(value) if kind == "torch.Size" else torch.device(value)
        if kind == "numpy.dtype":
            from mithril._adapters import numpy as adapter

            return adapter.dtype_called(value)
        if kind == "pickle":
            if not self.trusted:
                raise TypeError("the checkpoint holds a pickle, which is run only with trusted=True")
            import pickle

            return pickle.loads(base64.b64decode(value))
        raise ValueError(f"unknown kind of value `{kind}`: the checkpoint was probably written by a newer version")


def _torch_dtype(torch: Any, name: str) -> Any:
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no type {name}")
    return dtype


def _attributes(value: Any) -> dict[str, Any]:
    """What `state_dict()` of torch keeps beside the tensors: versions of modules."""
    metadata = getattr(value, "_metadata", None)
    return {"metadata": [[key, dict(item)] for key, item in metadata.items()]} if metadata else {}


def _with_attributes(value: Any, tree: dict[str, Any]) -> Any:
    if "metadata" in tree:
        value._metadata = OrderedDict(tree["metadata"])
    return value


def _collect(tree: Any, tensors: LoadedTensors) -> None:
    """Find all tensors of a tree."""
    if isinstance(tree, list):
        for item in tree:
            _collect(item, tensors)
    elif isinstance(tree, dict):
        if tree.get(MARK) == "tensor":
            tensors.expect(tree)
        else:
            for item in tree.values():
                _collect(item, tensors)


def _shown(path: tuple[str, ...]) -> str:
    return f"`{'.'.join(path)}`" if path else "the state"
