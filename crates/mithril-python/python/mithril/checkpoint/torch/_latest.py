"""Which checkpoint of a run is the newest, and which are removed."""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from pathlib import Path

from mithril._mithril import MithrilError, NotFoundError
from mithril.checkpoint import _manifest
from mithril.checkpoint._place import Place

PathLike = str | os.PathLike[str]
_LATEST = "latest"

_turns = itertools.count()
_moved: dict[Place, int] = {}
_moving = threading.Lock()


def latest(root: PathLike) -> Path | str:
    """The newest finished checkpoint in a directory, or its URL in an object store.

    The file `latest` is looked at first; where it is missing or names none that is whole, the highest step that is.
    """
    directory = Place(root)
    try:
        name = directory.storage.get(_LATEST, 4096).decode().strip()
        named = directory.join(name) if name and name not in (".", "..") and "/" not in name else None
        if named is not None and named.has(_manifest.NAME):
            return _given_back(named)
    except (MithrilError, OSError, ValueError):
        pass
    checkpoints, _ = finished(directory)
    if not checkpoints:
        raise NotFoundError(f"there is no finished checkpoint in `{directory}`")
    return _given_back(checkpoints[-1])


def _given_back(place: Place) -> Path | str:
    return Path(place.text) if place.is_local else place.text


def next_turn() -> int:
    """A number for a save that starts now: of those that end in another order, the last one started stays `latest`."""
    return next(_turns)


def move(place: Place, keep_last: int | None, turn: int | None = None) -> None:
    """Makes a finished checkpoint the latest, and removes old ones."""
    turn = next_turn() if turn is None else turn
    root = place.parent
    with _moving:
        if turn > _moved.get(root, -1):
            root.storage.replace(_LATEST, place.name.encode())
            _moved[root] = turn
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
    needed = {place, *checkpoints[-keep_last:]}
    bases = {checkpoint: _base_of(checkpoint) for checkpoint in {place, *checkpoints}}
    needed |= {base for checkpoint in needed if (base := bases[checkpoint]) is not None}
    old = [checkpoint for checkpoint in checkpoints if checkpoint not in needed]
    # Bases last: whoever is killed in between leaves no checkpoint without the one that it is stored against.
    for checkpoint in sorted(old, key=lambda checkpoint: checkpoint in bases.values()):
        # Without its manifest it is no checkpoint: whoever reads it now gets all or a clear error.
        checkpoint.remove(first=_manifest.NAME)


def _base_of(checkpoint: Place) -> Place | None:
    try:
        base = _manifest.read(checkpoint).base
    except NotFoundError:
        # Removed meanwhile.
        return None
    return None if base is None else checkpoint.join(base)


def finished(directory: Place) -> tuple[list[Place], list[Place]]:
    """Finished checkpoints, by step; without steps by name, with numbers in it by their value. Then unreadable ones."""
    found, unreadable = [], []
    for place in directory.children(_manifest.NAME):
        try:
            step = _manifest.read(place).step
        except NotFoundError:
            # Removed meanwhile.
            continue
        except MithrilError:
            unreadable.append(place)
            continue
        digits = "".join(c if c.isdigit() else " " for c in place.name).split()
        order = step if step is not None else int(digits[-1]) if digits else -1
        found.append((order, place.name, place))
    return [place for _, _, place in sorted(found, key=lambda entry: entry[:2])], unreadable
