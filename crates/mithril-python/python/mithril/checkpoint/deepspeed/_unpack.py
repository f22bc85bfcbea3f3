"""Compressed checkpoints as plain files, for tools that read those themselves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from mithril._mithril import ConflictError, NotFoundError, OutputDirectory, OutputFile
from mithril.checkpoint import _manifest
from mithril.checkpoint.deepspeed import _file, _kept
from mithril.checkpoint.deepspeed._engine import load_file


def unpack(
    directory: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    threads: int = 0,
    done: Callable[[Path, int, int], None] | None = None,
) -> list[Path]:
    """Makes every file of a checkpoint (the directory of a tag) one that `torch.load` reads.

    Without `output` the files are replaced, one by one, so that an end in between leaves some of each kind, which can all
    be loaded; with it everything is written to that directory, which must not exist, and the checkpoint stays as it is.
    Objects in the files are unpickled, as DeepSpeed does when it loads a checkpoint.

    Returns the files that were unpacked; `done` is called with each, its bytes before and after.
    """
    source = Path(directory)
    if not source.is_dir():
        raise NotFoundError(f"there is no directory `{source}`")
    files = sorted(path for path in source.iterdir() if path.is_file())
    packed = [path for path in files if path.name != _manifest.NAME and _file.is_ours(path)]
    if not packed:
        raise NotFoundError(f"`{source}` holds no file that mithril has compressed")
    if output is None:
        _refuse_base(source)
        written = _unpacked(packed, source, source, threads, done)
        (source / _manifest.NAME).unlink()
        return written
    target = Path(output)
    if target.exists():
        raise ConflictError(f"`{target}` exists already")
    with OutputDirectory(target, source) as temporary:
        for path in source.iterdir():
            if path.is_dir():
                shutil.copytree(path, temporary / path.name)
            elif path not in packed and path.name != _manifest.NAME:
                shutil.copy2(path, temporary / path.name)
        return _unpacked(packed, temporary, target, threads, done)


def _unpacked(
    packed: list[Path], directory: Path, target: Path, threads: int, done: Callable[[Path, int, int], None] | None
) -> list[Path]:
    """Writes the plain files to a directory that is `target`, or will be."""
    written = []
    for path in packed:
        before = path.stat().st_size
        state = load_file(path, map_location="cpu", threads=threads)
        plain = directory / path.name
        with OutputFile(plain, True, path) as file:
            torch.save(state, file)
        written.append(target / path.name)
        if done is not None:
            done(target / path.name, before, plain.stat().st_size)
    return written


def _refuse_base(source: Path) -> None:
    """Other checkpoints may be stored against this one."""
    for sibling, _ in _kept.dependants_of(source):
        raise ConflictError(f"`{sibling}` is stored against `{source}` and needs it as it is: give an output directory")
