"""Checkpoints as `mithril dcp` reads them, whoever wrote them: tensors in chunks, and other values."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

import mithril
from mithril._adapters import torch as adapter
from mithril._mithril import CorruptError, NotFoundError, UnsupportedError
from mithril.checkpoint import _manifest
from mithril.checkpoint._chunks import Checkpoint
from mithril.checkpoint._place import Place
from mithril.checkpoint.torch import _extension, _objects, _planner
from mithril.checkpoint.torch._extension import MithrilExtension
from mithril.checkpoint.torch._reader import metadata_of, read_object

_METADATA = ".metadata"


class Source:
    """A checkpoint of mithril's storage."""

    def __init__(self, place: Place, threads: int, trusted: bool) -> None:
        self._trusted = trusted
        self._checkpoint = Checkpoint(place, threads=threads)
        self.metadata: Metadata = metadata_of(self._checkpoint)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._checkpoint.close()

    def files(self) -> Iterator[list[MetadataIndex]]:
        """Chunks and values, as they lie together in files."""
        by_file: dict[str, list[MetadataIndex]] = {}
        for index, place in self.metadata.storage_data.items():
            by_file.setdefault(_file_of(place), []).append(index)
        yield from by_file.values()

    def chunk(self, index: MetadataIndex) -> torch.Tensor:
        """One chunk of a tensor."""
        chunk = self.metadata.storage_data[index]
        tensor = self._empty(index)
        if tensor.numel() > 0:
            self._checkpoint.read_into(chunk, adapter.memory(tensor))
        return tensor

    def value(self, fqn: str) -> io.BytesIO:
        """Anything else, as torch serialises it."""
        return read_object(self._checkpoint, self.metadata.storage_data, fqn, self._trusted)

    def _empty(self, index: MetadataIndex) -> torch.Tensor:
        tensor = self.metadata.state_dict_metadata[index.fqn]
        sizes = next(chunk.sizes for chunk in tensor.chunks if chunk.offsets == index.offset)
        return torch.empty(sizes, dtype=tensor.properties.dtype)


class StockSource(Source):
    """A checkpoint that torch's own writer wrote, with or without our planner or extension."""

    def __init__(self, place: Place, threads: int, trusted: bool) -> None:
        path = os.path.join(place.text, _METADATA)
        with open(path, "rb") as file:
            content = file.read()
        found = pickle.loads(content) if trusted else _Restricted(io.BytesIO(content), path).load()
        if not isinstance(found, Metadata):
            raise CorruptError(f"`{path}` holds no metadata of a checkpoint")
        self._trusted = trusted
        self._threads = threads
        self._reader = FileSystemReader(place.text, **_registry())
        self._reader.set_up_storage_reader(found, True)
        # Tensors that our planner compressed are objects to torch; its loading side makes tensors of them again.
        self._loader = _planner.MithrilLoadPlanner(threads=threads, trusted=trusted)
        self._loader.set_up_planner({}, found)
        self.metadata = self._loader.metadata
        self._stored = found.storage_data

    def __exit__(self, *_exception: object) -> None:
        """Nothing is open."""

    def files(self) -> Iterator[list[MetadataIndex]]:
        by_file: dict[str, list[MetadataIndex]] = {}
        for fqn, entry in self.metadata.state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                indices = [MetadataIndex(fqn, chunk.offsets) for chunk in entry.chunks]
            else:
                indices = [MetadataIndex(fqn)]
            for index in indices:
                by_file.setdefault(self._stored_at(index).relative_path, []).append(index)
        yield from by_file.values()

    def chunk(self, index: MetadataIndex) -> torch.Tensor:
        tensor = self._empty(index)
        key = _planner.chunk_key(index)
        if key in self._loader.chunks:
            mithril.decompress(self._content(key).getbuffer(), out=adapter.memory(tensor), threads=self._threads)
            return tensor
        nowhere = torch.Size([0] * tensor.dim())
        item = ReadItem(LoadItemType.TENSOR, index, nowhere, index, nowhere, tensor.shape)
        self._reader.read_data(LoadPlan([item]), _Wanted(tensor))
        return tensor

    def value(self, fqn: str) -> io.BytesIO:
        return _objects.of_bytes(fqn, self._content(fqn).getvalue(), self._trusted)

    def _content(self, fqn: str) -> io.BytesIO:
        wanted, index = _Wanted(), MetadataIndex(fqn)
        item = ReadItem(LoadItemType.BYTE_IO, index, torch.Size(), index, torch.Size(), torch.Size())
        self._reader.read_data(LoadPlan([item]), wanted)
        return wanted.content

    def _stored_at(self, index: MetadataIndex) -> Any:
        place = self._stored.get(index) or self._stored.get(MetadataIndex(_planner.chunk_key(index)))
        if place is None:
            raise CorruptError(f"the checkpoint does not say where `{index.fqn}` is")
        return place


def open_source(source: str | os.PathLike[str], *, threads: int = 0, trusted: bool = False) -> Source:
    """Opens a checkpoint of mithril, or one that torch's own writer wrote."""
    place = Place(source)
    if place.is_local and not place.has(_manifest.NAME):
        if place.has(_METADATA):
            return StockSource(place, threads, trusted)
        if os.path.isdir(place.text):
            raise NotFoundError(f"`{place}` is no finished checkpoint: it has neither {_manifest.NAME} nor {_METADATA}")
    return Source(place, threads, trusted)


class _Wanted(DefaultLoadPlanner):  # type: ignore[misc]
    """Takes the one item that it is used for."""

    def __init__(self, target: torch.Tensor | None = None) -> None:
        super().__init__()
        self._target = target
        self.content = io.BytesIO()

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor | None:
        return self._target

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """It is in its place."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.content = io.BytesIO(value.read())


class _Restricted(pickle.Unpickler):
    """Unpickles the metadata that torch writes, and nothing that could run code."""

    def __init__(self, file: io.BytesIO, path: str) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        is_known = (module, name) in _KNOWN or (module == "torch.distributed.checkpoint.metadata" and name in _OF_METADATA)
        if not (is_dtype or is_known):
            raise UnsupportedError(
                f"`{self._path}` is a pickle that names `{module}.{name}`, which could run any code: give `--trusted` if "
                f"you trust who wrote it"
            )
        return super().find_class(module, name)


_OF_METADATA = (
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorProperties",
    "TensorStorageMetadata",
    "_MEM_FORMAT_ENCODING",
)
_KNOWN = {
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    ("torch", "Size"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
}


def _file_of(place: Any) -> str:
    return str(getattr(place, "file", None) or (place.get("file") if isinstance(place, dict) else "") or "")


def _registry() -> dict[str, Any]:
    return {"_extension_registry": MithrilExtension.registry()} if _extension.AVAILABLE else {}
