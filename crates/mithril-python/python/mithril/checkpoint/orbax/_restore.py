"""Trees from a checkpoint: with any sharding, or as they were saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from mithril._mithril import NotFoundError, UnsupportedError
from mithril.checkpoint import _boxes, _state
from mithril.checkpoint._boxes import Box
from mithril.checkpoint._chunks import Checkpoint
from mithril.checkpoint._manifest import Manifest
from mithril.checkpoint.orbax import _tree
from mithril.checkpoint.orbax._leaves import dtype_of


def restore(directory: Path, target: Any = None, *, partial: bool = False, threads: int = 0) -> Any:
    """A tree. `target` gives its structure, and the shape, number type and sharding of its arrays.

    A leaf of the target that is `...` stays that. With `partial`, the checkpoint may hold more than the target.
    """
    checkpoint = Checkpoint(directory, threads=threads)
    try:
        saved = _Saved(checkpoint)
        if target is None:
            return _tree.fill(saved.skeleton, {name: saved.leaf(name) for name in saved.names()})
        named, definition = _tree.leaves_of(target)
        missing = [name for name, leaf in named if leaf is not ... and name not in saved.names()]
        if missing:
            raise NotFoundError(f"the checkpoint `{directory}` has no {_listed(missing)}")
        unwanted = saved.names() - {name for name, _ in named}
        if unwanted and not partial:
            raise ValueError(
                f"the target has no {_listed(sorted(unwanted))}, which the checkpoint has: `partial_restore=True` "
                "leaves such leaves out"
            )
        return jax.tree_util.tree_unflatten(definition, [saved.leaf_like(name, leaf) for name, leaf in named])
    finally:
        checkpoint.close()


def metadata(directory: Path) -> Any:
    """The tree with shapes and number types in the places of arrays, which does as a target; plain values are there."""
    saved = _Saved(Checkpoint(directory))
    return _tree.fill(saved.skeleton, {name: saved.abstract(name) for name in saved.names()})


class _Saved:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.manifest: Manifest = checkpoint.manifest
        described = _state.decode(self.manifest.planner_data, [], lambda _buffers: None)
        if not isinstance(described, dict) or described.get("framework") != "orbax":
            raise UnsupportedError(f"`{checkpoint.directory}` was not saved through Orbax")
        self.skeleton = described["tree"]
        self.kinds: dict[str, str] = described["kinds"]

    def names(self) -> set[str]:
        return self.manifest.tensors.keys() | self.manifest.objects.keys()

    def abstract(self, name: str) -> Any:
        if name in self.manifest.objects:
            return self.plain(name)
        tensor = self.manifest.tensors[name]
        return jax.ShapeDtypeStruct(tensor.size, dtype_of(tensor.dtype))

    def plain(self, name: str) -> Any:
        return _state.decode(self.manifest.objects[name]["value"], [], lambda _buffers: None)

    def leaf(self, name: str) -> Any:
        """A leaf as it was saved; arrays of JAX on its default device."""
        if name in self.manifest.objects:
            return self.plain(name)
        kind = self.kinds.get(name, "")
        array = self.numpy(name)
        if kind in ("numpy", "scalar"):
            return array if kind == "numpy" else array[()]
        return self.with_kind(kind, _on_device(array, None))

    def leaf_like(self, name: str, target: Any) -> Any:
        """A leaf as the target wants it."""
        if target is ...:
            return target
        if name in self.manifest.objects:
            return self.plain_like(name, target)
        tensor = self.manifest.tensors[name]
        kind = self.kinds.get(name, "")
        if isinstance(target, (bool, int, float, complex)):
            if tensor.size:
                raise ValueError(f"`{name}` is an array of shape {tensor.size}, and the target wants a {type(target).__name__}")
            return type(target)(self.numpy(name)[()])
        if not hasattr(target, "shape") or not hasattr(target, "dtype"):
            raise TypeError(f"the target of `{name}` is a {type(target).__qualname__}, which has no shape and number type")
        if kind.startswith("key "):
            return self.key_like(name, kind, target)
        if tuple(target.shape) != tensor.size:
            raise ValueError(f"`{name}` has the shape {tensor.size} in the checkpoint, and {tuple(target.shape)} in the target")
        dtype = np.dtype(target.dtype)
        if isinstance(target, (np.ndarray, np.generic)):
            array = self.numpy(name).astype(dtype, copy=False)
            return array[()] if isinstance(target, np.generic) else array
        sharding = getattr(target, "sharding", None)
        return self.sharded(name, dtype, sharding) if sharding is not None else _on_device(self.numpy(name), dtype)

    def plain_like(self, name: str, target: Any) -> Any:
        value = self.plain(name)
        if hasattr(target, "shape") and hasattr(target, "dtype"):
            if isinstance(value, (str, bytes)) or tuple(target.shape) != ():
                raise ValueError(f"`{name}` is a {type(value).__name__} in the checkpoint, and an array in the target")
            array = np.asarray(value, np.dtype(target.dtype))
            if isinstance(target, (np.ndarray, np.generic)):
                return array[()] if isinstance(target, np.generic) else array
            return _placed(_on_device(array, array.dtype), getattr(target, "sharding", None))
        wanted: Any = target if isinstance(target, type) else type(target)
        # Numbers become wider ones, never narrower.
        widened = {bool: (int, float, complex), int: (float, complex), float: (complex,)}.get(type(value), ())
        if wanted is not type(value) and wanted not in widened:
            raise ValueError(f"`{name}` is a {type(value).__name__} in the checkpoint, and a {wanted.__name__} in the target")
        return wanted(value)

    def key_like(self, name: str, kind: str, target: Any) -> Any:
        keys = self.with_kind(kind, _on_device(self.numpy(name), None))
        if keys.shape != tuple(target.shape):
            raise ValueError(f"`{name}` has the shape {keys.shape} in the checkpoint, and {tuple(target.shape)} in the target")
        return _placed(keys, getattr(target, "sharding", None))

    def with_kind(self, kind: str, array: Any) -> Any:
        return jax.random.wrap_key_data(array, impl=kind.removeprefix("key ")) if kind.startswith("key ") else array

    def numpy(self, name: str) -> Any:
        tensor = self.manifest.tensors[name]
        box = _boxes.whole(tensor, dtype_of(tensor.dtype))
        _boxes.read(self.checkpoint, name, [box])
        return box.array

    def sharded(self, name: str, dtype: np.dtype[Any], sharding: Any) -> Any:
        """An array whose shards on this process are read, each once however many devices have it."""
        tensor = self.manifest.tensors[name]
        stored_dtype = dtype_of(tensor.dtype)
        places = {
            device: tuple(part.indices(size)[:2] for part, size in zip(index, tensor.size, strict=True))
            for device, index in sharding.addressable_devices_indices_map(tensor.size).items()
        }
        boxes = {
            place: Box(tuple(start for start, _ in place), np.empty([stop - start for start, stop in place], stored_dtype))
            for place in set(places.values())
        }
        _boxes.read(self.checkpoint, name, list(boxes.values()))
        arrays = [_on_device(boxes[place].array, dtype, device) for device, place in places.items()]
        return jax.make_array_from_single_device_arrays(tensor.size, sharding, arrays, dtype=dtype)


def _on_device(array: Any, dtype: Any, device: Any = None) -> Any:
    wanted = array.dtype if dtype is None else dtype
    placed = jax.device_put(array.astype(wanted, copy=False), device)
    if placed.dtype != wanted:
        raise ValueError(f"JAX narrows {wanted} to {placed.dtype} unless `jax_enable_x64` is set")
    return placed


def _placed(array: Any, sharding: Any) -> Any:
    return array if sharding is None else jax.device_put(array, sharding)


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
