"""What a checkpoint is stored against stays: who saves and who removes look at each other.

A save writes its manifest and then looks whether its base is marked, or gone. What removes or replaces a checkpoint marks it
and then looks whether a manifest names it as its base. Whichever comes second sees the other, so no checkpoint that was
acknowledged loses its base. If each sees the other, both give way.
"""

from __future__ import annotations

import contextlib

from mithril._mithril import ConflictError, MithrilError
from mithril.checkpoint import _manifest
from mithril.checkpoint._manifest import Manifest
from mithril.checkpoint._place import Place

MARK = "removing"
"""Name of the file that marks a checkpoint. It goes after the manifest, and so does everything else."""


def mark(place: Place) -> None:
    """Says that a checkpoint is about to be removed or replaced."""
    place.storage.replace(MARK, b"")


def unmark(place: Place) -> None:
    """Says that it stays, or is a new one now."""
    place.storage.delete(MARK)


def commit(place: Place, manifest: Manifest, *, replaced: Manifest | None = None) -> None:
    """Makes a checkpoint whole, if what it is stored against is there then; or else takes that back.

    `replaced` is the manifest whose place it takes.
    """
    _manifest.write(place, manifest, replace=replaced is not None)
    try:
        _check_base(place, manifest)
    except MithrilError:
        if replaced is None:
            place.storage.delete(_manifest.NAME)
        else:
            _manifest.write(place, replaced, replace=True)
        raise


def _check_base(place: Place, manifest: Manifest) -> None:
    if manifest.base is None:
        return
    base = place.join(manifest.base)
    # The mark first: it is the last to go.
    is_marked, generation = base.has(MARK), None
    with contextlib.suppress(MithrilError):
        generation = _manifest.read(base).generation
    if is_marked:
        raise ConflictError(
            f"`{base}` is being removed or replaced, and `{place}` would be stored against it: nothing is committed. If "
            f"that was killed, remove `{base}/{MARK}`"
        )
    if generation != manifest.base_generation:
        raise ConflictError(
            f"`{base}` was removed or replaced while `{place}` was saved against it: nothing is committed. Save it again"
        )
