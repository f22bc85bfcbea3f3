"""Reading chunks of a checkpoint: containers are opened once, and decode only the rows that are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
        """A container of this checkpoint."""
        if file not in self._models:
            base = self.base()
            bases = base.models() if base else []
            try:
                self._models[file] = self.place.storage.open_model(file, bases)
            except NotFoundError:
                raise NotFoundError(f"`{self.place}/{file}` is missing: the checkpoint is not whole") from None
        return self._models[file]

    def models(self) -> list[Any]:
        """All containers, which serve as bases of others."""
        return [self.model(file) for file in self.manifest.files]

    @property
    def directory(self) -> Path:
        """The directory of one that is in none but a local file system."""
        if not self.place.is_local:
            raise UnsupportedError(f"`{self.place}` is no directory")
        return Path(self.place.text)

    def paths(self) -> list[Path]:
        """Where the containers are in a directory."""
        return [self.directory / file for file in self.manifest.files]

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
