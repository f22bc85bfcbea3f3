"""Reading chunks of a checkpoint: containers are opened once, and decode only the rows that are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from mithril._mithril import BaseMismatchError, CorruptError, NotFoundError, UnsupportedError
from mithril.checkpoint import _manifest
from mithril.checkpoint._manifest import Chunk, Manifest
from mithril.checkpoint._place import AnyPlace, Place

# Bytes that are decoded at a time where a chunk cannot be decoded to its place.
PIECE_SIZE = 32 << 20


class Checkpoint:
    """An open checkpoint, with the one that it is stored against."""

    def __init__(self, place: AnyPlace, manifest: Manifest | None = None, threads: int = 0) -> None:
        self.place = Place(place)
        self.manifest = manifest or _manifest.read(self.place)
        self._threads = threads
        self._models: dict[str, Any] = {}
        self._base: Checkpoint | None = None
        self._by_name: dict[str, str] | None = None

    def base(self) -> Checkpoint | None:
        """The checkpoint that this one is stored against."""
        if self.manifest.base is None:
            return None
        if self._base is None:
            place = self.place.join(self.manifest.base)
            try:
                base = Checkpoint(place, threads=self._threads)
            except NotFoundError as error:
                raise NotFoundError(f"`{self.place}` is stored against another checkpoint: {error}") from None
            if base.manifest.generation != self.manifest.base_generation:
                raise BaseMismatchError(f"`{place}` was written anew since `{self.place}` was stored against it")
            self._base = base
        return self._base

    def model(self, file: str) -> Any:
        """A container of this checkpoint, with those of the base that it needs."""
        if file not in self._models:
            self._models[file] = self._opened(file, self._bases_of)
        return self._models[file]

    def models_with(self, names: Iterable[str]) -> list[Any]:
        """The containers that have some of these chunks and objects, to store others against them."""
        by_name = self._files_by_name()
        return [self.model(file) for file in sorted({by_name[name] for name in names if name in by_name})]

    def _opened(self, file: str, find_bases: Callable[[list[str]], list[Any]]) -> Any:
        try:
            return self.place.storage.open_model(file, self.manifest.files.get(file), find_bases)
        except NotFoundError:
            if self.place.has(file):
                # It is the base that is missing.
                raise
            raise NotFoundError(f"`{self.place}/{file}` is missing: the checkpoint is not whole") from None

    def _bases_of(self, names: list[str]) -> list[Any]:
        """The containers of the base that have these tensors."""
        base = self.base()
        if base is None:
            return []
        if not base._files_by_name().keys() >= set(names):
            return [base.model(file) for file in base.manifest.files]
        return base.models_with(names)

    def _files_by_name(self) -> dict[str, str]:
        """In which container each chunk and object is."""
        if self._by_name is None:
            chunks = (chunk for tensor in self.manifest.tensors.values() for chunk in tensor.chunks)
            objects = (entry for entry in self.manifest.objects.values() if "file" in entry)
            self._by_name = {chunk.name: chunk.file for chunk in chunks}
            self._by_name |= {entry["name"]: entry["file"] for entry in objects}
        return self._by_name

    @property
    def directory(self) -> Path:
        """The directory of one that is in none but a local file system."""
        if not self.place.is_local:
            raise UnsupportedError(f"`{self.place}` is no directory")
        return Path(self.place.text)

    def close(self) -> None:
        """Ends all reading."""
        for model in self._models.values():
            model.close()
        if self._base is not None:
            self._base.close()

    def read_into(self, chunk: Chunk, memory: Any) -> None:
        """Decodes a whole chunk to its place."""
        self.model(chunk.file).read(chunk.name, None, lambda _size: memory, self._threads)

    def read_bytes(self, file: str, name: str) -> bytes:
        """The bytes of an object."""
        content: bytes = self.model(file).read_bytes(name, self._threads)
        return content

    def read_rows(self, chunk: Chunk, first: int, end: int, itemsize: int, memory: Any) -> None:
        """Decodes rows `first` to `end` of a chunk to their place. A chunk without dimensions is one row."""
        if first == 0 and end == (chunk.sizes[0] if chunk.sizes else 1):
            self.read_into(chunk, memory)
            return
        row_size = itemsize * math.prod(chunk.sizes[1:])
        self.model(chunk.file).read(chunk.name, (first * row_size, end * row_size), lambda _size: memory, self._threads)

    def rows(
        self, chunk: Chunk, first: int, end: int, itemsize: int, empty: Callable[[int], tuple[Any, Any]]
    ) -> Iterator[tuple[int, int, Any]]:
        """Rows `first` to `end` of a chunk, some at a time: first row, end, and what `empty` made for them.

        `empty(n_rows)` gives an array of that many rows and its memory. A chunk without dimensions is one row.
        """
        row_size = itemsize * math.prod(chunk.sizes[1:])
        if row_size == 0:
            raise CorruptError(f"chunk `{chunk.name}` has no elements")
        per_piece = max(1, PIECE_SIZE // row_size)
        model = self.model(chunk.file)
        for start in range(first, end, per_piece):
            stop = min(end, start + per_piece)
            array, memory = empty(stop - start)
            model.read(chunk.name, (start * row_size, stop * row_size), lambda _size, m=memory: m, self._threads)
            yield start, stop, array
