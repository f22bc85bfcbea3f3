"""`save`, `load` and `async_save` as torch has them, with mithril's storage."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import staging
from torch.distributed.checkpoint.stateful import Stateful

from mithril._mithril import UnsupportedError
from mithril.checkpoint.torch import _latest
from mithril.checkpoint.torch._reader import MithrilStorageReader
from mithril.checkpoint.torch._writer import MithrilStorageWriter

PathLike = str | os.PathLike[str]

# What the writer takes beside the place and the base; everything else is an argument of torch's.
_OF_WRITER = ("effort", "level", "threads", "overwrite", "step", "max_since_whole")


class SaveFuture(Future[Any]):
    """A save in the background: done when the checkpoint is safe, `latest` names it and old ones are removed.

    `staging_completion` is done when the state may be changed again. Unless an `async_stager` of your own is given, that
    is so when `async_save` returns.
    """

    def __init__(self, staging_completion: Future[Any] | None) -> None:
        super().__init__()
        if staging_completion is None:
            staging_completion = Future()
            staging_completion.set_result(None)
        self.staging_completion = staging_completion

    @property
    def upload_completion(self) -> Future[Any]:
        """Itself: torch calls it so where staging goes on in the background."""
        return self


def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: PathLike,
    base: PathLike | None = None,
    keep_last: int | None = None,
    process_group: Any = None,
    no_dist: bool = False,
    **options: Any,
) -> Any:
    """`dcp.save` through `MithrilStorageWriter`.

    `options` are those of the writer (effort, level, threads, overwrite, step, max_since_whole) and of `dcp.save`
    (planner and so on). Afterwards the file `latest` beside the checkpoint names it. With `keep_last`, older checkpoints
    beside it are removed, except those that a kept one is stored against.
    """
    _latest.check_keep_last(keep_last)
    writer, torchs = _writer(checkpoint_id, base, options)
    torchs |= alone(dcp.save, no_dist)
    is_first, root = _is_first(process_group, no_dist), writer.path.parent
    if is_first:
        writer.draw_sequence(root)
    metadata = dcp.save(state_dict, storage_writer=writer, process_group=process_group, **torchs)
    if is_first:
        _latest.move(writer.path, keep_last, writer.sequence)
    if not no_dist and _is_distributed():
        dist.barrier(process_group)
    return metadata


def async_save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: PathLike,
    base: PathLike | None = None,
    keep_last: int | None = None,
    process_group: Any = None,
    no_dist: bool = False,
    **options: Any,
) -> SaveFuture:
    """`dcp.async_save` through `MithrilStorageWriter`, with the arguments of `save` and those of `dcp.async_save`.

    `latest` and old checkpoints are touched when the upload is done, by the thread that ends it.

    Ranks talk to each other meanwhile. Where training talks by the same process group, as it does with gloo on the CPU,
    give the save one of its own: `process_group=torch.distributed.new_group(backend="gloo")`, made once.
    """
    _latest.check_keep_last(keep_last)
    writer, torchs = _writer(checkpoint_id, base, options)
    torchs |= alone(dcp.async_save, no_dist)
    # Asked now: there may be no process group any more when the upload ends.
    is_first, root = _is_first(process_group, no_dist), writer.path.parent
    if is_first:
        writer.draw_sequence(root)
    if not hasattr(staging, "DefaultStager"):
        # Older versions of torch copy what is on other devices, and lend the rest to the thread that saves.
        state_dict = _copied(state_dict)
    response = dcp.async_save(state_dict, storage_writer=writer, process_group=process_group, **torchs)
    # Newer versions of torch tell staging and upload apart.
    upload = getattr(response, "upload_completion", response)
    done = SaveFuture(getattr(response, "staging_completion", None))

    def finish(finished: Any) -> None:
        try:
            result = finished.result()
            if is_first:
                _latest.move(writer.path, keep_last, writer.sequence)
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
    threads: int = 0,
    trusted: bool = False,
    no_dist: bool = False,
    **options: Any,
) -> None:
    """`dcp.load` through `MithrilStorageReader`: fills `state_dict` in place. `options` are those of `dcp.load`."""
    reader = MithrilStorageReader(checkpoint_id, threads=threads, trusted=trusted)
    dcp.load(state_dict, storage_reader=reader, **alone(dcp.load, no_dist), **options)


def alone(function: Callable[..., Any], no_dist: bool) -> dict[str, Any]:
    """The argument `no_dist` of a function of torch, if it is wanted and there is one.

    Versions without it look for themselves whether there is a process group.
    """
    if not no_dist:
        return {}
    if "no_dist" in inspect.signature(function).parameters:
        return {"no_dist": True}
    if _is_distributed():
        raise UnsupportedError("this version of torch has no `no_dist` here, and with a process group all ranks take part")
    return {}


def _copied(value: Any) -> Any:
    """The state as it is now, with tensors of the CPU in memory of their own."""
    if isinstance(value, Stateful) and not isinstance(value, torch.Tensor):
        value = value.state_dict()
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.device.type == "cpu" else value
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return value


def _writer(
    checkpoint_id: PathLike, base: PathLike | None, options: dict[str, Any]
) -> tuple[MithrilStorageWriter, dict[str, Any]]:
    ours = {name: value for name, value in options.items() if name in _OF_WRITER}
    torchs = {name: value for name, value in options.items() if name not in _OF_WRITER}
    return MithrilStorageWriter(checkpoint_id, base=base, **ours), torchs


def _is_distributed() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def _is_first(process_group: Any, no_dist: bool) -> bool:
    return no_dist or not _is_distributed() or bool(dist.get_rank(process_group) == 0)
