"""`save`, `load` and `async_save` as torch has them, with mithril's storage; `latest`, and which checkpoints stay."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from mithril._mithril import MithrilError, NotFoundError
from mithril.checkpoint import _manifest
from mithril.checkpoint.torch._place import local_path
from mithril.checkpoint.torch._reader import MithrilStorageReader
from mithril.checkpoint.torch._writer import MithrilStorageWriter

PathLike = str | os.PathLike[str]
_LATEST = "latest"


def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: PathLike,
    base: PathLike | None = None,
    keep_last: int | None = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    **options: Any,
) -> Any:
    """`dcp.save` through `MithrilStorageWriter`, whose `options` are effort, level, threads, overwrite, step,
    max_since_whole.

    Afterwards the file `latest` beside the checkpoint names it. With `keep_last`, older checkpoints beside it are removed,
    except those that a kept one is stored against.
    """
    writer = MithrilStorageWriter(checkpoint_id, base=base, **options)
    metadata = dcp.save(state_dict, storage_writer=writer, planner=planner, process_group=process_group, no_dist=no_dist)
    _committed(writer.path, keep_last, process_group, no_dist)
    return metadata


def async_save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: PathLike,
    base: PathLike | None = None,
    keep_last: int | None = None,
    planner: Any = None,
    process_group: Any = None,
    options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Future[Any]:
    """`dcp.async_save` through `MithrilStorageWriter`. The future is done when the checkpoint is on disk.

    `options` are those of the writer; other arguments are torch's own. `latest` and old checkpoints are touched when the
    upload is done, by the thread that ends it.
    """
    writer = MithrilStorageWriter(checkpoint_id, base=base, **(options or {}))
    response = dcp.async_save(state_dict, storage_writer=writer, planner=planner, process_group=process_group, **kwargs)
    # Newer versions of torch tell staging and upload apart.
    upload = getattr(response, "upload_completion", response)
    done: Future[Any] = Future()

    def finish(finished: Any) -> None:
        try:
            result = finished.result()
            _move_latest(writer.path, keep_last, process_group, kwargs.get("no_dist", False))
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    upload.add_done_callback(finish)
    return done


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: PathLike,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    threads: int = 0,
    trusted: bool = False,
) -> None:
    """`dcp.load` through `MithrilStorageReader`: fills `state_dict` in place."""
    reader = MithrilStorageReader(checkpoint_id, threads=threads, trusted=trusted)
    dcp.load(state_dict, storage_reader=reader, planner=planner, process_group=process_group, no_dist=no_dist)


def latest(root: PathLike) -> Path:
    """The newest finished checkpoint below a directory.

    The file `latest` is looked at first; where it is missing or names none that is whole, the highest step that is.
    """
    directory = local_path(root)
    try:
        named = directory / (directory / _LATEST).read_text().strip()
        if named.parent == directory and (named / _manifest.NAME).is_file():
            return named
    except OSError:
        pass
    finished = _finished(directory)
    if not finished:
        raise NotFoundError(f"there is no finished checkpoint in `{directory}`")
    return finished[-1]


def _committed(path: Path, keep_last: int | None, process_group: Any, no_dist: bool) -> None:
    _move_latest(path, keep_last, process_group, no_dist)
    if not no_dist and dist.is_available() and dist.is_initialized():
        dist.barrier(process_group)


def _move_latest(path: Path, keep_last: int | None, process_group: Any, no_dist: bool) -> None:
    is_first = no_dist or not (dist.is_available() and dist.is_initialized()) or dist.get_rank(process_group) == 0
    if not is_first:
        return
    temporary = path.parent / f".{_LATEST}.{_manifest.new_generation()}"
    with open(temporary, "x") as file:
        file.write(path.name)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path.parent / _LATEST)
    _manifest.sync_directory(path.parent)
    if keep_last is not None:
        _remove_old(path, keep_last)


def _remove_old(path: Path, keep_last: int) -> None:
    if keep_last < 1:
        raise ValueError("`keep_last` is at least 1: the checkpoint that was just saved")
    finished = _finished(path.parent)
    needed = {path.resolve(), *(kept.resolve() for kept in finished[-keep_last:])}
    for checkpoint in list(needed):
        base = _manifest.read(checkpoint).base
        if base is not None:
            needed.add((checkpoint / base).resolve())
    for checkpoint in finished:
        if checkpoint.resolve() not in needed:
            # Without its manifest it is no checkpoint: whoever reads it now gets all or a clear error.
            (checkpoint / _manifest.NAME).unlink()
            shutil.rmtree(checkpoint)


def _finished(directory: Path) -> list[Path]:
    """Finished checkpoints, by step; without steps by name, with numbers in it by their value."""
    found = []
    for path in directory.iterdir() if directory.is_dir() else ():
        if (path / _manifest.NAME).is_file():
            try:
                step = _manifest.read(path).step
            except MithrilError:
                continue
            digits = "".join(c if c.isdigit() else " " for c in path.name).split()
            order = step if step is not None else int(digits[-1]) if digits else -1
            found.append((order, path.name, path))
    return [path for _, _, path in sorted(found)]
