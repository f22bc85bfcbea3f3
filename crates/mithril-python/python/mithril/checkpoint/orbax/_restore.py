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
from mithril.checkpoint.orbax import _shardings, _tree
from mithril.checkpoint.orbax._leaves import dtype_of


def restore(directory: Path, target: Any = None, *, partial: bool = False, threads: int = 0) -> Any:
    """A tree. `target` gives its structure, and the shape, number type and sharding of its arrays.

    Arrays of JAX for which it gives no sharding have the one that they were saved with, if its devices are here; arrays of
    numpy stay that. A leaf of the target that is `...` stays that, and None leaves out what the checkpoint has in its
    place. With `partial`, the checkpoint may hold more than the target.
    """
    checkpoint = Checkpoint(directory, threads=threads)
    try:
        saved = _Saved(checkpoint)
        if target is None:
            return _tree.fill(saved.skeleton, {name: saved.leaf(name) for name in saved.names()})
        named, definition = _tree.leaves_of(target)
        names = saved.names()
        missing = [name for name, leaf in named if leaf is not ... and name not in names]
        if missing:
            raise NotFoundError(f"the checkpoint `{directory}` has no {_listed(missing)}")
        left_out = _tree.left_out_of(target)
        unwanted = {name for name in names - {name for name, _ in named} if not _tree.is_in(name, left_out)}
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
        self.shardings = _shardings.Saved(described.get("shardings"))

    def names(self) -> set[str]:
        return self.manifest.tensors.keys() | self.manifest.objects.keys()

    def abstract(self, name: str) -> Any:
        if name in self.manifest.objects:
            return self.plain(name)
        tensor = self.manifest.tensors[name]
        sharding = None if self.is_key(name) else self.shardings.get(name)
        return jax.ShapeDtypeStruct(tensor.size, dtype_of(tensor.dtype), sharding=sharding)

    def plain(self, name: str) -> Any:
        return _state.decode(self.manifest.objects[name]["value"], [], lambda _buffers: None)

    def leaf(self, name: str) -> Any:
        """A leaf as it was saved; arrays of JAX where they were, or on the default device if that is not here."""
        if name in self.manifest.objects:
            return self.plain(name)
        if self.is_numpy(name):
            return self.numpy_leaf(name)
        sharding = self.shardings.get(name)
        if self.is_key(name):
            return _placed(self.keys(name), sharding)
        return self.jax(name, dtype_of(self.manifest.tensors[name].dtype), sharding)

    def leaf_like(self, name: str, target: Any) -> Any:
        """A leaf as the target wants it."""
        if target is ...:
            return target
        if name in self.manifest.objects:
            return self.plain_like(name, target)
        tensor = self.manifest.tensors[name]
        if isinstance(target, (bool, int, float, complex)):
            if tensor.size:
                raise ValueError(f"`{name}` is an array of shape {tensor.size}, and the target wants a {type(target).__name__}")
            return type(target)(self.numpy(name)[()])
        if not hasattr(target, "shape") or not hasattr(target, "dtype"):
            raise TypeError(f"the target of `{name}` is a {type(target).__qualname__}, which has no shape and number type")
        if self.is_key(name):
            return self.key_like(name, target)
        if tuple(target.shape) != tensor.size:
            raise ValueError(f"`{name}` has the shape {tensor.size} in the checkpoint, and {tuple(target.shape)} in the target")
        dtype = np.dtype(target.dtype)
        if isinstance(target, (np.ndarray, np.generic)):
            array = self.numpy(name).astype(dtype, copy=False)
            return array[()] if isinstance(target, np.generic) else array
        sharding = getattr(target, "sharding", None)
        if sharding is None and self.is_numpy(name):
            return self.numpy_leaf(name, dtype)
        return self.jax(name, dtype, sharding if sharding is not None else self.shardings.get(name))

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

    def key_like(self, name: str, target: Any) -> Any:
        """Keys, for a target of their shape, or of that of their data, which Orbax's `to_shape_dtype_struct` gives."""
        keys, data_shape = self.keys(name), self.manifest.tensors[name].size
        is_of_data = tuple(target.shape) == data_shape and target.dtype == np.uint32
        if keys.shape != tuple(target.shape) and not is_of_data:
            raise ValueError(f"`{name}` has the shape {keys.shape} in the checkpoint, and {tuple(target.shape)} in the target")
        sharding = getattr(target, "sharding", None)
        if sharding is None:
            sharding = self.shardings.get(name)
        elif is_of_data and isinstance(sharding, jax.sharding.NamedSharding):
            sharding = jax.sharding.NamedSharding(
                sharding.mesh, jax.sharding.PartitionSpec(*tuple(sharding.spec)[: len(keys.shape)])
            )
        return _placed(keys, sharding)

    def keys(self, name: str) -> Any:
        return jax.random.wrap_key_data(_on_device(self.numpy(name), None), impl=self.kinds[name].removeprefix("key "))

    def is_key(self, name: str) -> bool:
        return self.kinds.get(name, "").startswith("key ")

    def is_numpy(self, name: str) -> bool:
        return self.kinds.get(name) in ("numpy", "scalar")

    def numpy_leaf(self, name: str, dtype: np.dtype[Any] | None = None) -> Any:
        array = self.numpy(name)
        array = array if dtype is None else array.astype(dtype, copy=False)
        return array[()] if self.kinds[name] == "scalar" else array

    def jax(self, name: str, dtype: np.dtype[Any], sharding: Any) -> Any:
        return _on_device(self.numpy(name), dtype) if sharding is None else self.sharded(name, dtype, sharding)

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
