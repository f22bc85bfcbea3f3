"""Whole files to containers and back, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mithril import _mithril
from mithril._files import named_if_there
from mithril._progress import callback
from mithril._types import Path, Progress
from mithril.model_delta import statistics

if TYPE_CHECKING:
    from typing_extensions import Buffer


def compress_bytes(
    blob: Buffer,
    *,
    level: int | None = None,
    threads: int = 0,
    workers: int | None = None,
    effort: str | None = None,
    base: Buffer | None = None,
) -> bytes:
    """Pack the bytes of a safetensors file; its header is kept as it is.

    Args:
        blob: the file.
        level, threads, effort: as in `mithril.compress`.
        workers: another name of `threads`.
        base: bytes of a model that tensors may be stored against.

    Raises:
        UnsupportedError: it is no model file of a known kind.
    """
    bases = [] if base is None else [base]
    return _mithril.pack_bytes(blob, bases, (level, _threads(threads, workers), effort, None))


def decompress_bytes(frame: Buffer, *, threads: int = 0, workers: int | None = None, base: Buffer | None = None) -> bytes:
    """Restore the bytes that `compress_bytes` was given."""
    return _mithril.unpack_bytes(frame, [] if base is None else [base], _threads(threads, workers))


def compress_file(
    in_path: Path,
    out_path: Path,
    *,
    level: int | None = None,
    threads: int = 0,
    workers: int | None = None,
    effort: str | None = None,
    base: Path | None = None,
    overwrite: bool = False,
    progress: Progress = None,
) -> dict[str, float]:
    """Pack a file. `out_path` appears whole or not at all.

    Memory does not grow with the file. `base` is a model that tensors may be stored against; `progress` is True for a bar,
    or a function of bytes that are done, all bytes and the tensor at work.

    Returns:
        `original` and `stored` bytes, their `ratio`, and the number of `tensors`.

    Raises:
        FileExistsError: `out_path` is there already, and `overwrite` does not say that it may be replaced.
    """
    coding = (level, _threads(threads, workers), effort, None)
    with callback(progress) as told, named_if_there(out_path):
        return statistics(_mithril.pack_file(in_path, out_path, _paths(base), coding, overwrite, told))


def decompress_file(
    in_path: Path,
    out_path: Path,
    *,
    threads: int = 0,
    workers: int | None = None,
    base: Path | None = None,
    overwrite: bool = False,
    progress: Progress = None,
) -> dict[str, float]:
    """Restore the file that `compress_file` was given, byte for byte. Without `base`, it is looked for beside the file.

    Raises:
        FileExistsError: `out_path` is there already, and `overwrite` does not say that it may be replaced.
    """
    with callback(progress) as told, named_if_there(out_path):
        number = _threads(threads, workers)
        return statistics(_mithril.unpack_file(in_path, out_path, _paths(base), number, overwrite, told))


def _paths(base: Path | None) -> list[Path]:
    return [] if base is None else [base]


def _threads(threads: int, workers: int | None) -> int:
    return threads if workers is None or threads else workers
