"""The storage writer: a container of each rank, or several, and a manifest last."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from mithril._adapters import torch as adapter
from mithril._mithril import ConflictError, MithrilError, UnsupportedError, check_tensor_names
from mithril.checkpoint import _claims, _manifest
from mithril.checkpoint._chunks import Checkpoint
from mithril.checkpoint._manifest import Chunk, Manifest, Tensor
from mithril.checkpoint._parts import chunk_name
from mithril.checkpoint._place import Place
from mithril.checkpoint.torch import _latest, _objects

PathLike = str | os.PathLike[str]

COPIES_SIZE = 256 << 20
"""Bytes of tensors on other devices, or not contiguous, that are copied before a container is written."""


@dataclass(frozen=True)
class _Stored:
    """Where an item is: a tensor of a container, or text for the manifest."""

    file: str | None
    file_len: int
    name: str
    text: str | None = None
    base_generation: str | None = None


class MithrilStorageWriter(StorageWriter):  # type: ignore[misc]
    """Saves compressed checkpoints: `dcp.save(state_dict, storage_writer=MithrilStorageWriter(path))`.

    `path` is a directory, or a URL of `s3://`, `gs://` or `az://`; credentials come from the environment.

    `base` is an earlier checkpoint: each chunk is then stored as what changed since, where that is smaller. A chunk is
    looked up by name and offset in all of the base, so it does not matter which rank saved it; one that the base does not
    have, because the world or the mesh has changed, is stored whole.

    What is compared with is the last checkpoint that was stored whole: the base itself, or the one that it is stored
    against. So loading reads two checkpoints at most. After `max_since_whole` others the next is stored whole again.

    A checkpoint that is there is not overwritten without `overwrite=True`, which leaves the old one readable until the
    new one is. One that others beside it are stored against is not overwritten at all.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        base: PathLike | None = None,
        effort: str | None = None,
        level: int | None = None,
        threads: int = 0,
        overwrite: bool = False,
        step: int | None = None,
        max_since_whole: int = 8,
    ) -> None:
        super().__init__()
        self.path = Place(path)
        self.base = None if base is None else Place(base)
        self.effort = effort
        self.level = level
        self.threads = threads
        self.overwrite = overwrite
        self.step = step
        self.max_since_whole = max_since_whole
        self.sequence = 0
        """What `latest` orders saves by; drawn by the functions that move it."""
        self._failure: MithrilError | None = None
        self._save_id = _manifest.new_generation()

    def reset(self, checkpoint_id: PathLike | None = None) -> None:
        """Begins a save."""
        if checkpoint_id is not None:
            self.path = Place(checkpoint_id)
        self._save_id = _manifest.new_generation()

    def draw_sequence(self, root: Place) -> None:
        """Takes the next number of a root. A failure is told when torch begins, which tells all ranks."""
        try:
            self.sequence = _latest.next_sequence(root)
        except MithrilError as error:
            self._failure = error

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Checks what torch asks for."""
        if self._failure is not None:
            raise self._failure
        if not kwargs.get("use_collectives", True):
            raise UnsupportedError("saving with `use_collectives=False` would leave no manifest: leave it out")
        if self.base is not None:
            # A base that cannot be named is refused now, and not by `finish`.
            self.base.relative_to(self.path)
        if is_coordinator:
            # Before anything is written to it.
            self.path.storage.check_put_new()
        if is_coordinator and self.overwrite and self.path.has(_manifest.NAME):
            self._check_dependants()

    def storage_meta(self) -> StorageMeta | None:
        """What planners may know of the storage."""
        return StorageMeta(checkpoint_id=str(self.path), save_id=self._save_id)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Looks whether there is a checkpoint, on every rank: they may not share a disk. And whether names can be stored."""
        check_tensor_names([_name_of(item.index) for item in plan.items])
        if not self.overwrite and self.path.has(_manifest.NAME):
            raise ConflictError(f"there is a checkpoint `{self.path}` already: `overwrite=True` replaces it")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Nothing: with cached plans torch would not hand it on."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes what this rank was given: one container, or several where tensors have to be copied first.

        Tensors that are contiguous on the CPU are read where they are. Of others there are copies of `COPIES_SIZE` bytes
        and one tensor at most.
        """
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        base, _ = self._open_base()
        try:
            results = self._written(plan, planner, rank, base)
        finally:
            if base is not None:
                base.close()
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _written(self, plan: SavePlan, planner: SavePlanner, rank: int, base: Checkpoint | None) -> list[WriteResult]:
        results: list[WriteResult] = []
        container = _Container(rank)
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                text = _plain_text(planner, item)
                if text is not None:
                    results.append(WriteResult(item.index, len(text), _Stored(None, 0, "", text)))
                    continue
                container.add_bytes(item.index, planner.resolve_data(item).getvalue())
            else:
                container.add_tensor(item.index, planner.resolve_data(item))
            if container.n_copied >= COPIES_SIZE:
                results += self._write_container(container, base)
                container = _Container(rank)
        return results + self._write_container(container, base)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Makes the checkpoint whole, once every planned item has been written."""
        places = {result.index: result.storage_data for of_rank in results for result in of_rank}
        tensors: dict[str, Tensor] = {}
        objects: dict[str, Any] = {}
        files: dict[str, int] = {}

        def place_of(index: MetadataIndex) -> _Stored:
            place = places.get(index)
            if not isinstance(place, _Stored):
                raise MithrilError(f"no rank has written `{index.fqn}` at {index.offset}: nothing is committed")
            if place.file is not None:
                files[place.file] = place.file_len
            return place

        for fqn, entry in metadata.state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                chunks = []
                for chunk in entry.chunks:
                    place = place_of(MetadataIndex(fqn, chunk.offsets))
                    chunks.append(Chunk(tuple(chunk.offsets), tuple(chunk.sizes), place.file or "", place.name))
                dtype = adapter.chunk_type(entry.properties.dtype)
                tensors[fqn] = Tensor(dtype, tuple(entry.size), tuple(chunks))
            elif isinstance(entry, BytesStorageMetadata):
                place = place_of(MetadataIndex(fqn))
                is_plain = place.text is not None
                objects[fqn] = {"value": place.text} if is_plain else {"file": place.file, "name": place.name}
            else:
                raise UnsupportedError(f"`{fqn}` is of a kind that this mithril does not know: {type(entry).__name__}")
        planner_data = _objects.text_of(metadata.planner_data)
        if planner_data is None:
            raise UnsupportedError("the planner keeps objects in the metadata that a manifest cannot hold")
        old = _manifest.read(self.path) if self.path.has(_manifest.NAME) else None
        base, n_since_whole = self._open_base()
        used = {place.base_generation for place in places.values() if isinstance(place, _Stored)} - {None}
        if used - {base.manifest.generation if base else None}:
            raise ConflictError(f"`{self.base}` was written anew while this was saved: nothing is committed")
        manifest = Manifest(
            tensors=tensors,
            objects=objects,
            planner_data=planner_data,
            files=files,
            base=None if base is None else base.place.relative_to(self.path),
            base_generation=None if base is None else base.manifest.generation,
            n_since_whole=n_since_whole,
            step=self.step,
            sequence=self.sequence,
        )
        _latest.mark(self.path, self.sequence)
        if old is None or not self.overwrite:
            # Of two saves of one place one is refused here.
            _claims.commit(self.path, manifest)
            return
        mark = _claims.mark(self.path)
        try:
            self._check_dependants()
            _claims.commit(self.path, manifest, replaced=old)
            _latest.unmark(self.path, self.sequence)
            for file in old.files.keys() - files.keys():
                self.path.storage.delete(file)
        finally:
            _claims.unmark(self.path, mark)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        """Whether this can be a place of a checkpoint."""
        try:
            Place(checkpoint_id)
        except (UnsupportedError, TypeError):
            return False
        return True

    def _open_base(self) -> tuple[Checkpoint | None, int]:
        """What this save is stored against, if anything, and how many saves ago that was."""
        if self.base is None:
            return None, 0
        base = Checkpoint(self.base, threads=self.threads)
        n_since_whole = base.manifest.n_since_whole + 1
        whole = base.base() or base
        # What replaces a checkpoint cannot be stored against it.
        if n_since_whole > self.max_since_whole or whole.place == self.path:
            return None, 0
        return whole, n_since_whole

    def _check_dependants(self) -> None:
        checkpoints, _ = _latest.finished(self.path.parent)
        for checkpoint in checkpoints:
            if checkpoint.base == self.path:
                raise ConflictError(f"`{checkpoint.place}` is stored against `{self.path}`, so that cannot be overwritten")

    def _write_container(self, container: _Container, base: Checkpoint | None) -> list[WriteResult]:
        if not container.tensors:
            return []
        coding = (self.level, self.threads, self.effort, None)
        models = base.models_with(name for name, *_ in container.tensors) if base else []
        file_len: int = self.path.storage.pack_tensors(container.file, container.tensors, models, coding)
        return container.results(file_len, base.manifest.generation if base else None)


class _Container:
    """What one container of a rank is made of."""

    def __init__(self, rank: int) -> None:
        self.file = f"r{rank:05}-{_manifest.new_generation()}.mckp"
        self.tensors: list[tuple[str, str, tuple[int, ...], Any]] = []
        self.n_copied = 0
        """Bytes that it holds itself; all others are lent by the state."""
        self._indices: list[tuple[MetadataIndex, int]] = []

    def add_tensor(self, index: MetadataIndex, tensor: torch.Tensor) -> None:
        data, dtype, shape = adapter.borrow_chunk(tensor)
        size = tensor.numel() * tensor.element_size()
        self.tensors.append((_name_of(index), dtype, shape, data))
        self._indices.append((index, size))
        if not adapter.is_lent(tensor):
            self.n_copied += size

    def add_bytes(self, index: MetadataIndex, content: bytes) -> None:
        self.tensors.append((_name_of(index, is_object=True), "U8", (len(content),), content))
        self._indices.append((index, len(content)))
        self.n_copied += len(content)

    def results(self, file_len: int, base_generation: str | None) -> list[WriteResult]:
        names = (name for name, *_ in self.tensors)
        return [
            WriteResult(index, size, _Stored(self.file, file_len, name, None, base_generation))
            for (index, size), name in zip(self._indices, names, strict=True)
        ]


def _name_of(index: MetadataIndex, *, is_object: bool = False) -> str:
    """What an item is called in its container."""
    return f"object/{index.fqn}" if is_object else chunk_name(index.fqn, tuple(index.offset or ()))


def _plain_text(planner: SavePlanner, item: WriteItem) -> str | None:
    """JSON of an object that needs no pickle, or None."""
    lookup = getattr(planner, "lookup_object", None)
    return None if lookup is None else _objects.text_of(lookup(item.index))
