"""Planners that compress, for torch's own storage writer and reader.

A planner cannot change what a tensor is: the reader would cut the compressed bytes as if they were elements. So each
chunk becomes an object of its own, under a name that also says where it lies in its tensor, and a table of the chunks
goes into the planner's part of the metadata. Loading restores the tensors' metadata from that table, lets torch's
default planner do the arithmetic of resharding, and fetches each chunk once for all that need part of it.
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint import planner as torchs
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    WriteItem,
    WriteItemType,
)

import mithril
from mithril import _mithril
from mithril._adapters import torch as adapter
from mithril._mithril import CorruptError, UnsupportedError
from mithril._types import Coding
from mithril.checkpoint._compressor import Compressor
from mithril.checkpoint._coverage import check, numbers

_Sizes = tuple[int, ...]

_TABLE = "mithril"
_VERSION = 1
_SEPARATOR = "\x1f"
# Bytes of a chunk at most, before compression: torch's reader and writer hold chunks whole.
_CHUNK_LEN = 64 << 20


def chunk_key(index: MetadataIndex) -> str:
    """The name under which torch's storage has a chunk."""
    return str(index.fqn) + _SEPARATOR + ",".join(map(str, index.offset or ()))


def item_of_bytes(index: MetadataIndex, n_bytes: int) -> WriteItem:
    """What is to be written of something that is no tensor. Newer versions of torch want to know its size."""
    size = {"bytes_io_data": torchs.BytesIOWriteData(nbytes=n_bytes)} if hasattr(torchs, "BytesIOWriteData") else {}
    return WriteItem(index, WriteItemType.BYTE_IO, **size)


class MithrilSavePlanner(DefaultSavePlanner):  # type: ignore[misc]
    """Compresses tensors on their way to torch's own writer: `dcp.save(..., planner=MithrilSavePlanner())`.

    Such a checkpoint is loaded with `MithrilLoadPlanner`; torch's metadata do not list its tensors any more.

    Args:
        compressor: a `mithril.checkpoint.Compressor`: tensors are compressed with its level, effort, threads and byte
            grouping. Nothing is stored in its store, and there are no deltas: torch's writer writes.
        compression_level: level of zstd, 1 to 22, where data with repeats is handed to it.
        effort: `fast`, `balanced` or `max`: how much work may go into size.
        threads: 0 is one per core.
        planner: arguments of torch's `DefaultSavePlanner`, by name.

    Raises:
        TypeError: `compressor` is something else.
        ValueError: a compressor is given, and options that it has as well.
    """

    def __init__(
        self,
        compressor: Compressor | None = None,
        *,
        compression_level: int | None = None,
        effort: str | None = None,
        threads: int = 0,
        **planner: Any,
    ) -> None:
        super().__init__(**planner)
        self._coding: Coding = (compression_level, threads, effort, None)
        self._byte_grouping = True
        if compressor is None:
            return
        if not isinstance(compressor, Compressor):
            raise TypeError(
                f"`compressor` is a mithril.checkpoint.Compressor, not a {type(compressor).__name__}: give arguments of "
                "torch's planner by name, such as `flatten_state_dict=False`"
            )
        if self._coding != (None, 0, None, None):
            raise ValueError("the compressor has a level, an effort and threads: leave them out here")
        self._coding, self._byte_grouping = compressor.coding, compressor.byte_grouping

    def create_local_plan(self) -> SavePlan:
        """Every chunk of a tensor as an object under a name of its own."""
        plan = super().create_local_plan()
        # Old versions of torch keep no plans.
        if not getattr(plan, "usable", True):
            return plan
        self._chunks: dict[str, tuple[WriteItem, _Sizes, _Sizes]] = {}
        table: dict[str, Any] = {}
        items = []
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                items.append(item)
                continue
            data = item.tensor_data
            assert data is not None, "an item of a tensor says what it holds"
            itemsize = data.properties.dtype.itemsize
            for start, sizes in _split(tuple(data.chunk.sizes), _CHUNK_LEN // itemsize):
                offsets = [offset + by for offset, by in zip(data.chunk.offsets, start, strict=True)]
                key = chunk_key(MetadataIndex(item.index.fqn, torch.Size(offsets)))
                self._chunks[key] = (item, start, sizes)
                table[key] = {
                    "fqn": item.index.fqn,
                    "offsets": offsets,
                    "sizes": list(sizes),
                    "size": list(data.size),
                    "dtype": adapter.chunk_type(data.properties.dtype),
                }
                items.append(item_of_bytes(MetadataIndex(key), math.prod(sizes) * itemsize))
        mappings = plan.planner_data or {}
        planner_data = {**mappings, _TABLE: {"version": _VERSION, "chunks": table}}
        self.plan = dataclasses.replace(plan, items=items, planner_data=planner_data)
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """One table of the chunks of all ranks."""
        plans, metadata = super().create_global_plan(all_plans)
        chunks: dict[str, Any] = {}
        for plan in all_plans:
            chunks.update(((plan.planner_data or {}).get(_TABLE) or {}).get("chunks", {}))
        if not chunks:
            return plans, metadata
        planner_data = {**(metadata.planner_data or {}), _TABLE: {"version": _VERSION, "chunks": chunks}}
        return plans, dataclasses.replace(metadata, planner_data=planner_data)

    def resolve_data(self, write_item: WriteItem) -> Any:
        """The frame of a chunk, or an object as it is."""
        chunk = self._chunks.get(write_item.index.fqn)
        if chunk is None:
            return super().resolve_data(write_item)
        item, start, sizes = chunk
        tensor = super().resolve_data(item)
        for dimension, (first, length) in enumerate(zip(start, sizes, strict=True)):
            tensor = tensor.narrow(dimension, first, length)
        data, dtype, shape = adapter.borrow_chunk(tensor)
        if not self._byte_grouping:
            return io.BytesIO(_mithril.compress(data, None, None, self._coding))
        return io.BytesIO(_mithril.compress(data, dtype, shape, self._coding))


class MithrilLoadPlanner(DefaultLoadPlanner):  # type: ignore[misc]
    """Loads what `MithrilSavePlanner` saved, on any number of ranks, and checkpoints without compression too.

    Objects that only unpickling can make are refused unless `trusted=True`.
    """

    def __init__(self, *args: Any, threads: int = 0, trusted: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._threads = threads
        self._trusted = trusted

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Restores the metadata of tensors from the table."""
        self.chunks: dict[str, Any] = {}
        if metadata is not None:
            metadata = self._restore(metadata)
        super().set_up_planner(state_dict, metadata, is_coordinator)

    def _restore(self, metadata: Metadata) -> Metadata:
        table = metadata.planner_data.get(_TABLE) if isinstance(metadata.planner_data, dict) else None
        if not isinstance(table, dict):
            if any(_SEPARATOR in name for name in metadata.state_dict_metadata):
                raise CorruptError("the checkpoint has compressed chunks but not their table")
            return metadata
        if table.get("version") != _VERSION:
            raise UnsupportedError(f"the chunks are of version {table.get('version')}; this mithril reads version {_VERSION}")
        self.chunks = table["chunks"]
        entries = {name: entry for name, entry in metadata.state_dict_metadata.items() if name not in self.chunks}
        by_tensor: dict[str, list[Any]] = defaultdict(list)
        for chunk in self.chunks.values():
            by_tensor[chunk["fqn"]].append(chunk)
        for fqn, chunks in by_tensor.items():
            _check(fqn, chunks)
            entries[fqn] = TensorStorageMetadata(
                properties=TensorProperties(dtype=adapter.type_of_chunk(chunks[0]["dtype"])),
                size=torch.Size(chunks[0]["size"]),
                chunks=[ChunkStorageMetadata(torch.Size(c["offsets"]), torch.Size(c["sizes"])) for c in chunks],
            )
        planner_data = {name: path for name, path in metadata.planner_data.items() if name != _TABLE}
        return dataclasses.replace(metadata, state_dict_metadata=entries, planner_data=planner_data)

    def create_local_plan(self) -> LoadPlan:
        """One read of each chunk, whatever number of items need part of it."""
        plan = super().create_local_plan()
        self._wanted: dict[str, list[ReadItem]] = defaultdict(list)
        items = []
        for item in plan.items:
            key = chunk_key(item.storage_index)
            if item.type == LoadItemType.BYTE_IO or key not in self.chunks:
                items.append(item)
                continue
            if key not in self._wanted:
                nothing = torch.Size((0,))
                index = MetadataIndex(key)
                items.append(ReadItem(LoadItemType.BYTE_IO, index, nothing, index, nothing, nothing))
            self._wanted[key].append(item)
        return dataclasses.replace(plan, items=items)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Decodes a chunk and hands its parts out, or loads an object."""
        from mithril.checkpoint.torch import _objects

        key = read_item.dest_index.fqn
        if key not in self.chunks:
            super().load_bytes(read_item, _objects.of_bytes(key, value.getvalue(), self._trusted))
            return
        chunk = self.chunks[key]
        dtype = adapter.type_of_chunk(chunk["dtype"])
        targets = [(item, self.resolve_tensor(item).detach()) for item in self._wanted[key]]
        item, target = targets[0]
        if len(targets) == 1 and _is_whole(item, chunk, target, dtype):
            mithril.decompress(value.getbuffer(), out=adapter.memory(target), threads=self._threads)
        else:
            whole = torch.empty(chunk["sizes"], dtype=dtype)
            mithril.decompress(value.getbuffer(), out=adapter.memory(whole), threads=self._threads)
            for item, target in targets:
                part = whole
                for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                    part = part.narrow(dimension, offset, length)
                target.copy_(part)
        for item, target in targets:
            self.commit_tensor(item, target)


def _check(fqn: str, chunks: list[Any]) -> None:
    try:
        boxes = [(numbers(chunk["offsets"]), numbers(chunk["sizes"])) for chunk in chunks]
        check(fqn, numbers(chunks[0]["size"]), boxes)
    except ValueError as error:
        raise CorruptError(f"the table of compressed chunks is damaged: {error}") from None


def _split(sizes: _Sizes, n_elements: int) -> Iterator[tuple[_Sizes, _Sizes]]:
    """Boxes of at most so many elements that a box is made of: where each starts in it, and its sizes."""
    outer = next((dimension for dimension, size in enumerate(sizes) if size > 1), None)
    if math.prod(sizes) <= n_elements or outer is None:
        yield (0,) * len(sizes), sizes
        return
    length = max(1, n_elements // math.prod(sizes[outer + 1 :]))
    for first in range(0, sizes[outer], length):
        part = (*sizes[:outer], min(length, sizes[outer] - first), *sizes[outer + 1 :])
        for start, inner in _split(part, n_elements):
            yield (*start[:outer], first, *start[outer + 1 :]), inner


def _is_whole(item: ReadItem, chunk: dict[str, Any], target: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a chunk can be decoded where it is wanted."""
    is_all = list(item.lengths) == chunk["sizes"] and not any(item.storage_offsets)
    return is_all and target.device.type == "cpu" and target.is_contiguous() and target.dtype == dtype
