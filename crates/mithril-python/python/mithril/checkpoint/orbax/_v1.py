"""The handler of version 1 of Orbax's interface."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import jax

from mithril.checkpoint import _parts
from mithril.checkpoint._parts import Part
from mithril.checkpoint.orbax import _restore, _tree
from mithril.checkpoint.orbax._leaves import is_leaf, part_of
from mithril.checkpoint.orbax._place import local_path

# How long the first process waits for the parts of the others: as long as Orbax waits for them.
_PATIENCE_SECONDS = 300.0


class MithrilCheckpointableHandler:
    """A `CheckpointableHandler`: `ocp.handlers.register_handler(MithrilCheckpointableHandler, checkpointable_name="weights")`.

    Orbax has bound some names to handlers of its own, `state` among them: register this one by name, or use another name.
    The arguments are those of `MithrilCheckpointHandler`.
    """

    # Orbax writes the name of the class into checkpoints: it stays this one, wherever the code is.
    __module__ = "mithril.checkpoint.orbax"

    def __init__(self, compression_level: int | None = 3, *, effort: str | None = None, threads: int = 0) -> None:
        self._coding = (compression_level, threads, effort, None)

    async def save(self, directory: Any, checkpointable: Any) -> Awaitable[None]:
        """Copies the arrays of a tree; the rest happens while the result is awaited."""
        return self._write(directory, part_of(checkpointable, copied=True))

    async def load(self, directory: Any, abstract_checkpointable: Any = None) -> Awaitable[Any]:
        """A tree: like the abstract one if there is one, else as it was saved."""
        return asyncio.to_thread(_restore.restore, local_path(directory), abstract_checkpointable, threads=self._coding[1])

    async def metadata(self, directory: Any) -> Any:
        """The tree with shapes and number types in the places of its arrays."""
        return _restore.metadata(local_path(directory))

    def is_handleable(self, checkpointable: Any) -> bool:
        """Whether it is a tree of arrays and plain values."""
        return all(is_leaf(leaf) for _, leaf in _tree.leaves_of(checkpointable)[0])

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool:
        """Whether a tree can be loaded like this one."""
        leaves = jax.tree_util.tree_leaves(abstract_checkpointable)
        return all(is_leaf(leaf) or leaf is ... or hasattr(leaf, "shape") for leaf in leaves)

    async def _write(self, directory: Any, part: Part) -> None:
        path = local_path(await directory.await_creation())
        await asyncio.to_thread(_write_part, path, part, self._coding)


def _write_part(path: Path, part: Part, coding: Any) -> None:
    _parts.write(path, jax.process_index(), part, coding)
    if jax.process_index() == 0:
        _parts.merge(path, jax.process_count(), timeout=_PATIENCE_SECONDS)
