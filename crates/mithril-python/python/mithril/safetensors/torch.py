"""The calls of `safetensors.torch`, on packed files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch

from mithril.safetensors import _save

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from mithril._types import Path, Progress
    from mithril.safetensors._save import Metadata

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def save(
    tensors: Mapping[str, torch.Tensor],
    metadata: Metadata = None,
    *,
    level: int | None = None,
    threads: int = 0,
    effort: str | None = None,
    base: Path | None = None,
) -> bytes:
    """Pack tensors to bytes. Refuses what `safetensors.torch` refuses: shared, strided and sparse tensors."""
    checked = _checked(tensors)
    return _save.save(checked, metadata, level=level, threads=threads, effort=effort, base=base)


def save_file(
    tensors: Mapping[str, torch.Tensor],
    filename: Path,
    metadata: Metadata = None,
    *,
    level: int | None = None,
    threads: int = 0,
    effort: str | None = None,
    base: Path | None = None,
    progress: Progress = None,
) -> None:
    """Pack tensors to a file. Refuses what `save` refuses."""
    checked = _checked(tensors)
    _save.save_file(checked, filename, metadata, level=level, threads=threads, effort=effort, base=base, progress=progress)


def load(data: Buffer, *, threads: int = 0) -> dict[str, torch.Tensor]:
    """All tensors of the bytes of a packed or plain file, by name."""
    return _save.load(data, framework="pt", threads=threads)


def load_file(
    filename: Path, device: Any = "cpu", *, backend: str = "mmap", base: Path | None = None, threads: int = 0
) -> dict[str, torch.Tensor]:
    """All tensors of a packed or plain file, by name, on a device."""
    return _save.load_file(filename, device, framework="pt", backend=backend, base=base, threads=threads)


def save_model(
    model: torch.nn.Module, filename: Path, metadata: Metadata = None, force_contiguous: bool = True, **options: Any
) -> None:
    """Pack the weights of a module. Of tensors that share memory one is kept, and the metadata name it under the others.

    An entry of `metadata` that has the name of such a tensor stays as it is.
    """
    state = model.state_dict()
    for kept, dropped in _duplicates(state).items():
        for name in dropped:
            metadata = {name: kept, **(metadata or {})}
            del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(state, filename, metadata, **options)


def load_model(
    model: torch.nn.Module, filename: Path, strict: bool = True, device: Any = "cpu", *, backend: str = "mmap"
) -> tuple[list[str], list[str]]:
    """Load weights into a module; returns names that were missing and names that were not expected.

    Of tensors that share memory in the module the file has one, whichever that is. A second one is not expected: both are
    written to the same memory, and one of them would be lost.

    Raises:
        RuntimeError: with `strict`, names are missing or not expected.
    """
    state = load_file(filename, device, backend=backend)
    tied = _duplicates(model.state_dict(), preferred=state.keys())
    missing, unexpected = model.load_state_dict(state, strict=False)
    for name in (name for dropped in tied.values() for name in dropped):
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                quoted = ", ".join(f'"{name}"' for name in sorted(names))
                lines.append(f"    {what} key(s) in state_dict: {quoted}")
        raise RuntimeError("\n".join(lines))
    return missing, unexpected


def _checked(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if not isinstance(tensors, Mapping):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
        if tensor.layout != torch.strided:
            raise ValueError(f"`{name}` is a sparse tensor: make it dense with `.to_dense()` before saving")
    for names in _sharing(tensors):
        if len(names) > 1:
            raise RuntimeError(f"tensors {sorted(names)} share memory, and would not when loaded: see `save_model`")
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"`{name}` is not contiguous: call `.contiguous()` on it before saving")
    return {name: tensor.detach().to("cpu") for name, tensor in tensors.items()}


def _sharing(tensors: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """Names of tensors whose bytes overlap, group by group."""
    by_storage: dict[Any, list[tuple[int, int, str]]] = defaultdict(list)
    for name, tensor in tensors.items():
        if tensor.device.type == "meta" or tensor.numel() == 0:
            continue
        start = tensor.data_ptr()
        extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        storage = (tensor.device, tensor.untyped_storage().data_ptr())
        by_storage[storage].append((start, start + extent * tensor.element_size(), name))
    groups = []
    for places in by_storage.values():
        end = -1
        for start, stop, name in sorted(places):
            if start >= end:
                groups.append({name})
            else:
                groups[-1].add(name)
            end = max(end, stop)
    return groups


def _duplicates(state: Mapping[str, torch.Tensor], preferred: Collection[str] = ()) -> dict[str, list[str]]:
    """Of tensors that share memory, one that holds it all, and the others: a preferred one if there is one."""
    duplicates = {}
    for names in _sharing(state):
        if len(names) > 1:
            whole = [name for name in sorted(names) if _is_whole(state[name])]
            if not whole:
                raise RuntimeError(f"none of {sorted(names)}, which share memory, holds all of it")
            kept = next((name for name in whole if name in preferred), whole[0])
            duplicates[kept] = sorted(names - {kept})
    return duplicates


def _is_whole(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    size = tensor.numel() * tensor.element_size()
    return bool(tensor.data_ptr() == storage.data_ptr() and size == storage.nbytes())
