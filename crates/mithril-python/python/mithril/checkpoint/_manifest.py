"""What a checkpoint of several processes holds: the one file that makes it whole, written last.

A checkpoint is a directory with a container of each process, `r00000-GENERATION.mckp` and so on, and `manifest.json`. Each
tensor is in chunks, each of which is one tensor of one container. The manifest is JSON with a digest of itself; nothing
in it is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mithril._mithril import ConflictError, CorruptError, NotFoundError, UnsupportedError

NAME = "manifest.json"
_MAGIC = "mithril checkpoint"
_VERSION = 1


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
    """The checkpoint that this one is stored against, from this directory on. It is stored whole itself."""
    base_generation: str | None = None
    """Which one that was: a directory may be written anew."""
    n_since_whole: int = 0
    """How many saves ago a checkpoint was stored whole."""
    step: int | None = None
    generation: str = field(default_factory=lambda: new_generation())


def new_generation() -> str:
    """A name that no other save has."""
    return secrets.token_hex(8)


def read(directory: Path, name: str = NAME) -> Manifest:
    """The manifest of a checkpoint, or under another name that of a part of it."""
    path = directory / name
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        if directory.is_dir():
            raise NotFoundError(f"`{directory}` is no finished checkpoint: it has no {name}") from None
        raise NotFoundError(f"there is no checkpoint `{directory}`") from None
    try:
        outer = json.loads(text)
        magic, version, body = outer["format"], outer["version"], outer["body"]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(f"`{path}` is damaged: {error}") from None
    if magic != _MAGIC:
        raise CorruptError(f"`{path}` is the manifest of something else")
    if version != _VERSION:
        raise UnsupportedError(f"`{path}` is of version {version}; this mithril reads version {_VERSION}")
    if outer.get("digest") != _digest(body):
        raise CorruptError(f"`{path}` is damaged: its digest does not match")
    try:
        return _from_body(body)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptError(f"`{path}` is damaged: {error}") from None


def write(directory: Path, manifest: Manifest, *, replace: bool, name: str = NAME) -> None:
    """Makes a checkpoint, or a part of one, whole. Everything that the manifest names must be on disk already."""
    body = asdict(manifest)
    outer = {"format": _MAGIC, "version": _VERSION, "digest": _digest(body), "body": body}
    temporary = directory / f".{name}.{manifest.generation}"
    try:
        with open(temporary, "xb") as file:
            file.write(json.dumps(outer, separators=(",", ":"), allow_nan=False).encode())
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, directory / name)
        else:
            try:
                # A link fails where there is a manifest already; a rename would replace it.
                os.link(temporary, directory / name)
            except FileExistsError:
                raise ConflictError(f"another save has finished `{directory}` first") from None
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Makes what was created or renamed in a directory last."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(body: Any) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _from_body(body: dict[str, Any]) -> Manifest:
    def chunk(entry: dict[str, Any]) -> Chunk:
        file = entry["file"]
        if not isinstance(file, str) or file != os.path.basename(file) or file in ("", ".", ".."):
            raise ValueError(f"`{file}` is no name of a file")
        return Chunk(tuple(entry["offsets"]), tuple(entry["sizes"]), file, entry["name"])

    tensors = {
        name: Tensor(entry["dtype"], tuple(entry["size"]), tuple(map(chunk, entry["chunks"])))
        for name, entry in body["tensors"].items()
    }
    return Manifest(**{**body, "tensors": tensors})
