"""Checkpoints that a framework knows by a path: at the path is a small file that names a checkpoint of a store.

So the framework finds, links and removes files as it always does, and the tensors are in chains of deltas. The file is
written after everything that it names is safe.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from mithril._mithril import (
    CheckpointMeta,
    CorruptError,
    NotFoundError,
    OutputFile,
    UnsupportedError,
    without_secrets_of_urls,
)
from mithril.checkpoint import _manifest
from mithril.checkpoint._compressor import Compressor
from mithril.checkpoint._place import Place
from mithril.checkpoint._sealed import sealed, unsealed
from mithril.checkpoint._sync import sync

STORE = "mithril-store"
"""Name of the store beside the checkpoints, unless another place is given."""

_MAGIC = "mithril pointer"
_VERSION = 1
# A key has room for 200 bytes.
_MAX_LABEL_LEN = 150

PathLike = str | os.PathLike[str]


class Pointer(NamedTuple):
    """What a file names."""

    store: str
    """The store, from the directory of the file on, or its URL."""
    key: str
    files: dict[str, str]
    """Digests of plain files beside it that belong to the checkpoint."""


class Pointers:
    """Saves and loads states by the paths of such files.

    `storage` is the store of all of them; without one, each directory of checkpoints has its own. `options` are those of
    `Compressor`, except for what is kept: that follows the files.
    """

    def __init__(self, storage: PathLike | None, options: dict[str, Any]) -> None:
        kept = sorted({"keep", "keep_last", "keep_every"} & options.keys())
        if kept:
            raise TypeError(f"`{kept[0]}` is for the framework to say, which removes checkpoints itself")
        self._storage = None if storage is None else Place(storage)
        self._options = options
        self._opened: dict[tuple[str, bool], Compressor] = {}
        # What this process has saved last in each store.
        self._saved: dict[str, str] = {}
        # Mistakes in the options are told now.
        Compressor("memory://", **options)

    def save(
        self,
        path: PathLike,
        state: Any,
        *,
        root: PathLike | None = None,
        label: str | None = None,
        step: int | None = None,
        files: dict[str, str] | None = None,
    ) -> CheckpointMeta:
        """Saves a state, as what changed since the newest one in the store, and then the file that names it.

        `root` is where the store is, by default beside the file; `label` what it is called there, by default as the file.
        """
        path = _local(path)
        directory = Place(path.parent)
        store = self._storage or (directory if root is None else Place(root)).join(STORE)
        compressor = self._store(store)
        label = _label(label or path.name)
        key = f"{label}@{_manifest.new_generation()}"
        where = store.relative_to(directory)
        meta = compressor.save(state, key, self._newest(store), step=step)
        self._saved[store.text] = key
        before = self._read(path) if path.exists() else None
        pointer = Pointer(where, key, files or {})
        _replace(path, sealed(pointer._asdict(), _MAGIC, _VERSION))
        if before is not None:
            self.delete(path, before)
        if self._storage is None:
            # Left by saves of this path that were killed before they could name what they had stored.
            stored = compressor.keys()
            for other in stored:
                if other != key and other.rpartition("@")[0] == label:
                    compressor.delete(other)
        return meta

    def load(self, path: PathLike, *, map_location: Any = None, trusted: bool | None = None) -> Any:
        """The state that a file names."""
        pointer = self.read(path)
        store = Place(_local(path).parent).join(pointer.store)
        try:
            return self._store(store, trusted).load(pointer.key, map_location)
        except NotFoundError as error:
            raise NotFoundError(f"`{path}` names a checkpoint that is not in `{store}`: {error}") from None

    def read(self, path: PathLike) -> Pointer:
        """What a file names."""
        pointer = self._read(_local(path))
        if pointer is None:
            raise CorruptError(f"`{path}` names no checkpoint of mithril")
        return pointer

    def is_one(self, path: PathLike) -> bool:
        """Whether a file names a checkpoint, even if it is damaged, and is none of the framework itself."""
        try:
            return self._read(_local(path)) is not None
        except NotFoundError:
            return False
        except CorruptError:
            return True

    def remove(self, path: PathLike) -> None:
        """Removes the file, and what it names."""
        pointer = self.read(path)
        _local(path).unlink()
        self.delete(path, pointer)

    def delete(self, path: PathLike, pointer: Pointer) -> None:
        """Removes what a file has named that is gone, or names something else now."""
        with contextlib.suppress(NotFoundError):
            self._store(Place(_local(path).parent).join(pointer.store)).delete(pointer.key)

    def _newest(self, store: Place) -> str | None:
        """What the next state is stored against. All manifests are read only by the first save of a process."""
        compressor = self._store(store)
        saved = self._saved.get(store.text)
        if saved is not None:
            with contextlib.suppress(NotFoundError):
                return compressor.meta(saved).key
        newest = compressor.latest()
        return None if newest is None else newest.key

    def _read(self, path: Path) -> Pointer | None:
        try:
            with path.open("rb") as file:
                # Checkpoints of torch are zip files, or pickles.
                content = file.read() if file.read(1) == b"{" else None
        except FileNotFoundError:
            raise NotFoundError(f"there is no checkpoint `{path}`") from None
        if content is None:
            return None
        body = unsealed(b"{" + content, str(path), _MAGIC, _VERSION, before=_MAGIC)
        try:
            return Pointer(str(body["store"]), str(body["key"]), dict(body["files"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"`{path}` is damaged: {error}") from None

    def _store(self, place: Place, trusted: bool | None = None) -> Compressor:
        options = self._options if trusted is None else {**self._options, "trusted": trusted}
        opened = (place.text, bool(options.get("trusted", False)))
        if opened not in self._opened:
            self._opened[opened] = Compressor(place.text, **options)
        return self._opened[opened]


def secured(directory: Path, leave_out: str) -> dict[str, str]:
    """Digests of all files below a directory but one, once they are on disk."""
    digests = {}
    for parent, _, names in os.walk(directory):
        for name in sorted(names):
            path = Path(parent, name)
            relative = path.relative_to(directory).as_posix()
            if relative != leave_out:
                with path.open("rb") as file:
                    digests[relative] = _digest(file)
                    os.fsync(file.fileno())
        sync(Path(parent))
    return digests


def check_files(directory: Path, digests: dict[str, str]) -> None:
    """Refuses a checkpoint whose plain files are not as they were."""
    for name, digest in digests.items():
        try:
            with (directory / name).open("rb") as file:
                found = _digest(file)
        except FileNotFoundError:
            raise NotFoundError(f"`{directory / name}` is missing: the checkpoint is not whole") from None
        if found != digest:
            raise CorruptError(f"`{directory / name}` is damaged: its digest does not match")


def _digest(file: Any) -> str:
    digest = hashlib.blake2b(digest_size=32)
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _replace(path: Path, content: bytes) -> None:
    with OutputFile(path, True) as file:
        file.write(content)


def _label(name: str) -> str:
    return name if len(quote(name)) <= _MAX_LABEL_LEN else hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def _local(path: PathLike) -> Path:
    text = os.fspath(path)
    if "://" in text:
        raise UnsupportedError(
            f"`{without_secrets_of_urls(text)}`: the files that name checkpoints are in a local directory; tensors may be "
            "elsewhere, by `storage`"
        )
    return Path(text)
