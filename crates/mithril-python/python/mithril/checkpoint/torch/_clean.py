"""What saves leave behind that were killed: containers that no manifest names."""

from __future__ import annotations

import os
import re
import time
import warnings
from typing import NamedTuple

from mithril._mithril import MithrilError, NotFoundError
from mithril.checkpoint import _manifest
from mithril.checkpoint._compressor import Collected
from mithril.checkpoint._place import Place
from mithril.checkpoint.torch import _latest

# What the storage has made to see that of two writers one is refused.
_PROBE = "conditional"
# Containers, what tells the number of a save, and what says that a checkpoint is being removed.
_OURS = re.compile(rf"r\d{{5,}}-[0-9a-f]{{16}}\.mckp|sequence-\d{{9,}}|removing(-[0-9a-f]{{32}})?|{_PROBE}")
# What a file is called in a directory until it is whole.
_TEMPORARY = re.compile(
    r"\.(r\d{5,}-[0-9a-f]{16}\.mckp|sequence-\d{9,}|removing(-[0-9a-f]{32})?|manifest\.json|latest)\.[0-9a-f]{32}\.tmp"
)


class _File(NamedTuple):
    directory: str
    name: str
    size: int
    age: float | None


def clean(root: str | os.PathLike[str], *, min_age: float = 3600.0, dry_run: bool = False) -> Collected:
    """Removes what killed saves have left in a checkpoint, or in all checkpoints directly below a place.

    A file goes if it is a container of ours that the manifest beside it does not name, or the mark of another save, or a
    temporary file of one, and if it is older than `min_age` seconds: a save that is at work has such files too. A directory
    that is empty then goes as well. Where a manifest cannot be read, nothing is removed and a warning names it. With
    `dry_run` nothing is removed anywhere.
    """
    place = Place(root)
    # Before the manifests are read: what a save has finished in between is named there.
    leftovers = _candidates(place)
    if not leftovers and place.is_local and not os.path.isdir(place.text):
        raise NotFoundError(f"there is no directory `{place}`")
    removed, too_young, removed_size = [], [], 0
    for directory in sorted({file.directory for file in leftovers}):
        at = place.join(directory) if directory else place
        try:
            manifest = _manifest.read(at) if at.has(_manifest.NAME) else None
        except MithrilError as error:
            warnings.warn(f"nothing is removed from `{at}`: {error}", stacklevel=2)
            continue
        named = set() if manifest is None else {*manifest.files, _latest.mark_of(manifest.sequence), _PROBE}
        for file in leftovers:
            if file.directory != directory or file.name in named:
                continue
            path = f"{at}/{file.name}"
            if file.age is None or file.age < min_age:
                too_young.append(path)
                continue
            removed.append(path)
            removed_size += file.size
            if not dry_run:
                _remove(at, file.name)
        if not dry_run and directory and at.is_local and not os.listdir(at.text):
            os.rmdir(at.text)
    return Collected(removed, removed_size, too_young)


def _candidates(place: Place) -> list[_File]:
    found = []
    for key, size, age in place.storage.list(""):
        directory, _, name = key.rpartition("/")
        if "/" not in directory and _OURS.fullmatch(name):
            found.append(_File(directory, name, size, age))
    if place.is_local and os.path.isdir(place.text):
        directories = ["", *(entry.name for entry in os.scandir(place.text) if entry.is_dir(follow_symlinks=False))]
        for directory in directories:
            for entry in os.scandir(os.path.join(place.text, directory)):
                if _TEMPORARY.fullmatch(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    found.append(_File(directory, entry.name, status.st_size, time.time() - status.st_mtime))
    return found


def _remove(place: Place, name: str) -> None:
    if name.startswith("."):
        # The storage does not show them.
        os.unlink(os.path.join(place.text, name))
    else:
        place.storage.delete(name)
