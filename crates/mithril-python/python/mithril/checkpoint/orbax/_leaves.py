"""Leaves of a tree as pieces to be saved: shards of JAX, arrays of numpy, plain values."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from mithril._adapters import numpy as numpy_adapter
from mithril._adapters._dtypes import stored_as
from mithril._mithril import UnsupportedError, check_tensor_names
from mithril.checkpoint import _state
from mithril.checkpoint._parts import Part, Piece, chunk_name
from mithril.checkpoint.orbax import _tree
from mithril.checkpoint.orbax._shardings import Shardings

_PLAIN = (bool, int, float, complex, str, bytes)


def part_of(tree: Any, *, copied: bool) -> Part:
    """What this process saves of a tree.

    Of every shard the process that has its first replica saves it. With `copied`, nothing is shared with the arrays of the
    tree: they may be changed, or donated, while the part is being written.
    """
    named, _ = _tree.leaves_of(tree)
    for _, leaf in named:
        if isinstance(leaf, jax.Array) and not _is_key(leaf):
            for shard in leaf.addressable_shards:
                if shard.replica_id == 0:
                    # All transfers are under way before the first is waited for.
                    shard.data.copy_to_host_async()
    is_first = jax.process_index() == 0
    pieces: list[Piece] = []
    objects: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    shardings = Shardings()
    for name, leaf in named:
        if isinstance(leaf, jax.Array):
            shardings.add(name, leaf.sharding)
            if _is_key(leaf):
                kinds[name] = f"key {jax.random.key_impl(leaf)}"
                leaf = jax.random.key_data(leaf)
            pieces.extend(_shards(name, leaf, copied))
        elif isinstance(leaf, (np.ndarray, np.generic)):
            kinds[name] = "numpy" if isinstance(leaf, np.ndarray) else "scalar"
            if is_first:
                array = np.array(leaf) if copied else np.asarray(leaf)
                pieces.append(_piece(name, array, array.shape, (0,) * array.ndim))
        elif type(leaf) in _PLAIN:
            objects[name] = {"value": _state.encode(leaf).text}
        else:
            raise TypeError(
                f"`{name}` is a {type(leaf).__module__}.{type(leaf).__qualname__}, which is no array or plain value"
            )
    described = {
        "framework": "orbax",
        "tree": _tree.skeleton_of(tree),
        "kinds": kinds,
        "shardings": shardings.plain(),
    }
    # Before anything is written.
    check_tensor_names([chunk_name(piece.tensor, piece.offsets) for piece in pieces] + list(objects))
    return Part(pieces, objects, _state.encode(described).text)


def is_leaf(leaf: Any) -> bool:
    """Whether `part_of` takes such a leaf."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic)) or type(leaf) in _PLAIN


def dtype_of(name: str) -> np.dtype[Any]:
    """numpy's type of a tensor in a manifest."""
    try:
        return numpy_adapter.dtype_of(name)
    except UnsupportedError:
        try:
            return numpy_adapter.dtype_called(name)
        except (TypeError, AttributeError):
            raise UnsupportedError(f"numpy and ml_dtypes have no type {name}") from None


def _is_key(array: Any) -> bool:
    return bool(jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key))


def _shards(name: str, array: Any, copied: bool) -> list[Piece]:
    pieces = []
    for shard in array.addressable_shards:
        if shard.replica_id != 0:
            continue
        data = np.asarray(shard.data)
        if copied and not data.flags.owndata:
            data = data.copy()
        offsets = tuple(index.start or 0 for index in shard.index)
        pieces.append(_piece(name, data, array.shape, offsets))
    return pieces


def _piece(name: str, array: Any, size: tuple[int, ...], offsets: tuple[int, ...]) -> Piece:
    try:
        data, dtype, shape = numpy_adapter.borrow(array)
        return Piece(name, dtype, tuple(size), offsets, array.shape, dtype, shape, data)
    except TypeError:
        if array.dtype.hasobject or (array.dtype.kind in "USVMm" and not _is_number(array.dtype)):
            raise TypeError(f"`{name}` is an array of {array.dtype}, which are no numbers") from None
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    stored, shape = stored_as(array.dtype.name, data.size)
    return Piece(name, array.dtype.name, tuple(size), offsets, array.shape, stored, shape, data)


def _is_number(dtype: np.dtype[Any]) -> bool:
    """The types of ml_dtypes look like raw memory to numpy."""
    import ml_dtypes

    return hasattr(ml_dtypes, dtype.name)
