"""The storage reader: every chunk is decoded once, and only the rows that someone asks for."""

from __future__ import annotations

import io
import os
from collections import defaultdict
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from mithril._adapters import torch as adapter
from mithril._mithril import CorruptError, UnsupportedError
from mithril.checkpoint._chunks import Checkpoint
from mithril.checkpoint._manifest import Chunk
from mithril.checkpoint._place import Place
from mithril.checkpoint.torch import _objects

PathLike = str | os.PathLike[str]


class MithrilStorageReader(StorageReader):  # type: ignore[misc]
    """Loads what `MithrilStorageWriter` saved, on any number of ranks and in any layout.

    Objects that only unpickling can make are refused unless `trusted=True`.
    """

    def __init__(self, path: PathLike, *, threads: int = 0, trusted: bool = False) -> None:
        super().__init__()
        self.path = Place(path)
        self.threads = threads
        self.trusted = trusted
        self._checkpoint: Checkpoint | None = None

    def reset(self, checkpoint_id: PathLike | None = None) -> None:
        """Begins a load."""
        if checkpoint_id is not None:
            self.path = Place(checkpoint_id)
        self._close()

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the checkpoint holds."""
        return metadata_of(self._open())

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Takes the places of the chunks, which only the coordinator has read."""
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Nothing to prepare."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Nothing to prepare."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what this rank asks for."""
        checkpoint = self._open()
        _check_sizes(checkpoint, planner)
        by_chunk: dict[MetadataIndex, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, read_object(checkpoint, self._places, item.storage_index.fqn, self.trusted))
            else:
                by_chunk[item.storage_index].append(item)
        for index, items in by_chunk.items():
            chunk = self._places.get(index)
            if not isinstance(chunk, Chunk):
                raise CorruptError(f"the checkpoint has no chunk of `{index.fqn}` at {index.offset}")
            _read_chunk(checkpoint, index.fqn, chunk, items, planner)
        self._close()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        """Whether there may be a checkpoint."""
        try:
            Place(checkpoint_id)
        except (UnsupportedError, TypeError):
            return False
        return True

    def _open(self) -> Checkpoint:
        if self._checkpoint is None:
            self._checkpoint = Checkpoint(self.path, threads=self.threads)
        return self._checkpoint

    def _close(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.close()
            self._checkpoint = None


def _check_sizes(checkpoint: Checkpoint, planner: LoadPlanner) -> None:
    """Refuses tensors of other sizes than the checkpoint's, of which older versions of torch load what overlaps."""
    wanted = getattr(planner, "state_dict", {}) if isinstance(planner, DefaultLoadPlanner) else {}
    for fqn, tensor in wanted.items():
        stored = checkpoint.manifest.tensors.get(fqn)
        if stored is not None and isinstance(tensor, torch.Tensor) and tuple(tensor.size()) != stored.size:
            raise ValueError(f"the sizes of `{fqn}` differ: {list(stored.size)} in the checkpoint, {list(tensor.size())} here")


def metadata_of(checkpoint: Checkpoint) -> Metadata:
    """What the checkpoint holds, in torch's words."""
    manifest = checkpoint.manifest
    entries: dict[str, Any] = {}
    places: dict[MetadataIndex, Any] = {}
    for fqn, tensor in manifest.tensors.items():
        for chunk in tensor.chunks:
            places[MetadataIndex(fqn, chunk.offsets)] = chunk
        entries[fqn] = TensorStorageMetadata(
            properties=TensorProperties(dtype=adapter.type_of_chunk(tensor.dtype)),
            size=torch.Size(tensor.size),
            chunks=[ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes)) for c in tensor.chunks],
        )
    for fqn, entry in manifest.objects.items():
        entries[fqn] = BytesStorageMetadata()
        places[MetadataIndex(fqn)] = entry
    return Metadata(
        state_dict_metadata=entries,
        planner_data=_objects.value_of(manifest.planner_data),
        storage_data=places,
        storage_meta=StorageMeta(checkpoint_id=str(checkpoint.place), load_id=manifest.generation),
    )


def read_object(checkpoint: Checkpoint, places: dict[MetadataIndex, Any], fqn: str, trusted: bool) -> io.BytesIO:
    """What is not a tensor, as torch serialises it."""
    entry = places.get(MetadataIndex(fqn))
    if not isinstance(entry, dict):
        raise CorruptError(f"the checkpoint has no object `{fqn}`")
    if "value" in entry:
        return _objects.of_text(entry["value"])
    return _objects.of_bytes(fqn, checkpoint.read_bytes(entry["file"], entry["name"]), trusted)


def _read_chunk(checkpoint: Checkpoint, fqn: str, chunk: Chunk, items: list[ReadItem], planner: LoadPlanner) -> None:
    """Decodes what the items need of a chunk, and copies it to them."""
    targets = [(item, planner.resolve_tensor(item).detach()) for item in items]
    dtype = adapter.type_of_chunk(checkpoint.manifest.tensors[fqn].dtype)
    item, target = targets[0]
    is_whole = tuple(item.lengths) == chunk.sizes and not any(item.storage_offsets)
    in_place = target.device.type == "cpu" and target.is_contiguous() and target.dtype == dtype
    if target.numel() == 0:
        pass
    elif len(targets) == 1 and is_whole and in_place:
        checkpoint.read_into(chunk, adapter.memory(target))
    else:
        _copy_rows(checkpoint, chunk, dtype, targets)
    for item, target in targets:
        planner.commit_tensor(item, target)


def _copy_rows(checkpoint: Checkpoint, chunk: Chunk, dtype: torch.dtype, targets: list[tuple[ReadItem, torch.Tensor]]) -> None:
    targets = [(item, target) for item, target in targets if target.numel() > 0]
    if not chunk.sizes:
        for _, _, array in checkpoint.rows(chunk, 0, 1, dtype.itemsize, lambda _n: _empty((), dtype)):
            for _, target in targets:
                target.copy_(array)
        return
    bounds = [(item.storage_offsets[0], item.storage_offsets[0] + item.lengths[0]) for item, _ in targets]
    first, end = min(start for start, _ in bounds), max(stop for _, stop in bounds)

    def empty(n_rows: int) -> tuple[torch.Tensor, Any]:
        return _empty((n_rows, *chunk.sizes[1:]), dtype)

    for start, stop, rows in checkpoint.rows(chunk, first, end, dtype.itemsize, empty):
        for (item, target), (lowest, highest) in zip(targets, bounds, strict=True):
            low, high = max(start, lowest), min(stop, highest)
            if low >= high:
                continue
            part = rows[low - start : high - start]
            for dimension in range(1, part.dim()):
                part = part.narrow(dimension, item.storage_offsets[dimension], item.lengths[dimension])
            target[low - lowest : high - lowest].copy_(part)


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
    array = torch.empty(shape, dtype=dtype)
    return array, adapter.memory(array)
