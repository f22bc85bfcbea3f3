"""Saving in parts: each process writes a container and says what is in it, then one of them merges what all have said.

A part is a manifest under the name `manifest-r00003.json`. Merging writes the manifest of the whole checkpoint, which
makes it one, and removes the parts.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mithril._mithril import CorruptError, MithrilError
from mithril._types import Coding
from mithril.checkpoint import _claims, _manifest
from mithril.checkpoint._chunks import Checkpoint
from mithril.checkpoint._manifest import Chunk, Manifest, Tensor
from mithril.checkpoint._place import Place

_POLL_SECONDS = 0.05


class Piece(NamedTuple):
    """A box of a tensor's elements, with its bytes."""

    tensor: str
    dtype: str
    """Of the tensor, as the manifest has it."""
    size: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    stored_dtype: str
    """What the container takes the bytes for."""
    stored_shape: tuple[int, ...]
    data: Any


@dataclass(frozen=True)
class Part:
    """What one process saves. Objects and the planner's text come from the first process that has any."""

    pieces: list[Piece]
    objects: dict[str, Any]
    planner_data: str


def name_of(process: int) -> str:
    """Name of the file that says what a process has saved."""
    return f"manifest-r{process:05}.json"


def chunk_name(tensor: str, offsets: tuple[int, ...]) -> str:
    """Name of a chunk in its container: the same in every checkpoint, so that bases are found by it."""
    return f"tensor/{tensor}@{','.join(map(str, offsets))}"


def open_base(directory: Path, max_since_whole: int, threads: int) -> tuple[Checkpoint | None, int]:
    """What a save after this checkpoint is stored against, if anything, and how many saves ago that was.

    It is the last checkpoint that was stored whole, so that loading reads two checkpoints at most.
    """
    base = Checkpoint(directory, threads=threads)
    n_since_whole = base.manifest.n_since_whole + 1
    if n_since_whole > max_since_whole:
        return None, 0
    return base.base() or base, n_since_whole


def write(
    directory: Path,
    process: int,
    part: Part,
    coding: Coding,
    *,
    base: Path | None = None,
    max_since_whole: int = 8,
) -> None:
    """Writes the container of a process, and then what is in it."""
    against, n_since_whole = (None, 0) if base is None else open_base(base, max_since_whole, coding[1])
    file = f"r{process:05}-{_manifest.new_generation()}.mckp"
    tensors: dict[str, Tensor] = {}
    stored = []
    for piece in part.pieces:
        chunk = Chunk(piece.offsets, piece.sizes, file, chunk_name(piece.tensor, piece.offsets))
        earlier = tensors.get(piece.tensor)
        chunks = (chunk,) if earlier is None else (*earlier.chunks, chunk)
        tensors[piece.tensor] = Tensor(piece.dtype, piece.size, chunks)
        stored.append((chunk.name, piece.stored_dtype, piece.stored_shape, piece.data))
    files = {}
    if stored:
        models = against.models_with(name for name, *_ in stored) if against else []
        files[file] = Place(directory).storage.pack_tensors(file, stored, models, coding)
    manifest = Manifest(
        tensors=tensors,
        planner_data=part.planner_data,
        objects=part.objects,
        files=files,
        base=None if against is None else os.path.relpath(against.directory, directory),
        base_generation=None if against is None else against.manifest.generation,
        n_since_whole=n_since_whole,
    )
    _manifest.write(directory, manifest, replace=True, name=name_of(process))


def merge(directory: Path, n_processes: int, *, timeout: float = 0.0) -> None:
    """Makes the checkpoint of the parts of all processes, which may still be written for `timeout` seconds."""
    names = [name_of(process) for process in range(n_processes)]
    deadline = time.monotonic() + timeout
    while missing := [name for name in names if not (directory / name).is_file()]:
        if time.monotonic() >= deadline:
            raise MithrilError(
                f"`{directory}`: {len(missing)} of {n_processes} processes have not written what they "
                f"save, so nothing is committed; `{missing[0]}` is the first that is missing"
            )
        time.sleep(_POLL_SECONDS)
    parts = [_manifest.read(directory, name) for name in names]
    first = parts[0]
    merged: dict[str, Tensor] = {}
    for part in parts:
        if (part.base, part.base_generation) != (first.base, first.base_generation):
            raise MithrilError(f"`{directory}`: processes have stored against different checkpoints: nothing is committed")
        for name, tensor in part.tensors.items():
            merged[name] = _joined(name, merged.get(name), tensor)
    files = {file: size for part in parts for file, size in part.files.items()}
    _claims.commit(Place(directory), replace(first, tensors=merged, files=files))
    for name in names:
        (directory / name).unlink()


def _joined(name: str, one: Tensor | None, other: Tensor) -> Tensor:
    """A tensor with the chunks of two processes. Of those that both have saved one is kept."""
    if one is None:
        return other
    if (one.dtype, one.size) != (other.dtype, other.size):
        raise CorruptError(f"processes disagree about `{name}`: {one.dtype} {one.size}, {other.dtype} {other.size}")
    known = {chunk.offsets for chunk in one.chunks}
    return replace(one, chunks=(*one.chunks, *(chunk for chunk in other.chunks if chunk.offsets not in known)))
