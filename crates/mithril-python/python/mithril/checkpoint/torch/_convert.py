"""Checkpoints from one storage to another, a chunk or a file at a time."""

from __future__ import annotations

import io
import json
import os
import struct
import warnings
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from mithril._adapters import torch as adapter
from mithril._mithril import (
    ConflictError,
    NotFoundError,
    OutputDirectory,
    OutputFile,
    UnsupportedError,
    without_secrets_of_urls,
)
from mithril.checkpoint import _manifest
from mithril.checkpoint.torch._functions import alone
from mithril.checkpoint.torch._planner import item_of_bytes
from mithril.checkpoint.torch._source import Source, open_source
from mithril.checkpoint.torch._writer import MithrilStorageWriter

__all__ = ["open_source", "pack", "to_safetensors", "unpack"]

PathLike = str | os.PathLike[str]


def pack(source: Source, output: PathLike, **options: Any) -> dict[str, Any]:
    """Stores a checkpoint in mithril's storage; one file of the source is in memory at a time.

    `options` are those of `MithrilStorageWriter`.
    """
    writer = MithrilStorageWriter(output, **options)
    writer.reset()
    writer.set_up_storage_writer(True)
    writer.prepare_local_plan(SavePlan([]))
    planner = _Copying(source)
    results = []
    for indices in source.files():
        plan = SavePlan([planner.item(index) for index in indices])
        results.append(writer.write_data(plan, planner).wait())
    writer.finish(source.metadata, results)
    manifest = _manifest.read(writer.path)
    return {**_totals(source), "output": str(writer.path), "written_size": sum(manifest.files.values())}


def unpack(source: Source, output: PathLike) -> dict[str, Any]:
    """Writes a checkpoint with torch's own writer; one chunk is in memory at a time."""
    path = os.fspath(output)
    if "://" in path:
        shown = without_secrets_of_urls(path)
        raise UnsupportedError(f"torch's own checkpoints are written to directories, which `{shown}` is not")
    if os.path.isdir(path) and os.listdir(path):
        raise ConflictError(f"`{path}` is there already and not empty")
    with OutputDirectory(path) as temporary:
        _save_by_torch(source, os.fspath(temporary))
        written = sum(entry.stat().st_size for entry in os.scandir(temporary))
    return {**_totals(source), "output": path, "written_size": written}


def _save_by_torch(source: Source, path: str) -> None:
    """Saves with torch's own writer in this process; what failed comes as it was raised."""
    writer = FileSystemWriter(path, thread_count=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            dcp.save({}, storage_writer=writer, planner=_Copying(source), **alone(dcp.save, True))
        except CheckpointException as error:
            cause, _ = next(iter(error.failures.values()))
            raise cause from None


def to_safetensors(source: Source, output: PathLike, *, prefix: str = "") -> dict[str, Any]:
    """Writes the tensors of a checkpoint to one safetensors file; one tensor is in memory at a time."""
    path = os.fspath(output)
    if os.path.lexists(path):
        raise ConflictError(f"`{path}` is there already")
    entries = source.metadata.state_dict_metadata
    tensors = {
        fqn: entry for fqn, entry in entries.items() if isinstance(entry, TensorStorageMetadata) and fqn.startswith(prefix)
    }
    if not tensors:
        raise NotFoundError(f"no tensor of the checkpoint has a name that starts with `{prefix}`" if prefix else "no tensors")
    # Types of many bytes first, as readers want data that is aligned.
    order = sorted(tensors, key=lambda fqn: (-tensors[fqn].properties.dtype.itemsize, fqn))
    header: dict[str, Any] = {}
    end = 0
    for fqn in order:
        entry = tensors[fqn]
        start, end = end, end + entry.size.numel() * entry.properties.dtype.itemsize
        dtype = adapter.dtype_name(entry.properties.dtype)
        header[fqn.removeprefix(prefix)] = {
            "dtype": dtype,
            "shape": list(adapter.unpacked(dtype, tuple(entry.size))),
            "data_offsets": [start, end],
        }
    if len(header) != len(order) or "" in header:
        raise UnsupportedError(f"without `{prefix}` a tensor would have no name")
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    try:
        with OutputFile(path, False) as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for fqn in order:
                whole = torch.empty(tensors[fqn].size, dtype=tensors[fqn].properties.dtype)
                for chunk in tensors[fqn].chunks:
                    part = whole
                    for dimension, (offset, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
                        part = part.narrow(dimension, offset, size)
                    part.copy_(source.chunk(MetadataIndex(fqn, chunk.offsets)))
                file.write(adapter.memory(whole))
    except FileExistsError:
        raise ConflictError(f"`{path}` is there already") from None
    left_out = [fqn for fqn, entry in entries.items() if not isinstance(entry, TensorStorageMetadata)]
    kept = {**_totals(source), "tensors": len(order), "original_size": end}
    return {**kept, "output": path, "written_size": os.path.getsize(path), "left_out": left_out}


class _Copying(DefaultSavePlanner):  # type: ignore[misc]
    """A plan of the chunks of another checkpoint, each read when it is written."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """There is no state: the source has it."""

    def item(self, index: MetadataIndex) -> WriteItem:
        """What is to be written of one chunk or value."""
        entry = self._source.metadata.state_dict_metadata[index.fqn]
        if not isinstance(entry, TensorStorageMetadata):
            # The size is for spreading values over files: here there is one.
            return item_of_bytes(index, 0)
        chunk = next(chunk for chunk in entry.chunks if chunk.offsets == index.offset)
        return WriteItem(index, WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, entry.properties, entry.size))

    def create_local_plan(self) -> SavePlan:
        """Everything."""
        return SavePlan([self.item(index) for indices in self._source.files() for index in indices])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """As the source has it, but for places."""
        found = self._source.metadata
        return all_plans, Metadata(state_dict_metadata=found.state_dict_metadata, planner_data=found.planner_data)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Nothing to do."""
        return new_plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """A value, if restricted unpickling gives it; otherwise something that is stored as it is serialised."""
        try:
            return torch.load(self._source.value(index.fqn), weights_only=True)
        except UnsupportedError:
            raise
        except Exception:
            return object()

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """The content of a chunk or value."""
        if write_item.type == WriteItemType.BYTE_IO:
            return self._source.value(write_item.index.fqn)
        return self._source.chunk(write_item.index)


def _totals(source: Source) -> dict[str, Any]:
    entries = source.metadata.state_dict_metadata.values()
    tensors = [entry for entry in entries if isinstance(entry, TensorStorageMetadata)]
    size = sum(entry.size.numel() * entry.properties.dtype.itemsize for entry in tensors)
    return {"tensors": len(tensors), "original_size": size}
