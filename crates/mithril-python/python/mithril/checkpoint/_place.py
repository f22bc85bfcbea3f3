"""Where checkpoints of several processes are: a directory, or a prefix of an object store."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

from mithril import _mithril
from mithril._mithril import UnsupportedError

_LOCAL = ("file", "local")
_REMOTE = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https")


# What places are made of.
AnyPlace = Union[str, "os.PathLike[str]", "Place"]


class Place:
    """A place that is named by a path or a URL. Nothing is opened before it is used, so places can be pickled."""

    def __init__(self, place: AnyPlace) -> None:
        text = place.text if isinstance(place, Place) else os.fspath(place)
        if not isinstance(text, str) or not text:
            raise TypeError("a checkpoint's place is a path or a URL")
        scheme, separator, rest = text.partition("://")
        if separator and scheme not in _LOCAL + _REMOTE:
            raise UnsupportedError(
                f"checkpoints of several processes are in directories or object stores (s3://, gs://, az://), "
                f"which `{_mithril.without_secrets_of_urls(text)}` is not"
            )
        if separator and scheme in _LOCAL:
            text, separator = rest.removeprefix("localhost"), ""
        self.text: str = text.rstrip("/") if separator else str(Path(text))
        """The URL, or the path."""
        self.is_local = not separator
        # Opened once, also for what is made of this place.
        self._storage: Any = place._storage if isinstance(place, Place) else None

    def __str__(self) -> str:
        """The path, or the URL without its secrets; `text` has them, and is for the storage alone."""
        return self.text if self.is_local else _mithril.without_secrets_of_urls(self.text)

    def __repr__(self) -> str:
        return f"Place({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_storage": None}

    def _identity(self) -> str:
        return os.path.realpath(self.text) if self.is_local else self.text

    @property
    def storage(self) -> Any:
        """The storage that holds the files."""
        if self._storage is None:
            self._storage = _mithril.Storage(self.text)
        return self._storage

    @property
    def name(self) -> str:
        """The last part of its path."""
        return posixpath.basename(self._path())

    @property
    def parent(self) -> Place:
        """The place that it is in."""
        if self.is_local:
            return Place(os.path.dirname(os.path.abspath(self.text)) if self.name in ("", ".", "..") else self._above())
        root, path = self._parts()
        if not path:
            raise UnsupportedError(f"`{self}` is a whole bucket: name a checkpoint in it")
        return Place(posixpath.join(root, posixpath.dirname(path)))

    def join(self, relative: str) -> Place:
        """The place at a relative path from here, or the one that a full path or URL names."""
        if "://" in relative or (self.is_local and os.path.isabs(relative)):
            return Place(relative)
        if self.is_local:
            # Without links: `..` behind one is not the directory above.
            return Place(os.path.join(os.path.realpath(self.text), relative))
        root, path = self._parts()
        joined = posixpath.normpath(posixpath.join(path, relative))
        if joined.startswith(".."):
            raise UnsupportedError(f"`{relative}` leads out of `{self}`")
        return Place(posixpath.join(root, joined))

    def relative_to(self, start: Place) -> str:
        """How `start.join` finds this place: relative where it can be, so that both can be moved together."""
        if self.is_local and start.is_local:
            return os.path.relpath(os.path.realpath(self.text), os.path.realpath(start.text))
        (root, path), (other_root, other_path) = self._parts(), start._parts()
        if root == other_root and not {"?", "#"} & set(path):
            return posixpath.relpath(path or ".", other_path or ".")
        if str(self) != self.text:
            # What is returned is stored, where others read it.
            raise UnsupportedError(f"the URL of `{self}` has secrets, which cannot be stored: give them by the environment")
        return os.path.realpath(self.text) if self.is_local else self.text

    def has(self, name: str) -> bool:
        """Whether there is a file."""
        if self.is_local:
            return os.path.isfile(os.path.join(self.text, name))
        return self.storage.size(name) is not None

    def children(self, holding: str) -> Iterator[tuple[Place, list[str]]]:
        """The places directly below this one that hold a file, each with the names of all its files."""
        if self.is_local:
            path = Path(self.text)
            for child in sorted(path.iterdir()) if path.is_dir() else ():
                # One that is removed meanwhile is not there.
                names = os.listdir(child) if child.is_dir() else []
                if holding in names:
                    yield Place(child), names
            return
        below: dict[str, list[str]] = {}
        for key, _, _ in self.storage.list(""):
            child_name, _, name = key.partition("/")
            below.setdefault(child_name, []).append(name)
        for child_name, names in below.items():
            if holding in names:
                yield self.join(child_name), names

    def remove(self, first: str) -> None:
        """Removes everything below this place, one file before all others."""
        self.storage.delete(first)
        if self.is_local:
            # Another process may be removing it, too.
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.text)
            return
        for key, _, _ in self.storage.list(""):
            self.storage.delete(key)

    def _above(self) -> str:
        return os.path.dirname(self.text) or "."

    def _path(self) -> str:
        return self.text if self.is_local else self._parts()[1]

    def _parts(self) -> tuple[str, str]:
        """Scheme with bucket, and the path in it."""
        if self.is_local:
            return "", self.text
        scheme, _, rest = self.text.partition("://")
        bucket, _, path = rest.partition("/")
        return f"{scheme}://{bucket}", path
