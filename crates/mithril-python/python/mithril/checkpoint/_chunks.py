"""Reading chunks of a checkpoint: containers are opened once, and decode only the rows that are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mithril import _mithril
from mithril._mithril import BaseMismatchError, CorruptError, NotFoundError
from mithril.checkpoint import _manifest
from mithril.checkpoint._manifest import Chunk, Manifest

# Bytes that are decoded at a time where a chunk cannot be decoded to its place.
PIECE_SIZE = 32 << 20


class Checkpoint:
    """An open checkpoint, with the one that it is stored against."""

    def __init__(self, directory: Path, manifest: Manifest | None = None, threads: int = 0) -> None:
        self.directory = directory
        self.manifest = manifest or _manifest.read(directory)
        self._threads = threads
        self._models: dict[str, Any] = {}
        self._base: Checkpoint | None = None

    def base(self) -> Checkpoint | None:
        """The checkpoint that this one is stored against."""
        if self.manifest.base is None:
            return None
        if self._base is None:
            directory = self.directory / self.manifest.base
            try:
                base = Checkpoint(directory, threads=self._threads)
            except NotFoundError as error:
                raise NotFoundError(f"`{self.directory}` is stored against another checkpoint: {error}") from None
            if base.manifest.generation != self.manifest.base_generation:
                raise BaseMismatchError(f"`{directory}` was written anew since `{self.directory}` was stored against it")
            self._base = base
        return self._base

    def model(self, file: str) -> Any:
        """A container of this checkpoint."""
        if file not in self._models:
            path = self.directory / file
            if not path.is_file():
                raise NotFoundError(f"`{path}` is missing: the checkpoint is not whole")
            base = self.base()
            self._models[file] = _mithril.Model.open(path, base.paths() if base else [])
        return self._models[file]

    def paths(self) -> list[Path]:
        """All containers, which serve as bases of others."""
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
