"""The calls of `safetensors.numpy`, on packed files: arrays of numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mithril.safetensors import _save

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Buffer

    from mithril._types import Path, Progress
    from mithril.safetensors._save import Metadata

__all__ = ["load", "load_file", "save", "save_file"]


def save(
    tensor_dict: Mapping[str, Any],
    metadata: Metadata = None,
    *,
    level: int | None = None,
    threads: int = 0,
    effort: str | None = None,
    base: Path | None = None,
) -> bytes:
    """Pack arrays to the bytes of a container, as `mithril.safetensors.save`; the package names its argument so here."""
    return _save.save(tensor_dict, metadata, level=level, threads=threads, effort=effort, base=base)


def save_file(
    tensor_dict: Mapping[str, Any],
    filename: Path,
    metadata: Metadata = None,
    *,
    level: int | None = None,
    threads: int = 0,
    effort: str | None = None,
    base: Path | None = None,
    progress: Progress = None,
) -> None:
    """Pack arrays to a file, as `mithril.safetensors.save_file`."""
    options: dict[str, Any] = {"level": level, "threads": threads, "effort": effort, "base": base, "progress": progress}
    _save.save_file(tensor_dict, filename, metadata, **options)


def load(data: Buffer, *, threads: int = 0) -> dict[str, Any]:
    """All tensors of the bytes of a packed or plain file, by name."""
    return _save.load(data, framework="np", threads=threads)


def load_file(filename: Path, *, backend: str = "mmap", base: Path | None = None, threads: int = 0) -> dict[str, Any]:
    """All tensors of a packed or plain file, by name."""
    return _save.load_file(filename, framework="np", backend=backend, base=base, threads=threads)
