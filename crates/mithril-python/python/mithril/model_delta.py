"""Whole model files as what changed since a base model, tensor by tensor.

Tensors are matched by name, or by content where they were renamed: equal ones take no space, changed ones are stored as a
delta, new ones as they are. The original comes back byte for byte, given the same base.

>>> import numpy as np
>>> from mithril import model_delta
>>> from safetensors.numpy import save
>>> weights = np.linspace(-1, 1, 10_000, dtype=np.float32)
>>> base, tuned = save({"w": weights, "b": weights}), save({"w": weights * 1.0001, "b": weights})
>>> blob = model_delta.compress(tuned, base)
>>> len(blob) < len(tuned) / 2, model_delta.decompress(blob, base) == tuned
(True, True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mithril import _mithril
from mithril._files import named_if_there
from mithril._progress import callback
from mithril._types import Path, Progress

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["compress", "compress_file", "decompress", "decompress_file", "is_model_delta"]


def compress(target: Buffer, base: Buffer, *, level: int | None = None, threads: int = 0, effort: str | None = None) -> bytes:
    """Pack the bytes of a model file against those of its base; both packed or plain.

    Args:
        target: bytes of a safetensors file, or of another kind that mithril knows.
        base: bytes of the file it was made from.
        level, threads, effort: as in `mithril.compress`.

    Raises:
        UnsupportedError: one of them is no model file of a known kind.
    """
    return _mithril.pack_bytes(target, [base], (level, threads, effort, None))


def decompress(blob: Buffer, base: Buffer, *, threads: int = 0) -> bytes:
    """Restore the file that `compress` was given, byte for byte.

    Raises:
        BaseMismatchError: the base is another one. The tensor is named.
    """
    return _mithril.unpack_bytes(blob, [base], threads)


def compress_file(
    target_path: Path,
    base_path: Path,
    out_path: Path,
    *,
    level: int | None = None,
    threads: int = 0,
    effort: str | None = None,
    overwrite: bool = False,
    progress: Progress = None,
) -> dict[str, float]:
    """Pack a model file against its base. `out_path` appears whole or not at all.

    Returns:
        `original` and `stored` bytes, their `ratio`, and the number of `tensors`.

    Raises:
        FileExistsError: `out_path` is there already, and `overwrite` does not say that it may be replaced.
    """
    with callback(progress) as told, named_if_there(out_path):
        sizes = _mithril.pack_file(target_path, out_path, [base_path], (level, threads, effort, None), overwrite, told)
    return statistics(sizes)


def decompress_file(
    delta_path: Path,
    base_path: Path,
    out_path: Path,
    *,
    threads: int = 0,
    overwrite: bool = False,
    progress: Progress = None,
) -> dict[str, float]:
    """Restore the file that `compress_file` was given, with the same base; the inverse of it."""
    with callback(progress) as told, named_if_there(out_path):
        return statistics(_mithril.unpack_file(delta_path, out_path, [base_path], threads, overwrite, told))


def is_model_delta(blob: Buffer) -> bool:
    """Tell whether bytes are a container that was made against a base."""
    if _mithril.magic(blob) != "container":
        return False
    return bool(_mithril.Model.from_bytes(blob, []).base_names())


def statistics(sizes: tuple[int, int, int]) -> dict[str, float]:
    """What functions on files return."""
    original, stored, tensors = sizes
    return {"original": original, "stored": stored, "ratio": original / max(stored, 1), "tensors": tensors}
