"""What a checkpoint of several processes holds: the one file that makes it whole, written last.

A checkpoint is a directory, or a prefix of an object store, with a container of each process, `r00000-GENERATION.mckp` and
so on, and `manifest.json`. Each tensor is in chunks, each of which is one tensor of one container. The manifest is JSON
with a digest of itself; nothing in it is ever executed.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mithril._mithril import ConflictError, CorruptError, NotFoundError
from mithril.checkpoint._coverage import check, numbers
from mithril.checkpoint._place import AnyPlace, Place
from mithril.checkpoint._sealed import sealed, unsealed

NAME = "manifest.json"
_MAGIC = "mithril distributed checkpoint"
_VERSION = 1
# What manifests said before the first release, as those of stores do.
_BEFORE = "mithril checkpoint"
# A manifest takes some hundred bytes for each chunk.
_MAX_LEN = 1 << 32


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor's elements, and where its bytes are."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    name: str


@dataclass(frozen=True)
class Tensor:
    """A tensor in chunks."""

    dtype: str
    size: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Manifest:
    """All of a checkpoint but its bytes."""

    tensors: dict[str, Tensor]
    """By fully qualified name."""
    planner_data: str
    """What the framework needs to nest names again, as a text of `_state`."""
    objects: dict[str, Any] = field(default_factory=dict)
    """Everything else by name: `{"value": text of _state}`, or `{"file": ..., "name": ...}` of serialised bytes."""
    files: dict[str, int] = field(default_factory=dict)
    """Length of each container."""
    base: str | None = None
    """The checkpoint that this one is stored against, from this place on, or its URL. It is stored whole itself."""
    base_generation: str | None = None
    """Which one that was: a directory may be written anew."""
    n_since_whole: int = 0
    """How many saves ago a checkpoint was stored whole."""
    step: int | None = None
    sequence: int = 0
    """The place of the save among those that have moved `latest`; 0 for others."""
    generation: str = field(default_factory=lambda: new_generation())


def new_generation() -> str:
    """A name that no other save has."""
    return secrets.token_hex(8)


def read(checkpoint: AnyPlace, name: str = NAME) -> Manifest:
    """The manifest of a checkpoint, or under another name that of a part of it."""
    place = Place(checkpoint)
    path = f"{place}/{name}"
    try:
        text = place.storage.get(name, _MAX_LEN)
    except NotFoundError:
        if os.path.isdir(place.text) if place.is_local else place.storage.list(""):
            raise NotFoundError(f"`{place}` is no finished checkpoint: it has no {name}") from None
        raise NotFoundError(f"there is no checkpoint `{place}`") from None
    body = unsealed(text, path, _MAGIC, _VERSION, before=_BEFORE)
    try:
        return _from_body(body, is_whole=name == NAME)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptError(f"`{path}` is damaged: {error}") from None


def write(checkpoint: AnyPlace, manifest: Manifest, *, replace: bool, name: str = NAME) -> None:
    """Makes a checkpoint, or a part of one, whole. Everything that the manifest names must be safe already."""
    place = Place(checkpoint)
    content = sealed(asdict(manifest), _MAGIC, _VERSION)
    if replace:
        place.storage.replace(name, content)
        return
    try:
        place.storage.put_new(name, content)
    except ConflictError:
        raise ConflictError(f"another save has finished `{place}` first") from None


def _from_body(body: dict[str, Any], is_whole: bool) -> Manifest:
    files = {_file(name): length for name, length in body.get("files", {}).items()}
    numbers(list(files.values()))
    tensors = {name: _tensor(name, entry, files, is_whole) for name, entry in body["tensors"].items()}
    for name, entry in body.get("objects", {}).items():
        if "value" not in entry and _file(entry["file"]) not in files:
            raise ValueError(f"`{name}` is in a file that is not listed")
    known = {entry.name for entry in fields(Manifest)}
    return Manifest(**{**{name: value for name, value in body.items() if name in known}, "tensors": tensors})


def _tensor(name: str, entry: dict[str, Any], files: dict[str, int], is_whole: bool) -> Tensor:
    def chunk(found: dict[str, Any]) -> Chunk:
        if _file(found["file"]) not in files:
            raise ValueError(f"a chunk of `{name}` is in a file that is not listed")
        return Chunk(numbers(found["offsets"]), numbers(found["sizes"]), found["file"], found["name"])

    tensor = Tensor(entry["dtype"], numbers(entry["size"]), tuple(map(chunk, entry["chunks"])))
    check(name, tensor.size, [(chunk.offsets, chunk.sizes) for chunk in tensor.chunks], is_whole=is_whole)
    return tensor


def _file(name: Any) -> str:
    if not isinstance(name, str) or name != os.path.basename(name) or name in ("", ".", ".."):
        raise ValueError(f"`{name}` is not a name of a file")
    return name
