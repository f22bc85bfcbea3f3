"""What a checkpoint is stored against stays: who saves and who removes look at each other.

A save writes its manifest and then looks whether its base is marked, or gone. What removes or replaces a checkpoint marks it
and then looks whether a manifest names it as its base. Whichever comes second sees the other, so no checkpoint that was
acknowledged loses its base. If each sees the other, both give way.
"""

from __future__ import annotations

import contextlib
import re
import secrets

from mithril._mithril import ConflictError, MithrilError, NotFoundError
from mithril.checkpoint import _manifest
from mithril.checkpoint._manifest import Manifest
from mithril.checkpoint._place import Place

MARK = re.compile("removing(-[0-9a-f]{32})?")
"""Names of the files that mark a checkpoint, each of one remover. Without digits it is one of an earlier version."""


def mark(place: Place) -> str:
    """Says that a checkpoint is about to be removed or replaced; returns the mark."""
    name = f"removing-{secrets.token_hex(16)}"
    place.storage.replace(name, b"")
    return name


def unmark(place: Place, name: str) -> None:
    """Says that it stays, or is a new one now. Marks of others stay: they may be at work."""
    place.storage.delete(name)


def commit(place: Place, manifest: Manifest, *, replaced: Manifest | None = None) -> None:
    """Makes a checkpoint whole, if what it is stored against is there then; or else takes that back.

    `replaced` is the manifest whose place it takes. The containers of what is taken back are left to `clean`.
    """
    _manifest.write(place, manifest, replace=replaced is not None)
    try:
        _check_base(place, manifest)
    except (MithrilError, OSError):
        _withdraw(place, manifest, replaced)
        raise


def _withdraw(place: Place, manifest: Manifest, replaced: Manifest | None) -> None:
    """Takes a manifest back, unless another process, which has seen it, has removed or replaced it meanwhile."""
    try:
        is_there = _manifest.read(place).generation == manifest.generation
    except NotFoundError:
        is_there = False
    if not is_there:
        return
    if replaced is None:
        place.storage.delete(_manifest.NAME)
    else:
        _manifest.write(place, replaced, replace=True)


def _check_base(place: Place, manifest: Manifest) -> None:
    if manifest.base is None:
        return
    base = place.join(manifest.base)
    # The mark first: it is the last to go.
    marks = [name for name, _, _ in base.storage.list("") if MARK.fullmatch(name)]
    generation = None
    with contextlib.suppress(MithrilError):
        generation = _manifest.read(base).generation
    if marks:
        raise ConflictError(
            f"`{base}` is being removed or replaced, and `{place}` would be stored against it: nothing is committed. If "
            f"that was killed, remove `{base}/{marks[0]}`"
        )
    if generation != manifest.base_generation:
        raise ConflictError(
            f"`{base}` was removed or replaced while `{place}` was saved against it: nothing is committed. Save it again"
        )
