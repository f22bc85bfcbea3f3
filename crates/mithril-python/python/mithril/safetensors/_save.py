"""Saving and loading whole dictionaries of tensors, of any framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union

from mithril import _adapters, _mithril
from mithril._progress import callback
from mithril._types import Path, Progress
from mithril.safetensors._open import _FRAMEWORKS, safe_open
from mithril.safetensors._reader import read_tensor

if TYPE_CHECKING:
    from typing_extensions import Buffer

Metadata = Union[dict[str, str], None]


def save(
    tensors: Mapping[str, Any],
    metadata: Metadata = None,
    *,
    level: int | None = None,
    threads: int = 0,
    effort: str | None = None,
    base: Path | None = None,
) -> bytes:
    """Pack tensors to the bytes of a container; `decompress_bytes` makes the safetensors file of them.

    Args:
        tensors: arrays of numpy, torch, jax or mlx by name. What is not contiguous is copied.
        metadata: texts that the file carries.
        level, threads, effort: as in `mithril.compress`.
        base: a model that tensors may be stored against.
    """
    coding = (level, threads, effort, None)
    packed = _mithril.pack_tensors(_listed(tensors), _texts(metadata), None, _paths(base), coding, None)
    if packed is None:
        raise AssertionError("packing without a file gives bytes")
    return packed


def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Metadata = None,
    *,
    level: int | None = None,
    threads: int = 0,
    effort: str | None = None,
    base: Path | None = None,
    progress: Progress = None,
) -> None:
    """Pack tensors to a file, which appears whole or not at all and replaces what was there. Arguments as in `save`.

    `progress` is True for a bar, or a function of bytes that are done, all bytes and the tensor at work.
    """
    coding = (level, threads, effort, None)
    with callback(progress) as told:
        _mithril.pack_tensors(_listed(tensors), _texts(metadata), filename, _paths(base), coding, told)


def load(data: Buffer, *, framework: str = "np", base: Buffer | None = None, threads: int = 0) -> dict[str, Any]:
    """All tensors of the bytes of a packed or plain file, by name."""
    if isinstance(data, str):
        raise TypeError("data is bytes, not str")
    model = _mithril.Model.from_bytes(data, [] if base is None else [base])
    adapter = _adapters.named(_FRAMEWORKS[framework])
    return {name: read_tensor(model, name, adapter, threads) for name in model.names()}


def load_file(
    filename: Path,
    device: Any = "cpu",
    *,
    framework: str = "np",
    backend: str = "mmap",
    base: Path | None = None,
    threads: int = 0,
) -> dict[str, Any]:
    """All tensors of a packed or plain file, by name. Arguments as in `safe_open`."""
    with safe_open(filename, framework, device, backend=backend, base=base, threads=threads) as file:
        return file.get_tensors()


def _listed(tensors: Mapping[str, Any]) -> list[tuple[str, str, tuple[int, ...], Any]]:
    listed = []
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"names of tensors are texts, not {type(name).__name__}")
        adapter = _adapters.of(tensor)
        if adapter is None:
            raise TypeError(f"`{name}` is no array of a framework but {type(tensor).__name__}")
        data, dtype, shape = adapter.borrow(tensor)
        listed.append((name, dtype, shape, data))
    return listed


def _texts(metadata: Metadata) -> dict[str, str] | None:
    if metadata is None:
        return None
    for key, text in metadata.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"metadata are texts, not {type(text).__name__}")
    return dict(metadata)


def _paths(base: Path | None) -> list[Path]:
    return [] if base is None else [base]
