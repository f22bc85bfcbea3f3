"""The handler of Orbax's usual interface, and the arguments that it is chosen by."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax
import orbax.checkpoint as ocp

from mithril.checkpoint import _parts
from mithril.checkpoint._parts import Part
from mithril.checkpoint.orbax import _restore
from mithril.checkpoint.orbax._leaves import part_of
from mithril.checkpoint.orbax._place import local_path


class MithrilCheckpointHandler(ocp.AsyncCheckpointHandler):  # type: ignore[misc]
    """Saves trees of arrays compressed: `ocp.Checkpointer(MithrilCheckpointHandler())`.

    A tree may hold arrays of JAX with any sharding, arrays and scalars of numpy, numbers, texts, bytes and None, in
    dictionaries, lists, tuples and whatever else JAX knows as a node.

    Args:
        compression_level: level of zstd, 1 to 22, where data with repeats is handed to it.
        effort: "fast" (the default), "balanced" or "max": how much work may go into size.
        threads: 0 is one per core.
        max_since_whole: after so many checkpoints that are stored against a base the next is stored whole.
    """

    # Orbax writes the name of the class into checkpoints: it stays this one, wherever the code is.
    __module__ = "mithril.checkpoint.orbax"

    def __init__(
        self,
        compression_level: int | None = 3,
        *,
        effort: str | None = None,
        threads: int = 0,
        max_since_whole: int = 8,
    ) -> None:
        self._coding = (compression_level, threads, effort, None)
        self._max_since_whole = max_since_whole

    def save(self, directory: Any, item: Any = None, args: MithrilSave | None = None) -> None:
        """Saves a tree, and returns when it is on disk."""
        wanted = _save_args(item, args)
        self._write(directory, part_of(wanted.item, copied=False), wanted.base)

    async def async_save(self, directory: Any, item: Any = None, args: MithrilSave | None = None) -> list[Any]:
        """Copies the arrays of a tree; the rest happens in the future that is returned."""
        wanted = _save_args(item, args)
        part = part_of(wanted.item, copied=True)

        async def write() -> None:
            self._write(directory, part, wanted.base)

        return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="mithril_save")]

    def finalize(self, directory: Any) -> None:
        """Makes the checkpoint whole, once all processes have written; Orbax calls it on one of them."""
        _parts.merge(local_path(directory), jax.process_count())

    def restore(self, directory: Any, item: Any = None, args: MithrilRestore | None = None) -> Any:
        """A tree: like the target if there is one, else as it was saved."""
        wanted = args if args is not None else MithrilRestore(item)
        threads = self._coding[1]
        return _restore.restore(local_path(directory), wanted.item, partial=wanted.partial_restore, threads=threads)

    def metadata(self, directory: Any) -> Any:
        """The tree with shapes and number types in the places of its arrays."""
        return _restore.metadata(local_path(directory))

    def _write(self, directory: Any, part: Part, base: Any) -> None:
        _parts.write(
            local_path(directory),
            jax.process_index(),
            part,
            self._coding,
            base=None if base is None else local_path(base),
            max_since_whole=self._max_since_whole,
        )


@ocp.args.register_with_handler(MithrilCheckpointHandler, for_save=True)
@dataclasses.dataclass
class MithrilSave(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """What to save.

    Attributes:
        item: the tree.
        base: directory of an item that was saved before: arrays are then stored as what changed since the last one that
            was stored whole. It is needed as long as this checkpoint is: Orbax, which removes old ones if told to, does
            not know of it.
    """

    item: Any
    base: str | os.PathLike[str] | None = None


@ocp.args.register_with_handler(MithrilCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class MithrilRestore(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """What to restore.

    Attributes:
        item: a tree of arrays, or of `jax.ShapeDtypeStruct`: its structure, number types and shardings are those of the
            result. Without it the tree comes back as it was saved, with named tuples and classes as dictionaries.
        partial_restore: whether the checkpoint may hold leaves that the target does not have.
    """

    item: Any = None
    partial_restore: bool = False


def _save_args(item: Any, args: MithrilSave | None) -> MithrilSave:
    return args if args is not None else MithrilSave(item)
