"""Which checkpoint of a run is the newest, and which are removed."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mithril._mithril import CorruptError, MithrilError, NotFoundError, StorageError, UnsupportedError
from mithril.checkpoint import _claims, _manifest
from mithril.checkpoint._place import Place

PathLike = str | os.PathLike[str]
_LATEST = "latest"

# The highest sequence number that this process has given to a save, or seen, of each root; and which `latest` names.
_given: dict[Place, int] = {}
_moved: dict[Place, int] = {}
_moving = threading.Lock()


# The number of a save in the name of an empty file beside its manifest, so that a list of names tells which is newest.
_MARK = re.compile(r"sequence-(\d{1,18})")


class _Finished(NamedTuple):
    place: Place
    sequence: int
    order: int
    """The step; of checkpoints without one, the last number in the name."""
    base: Place | None
    """What it is stored against."""
    generation: str


def latest(root: PathLike) -> Path | str:
    """The newest finished checkpoint in a directory, or its URL in an object store.

    The save that began last is the newest, by the number that its manifest has. So a checkpoint is found that was finished
    when its process was killed, before it could move the file `latest`. Of checkpoints without such a number it is the one
    that the file names, or else the highest step.

    Names tell which may be the newest, and only those manifests are read, and that of the one that the file names; all of
    checkpoints of earlier versions, whose names do not tell.
    """
    directory = Place(root)
    named = _named(directory)
    found, unreadable = _newest(directory, named)
    if named is not None and named in unreadable:
        # Loading says what is wrong with it.
        return _given_back(named)
    if not found:
        raise NotFoundError(f"there is no finished checkpoint in `{directory}`")
    if unreadable:
        warnings.warn(f"`{unreadable[0]}` cannot be read and is passed over", stacklevel=2)
    newest = max(found, key=lambda one: (one.sequence, one.place == named, one.order, one.place.name))
    _given[directory] = max(newest.sequence, _given.get(directory, 0))
    return _given_back(newest.place)


def mark_of(sequence: int) -> str:
    """The name that tells the number of a save."""
    return f"sequence-{sequence:09}"


def mark(place: Place, sequence: int) -> None:
    """Tells by a name which save this is. Before its manifest is written, so that none is newer than it is said to be."""
    place.storage.replace(mark_of(sequence), b"")


def unmark(place: Place, sequence: int) -> None:
    """Removes the names of saves that this one has replaced."""
    for key, _, _ in place.storage.list(""):
        if _MARK.fullmatch(key) and key != mark_of(sequence):
            place.storage.delete(key)


def _newest(directory: Place, named: Place | None) -> tuple[list[_Finished], list[Place]]:
    """Finished checkpoints of which one is the newest, and those that may be and cannot be read."""
    marked = [(_highest_mark(names), place) for place, names in directory.children(_manifest.NAME)]
    # The one that is named was moved there last, and may have been written anew by a version without marks.
    found, unreadable = _look([place for number, place in marked if number is None or place == named])
    numbered = [(number, place) for number, place in marked if number is not None and place != named]
    for number, place in sorted(numbered, key=lambda one: (one[0], one[1].name), reverse=True):
        # A save is never newer than its mark says, but one that was killed may have left a higher mark.
        if any(one.sequence > number for one in found):
            break
        one, wrong = _look([place])
        found += one
        unreadable += wrong
    return found, unreadable


def _highest_mark(names: Iterable[str]) -> int | None:
    numbers = (_MARK.fullmatch(name) for name in names)
    return max((int(number[1]) for number in numbers if number is not None), default=None)


def _named(directory: Place) -> Place | None:
    """What the file `latest` names, if that is there."""
    if directory.is_local and not os.path.isfile(os.path.join(directory.text, _LATEST)):
        # A checkpoint may have that name.
        return None
    try:
        name = directory.storage.get(_LATEST, 4096).decode().strip()
    except StorageError:
        # There may be one.
        raise
    except (MithrilError, ValueError):
        return None
    named = directory.join(name) if name and name not in (".", "..") and "/" not in name else None
    return named if named is not None and named.has(_manifest.NAME) else None


def _given_back(place: Place) -> Path | str:
    return Path(place.text) if place.is_local else place.text


def next_sequence(root: Place) -> int:
    """A number for a save that starts now, higher than that of the latest checkpoint and of saves under way."""
    with _moving:
        known = _given.get(root)
        _given[root] = 1 + (_highest(root) if known is None else known)
        return _given[root]


def _highest(root: Place) -> int:
    """The number of the checkpoint that `latest` names, which is enough; or else the highest there is."""
    named = _named(root)
    if named is not None:
        with contextlib.suppress(NotFoundError, CorruptError, UnsupportedError):
            return _manifest.read(named).sequence
    return max((one.sequence for one in _newest(root, named)[0]), default=0)


def move(place: Place, keep_last: int | None, sequence: int) -> None:
    """Makes a finished checkpoint the latest, unless a save that started later is, and removes old ones."""
    root = place.parent
    with _moving:
        if sequence > _moved.get(root, 0):
            root.storage.replace(_LATEST, place.name.encode())
            _moved[root] = sequence
        if keep_last is not None:
            _remove_old(place, keep_last)


def check_keep_last(keep_last: int | None) -> None:
    """Refuses to keep nothing before anything is saved."""
    if keep_last is not None and keep_last < 1:
        raise ValueError("`keep_last` is at least 1: the checkpoint that was just saved")


def _remove_old(place: Place, keep_last: int) -> None:
    checkpoints, unreadable = finished(place.parent)
    if unreadable:
        # They may be stored against any of the others.
        warnings.warn(f"nothing is removed, as `{unreadable[0]}` cannot be read", stacklevel=4)
        return
    needed = {place, *(one.place for one in checkpoints[-keep_last:])}
    needed |= {one.base for one in checkpoints if one.place in needed and one.base is not None}
    old = {one.place: one.generation for one in checkpoints if one.place not in needed}
    marks = {checkpoint: _claims.mark(checkpoint) for checkpoint in old}
    # A save that was under way may have been stored against one of them since.
    checkpoints, unreadable = finished(place.parent)
    bases = {one.base for one in checkpoints}
    # Nor does one go that another process has removed meanwhile, and perhaps saves anew.
    claimed = old.keys() - {one.place for one in checkpoints if old.get(one.place) == one.generation}
    staying = [one for one in checkpoints if one.place not in old or one.place in claimed]
    claimed |= {one.base for one in staying if one.base is not None}
    # Bases last: one that is killed in between leaves no checkpoint without the one that it is stored against.
    for checkpoint in sorted(old, key=lambda checkpoint: checkpoint in bases):
        if unreadable or checkpoint in claimed:
            _claims.unmark(checkpoint, marks[checkpoint])
        else:
            # Without its manifest it is no checkpoint: a reader gets all of it or a clear error.
            checkpoint.remove(first=_manifest.NAME)


def finished(directory: Place) -> tuple[list[_Finished], list[Place]]:
    """Finished checkpoints, by step; without steps by name, with numbers in it by their value. Then unreadable ones."""
    found, unreadable = _look([place for place, _ in directory.children(_manifest.NAME)])
    return sorted(found, key=lambda one: (one.order, one.place.name)), unreadable


def _look(places: list[Place]) -> tuple[list[_Finished], list[Place]]:
    found, unreadable = [], []
    for place in places:
        try:
            manifest = _manifest.read(place)
            base = None if manifest.base is None else place.join(manifest.base)
        except NotFoundError:
            # Removed meanwhile.
            continue
        except MithrilError:
            unreadable.append(place)
            continue
        digits = "".join(c if c.isdigit() else " " for c in place.name).split()
        order = manifest.step if manifest.step is not None else int(digits[-1]) if digits else -1
        found.append(_Finished(place, manifest.sequence, order, base, manifest.generation))
    return found, unreadable
