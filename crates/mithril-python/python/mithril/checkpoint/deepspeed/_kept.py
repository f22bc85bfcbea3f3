"""What other tags are stored against is kept when its own tag is used again."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from mithril._mithril import MithrilError
from mithril.checkpoint import _manifest
from mithril.checkpoint._manifest import Manifest
from mithril.checkpoint._sync import sync


def dependants_of(directory: Path) -> list[tuple[Path, Manifest]]:
    """The finished checkpoints beside one that are stored against it."""
    target = directory.resolve()
    found = []
    for sibling in sorted(target.parent.iterdir()):
        if not (sibling / _manifest.NAME).is_file():
            continue
        try:
            manifest = _manifest.read(sibling)
        except MithrilError:
            continue
        if manifest.base is not None and (sibling / manifest.base).resolve() == target:
            found.append((sibling, manifest))
    return found


def keep(directory: Path) -> Path | None:
    """Keeps a checkpoint that is about to be written anew, under another name, if others beside it need it.

    Returns where it is: `TAG.base-GENERATION`, which may be removed with the last checkpoint that is stored against it. Both
    names are whole until the others point to the new one, so that an end at any moment loses nothing.
    """
    if not (directory / _manifest.NAME).is_file():
        return None
    try:
        manifest = _manifest.read(directory)
    except MithrilError:
        # Nobody can load what is stored against it either.
        return None
    dependants = [one for one in dependants_of(directory) if one[1].base_generation == manifest.generation]
    if not dependants:
        return None
    kept = directory.with_name(f"{directory.name}.base-{manifest.generation}")
    kept.mkdir(exist_ok=True)
    for name in manifest.files:
        _link(directory / name, kept / name)
    sync(kept)
    _manifest.write(kept, manifest, replace=True)
    for sibling, of_sibling in dependants:
        base = os.path.relpath(kept.resolve(), sibling.resolve())
        _manifest.write(sibling, replace(of_sibling, base=base), replace=True)
    return kept


def _link(source: Path, target: Path) -> None:
    """Gives a file a second name. Files are replaced and never changed, so that both may share their bytes."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        # A file system without links.
        shutil.copyfile(source, target)
        sync(target)
