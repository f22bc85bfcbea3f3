"""Tensors of PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from mithril._mithril import UnsupportedError

_TYPES = {
    "BOOL": torch.bool,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}
if hasattr(torch, "float8_e8m0fnu"):
    # From torch 2.7 on.
    _TYPES["F8_E8M0"] = torch.float8_e8m0fnu
_NAMES = {theirs: ours for ours, theirs in _TYPES.items()}

FRAMEWORK = "torch"


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def borrow(tensor: Any) -> tuple[Any, str, tuple[int, ...]]:
    """The bytes of a tensor on the CPU. Copies only what is not contiguous."""
    if tensor.device.type == "meta":
        raise ValueError("the tensor is on device meta, and has no values: move it to the CPU first")
    if tensor.device.type != "cpu":
        tensor = tensor.to("cpu")
    if tensor.layout != torch.strided:
        raise TypeError(f"a tensor of layout {tensor.layout} is not one array of numbers")
    name = dtype_name(tensor.dtype)
    return memory(tensor.detach().resolve_conj().resolve_neg().contiguous()), name, tuple(tensor.shape)


def is_lent(tensor: Any) -> bool:
    """Whether `borrow` gives the tensor's own memory, and no copy."""
    return bool(tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def dtype_name(dtype: torch.dtype) -> str:
    """Our name of a type of torch."""
    name = _NAMES.get(dtype)
    if name is None:
        raise TypeError(f"torch's type {dtype} is none that mithril knows")
    return name


def dtype_of(name: str) -> torch.dtype:
    """torch's type for our name."""
    dtype = _TYPES.get(name)
    if dtype is None:
        raise UnsupportedError(f"torch has no type for {name}")
    return dtype


def empty(dtype: str, shape: tuple[int, ...], size: int) -> tuple[torch.Tensor, Any]:
    """A new tensor on the CPU and its memory."""
    tensor = torch.empty(shape, dtype=dtype_of(dtype), device="cpu")
    return tensor, memory(tensor)


def finish(filled: Any) -> Any:
    """The tensor is there already."""
    return filled


def memory(tensor: Any) -> Any:
    """The writable memory of a tensor on the CPU, which must be contiguous."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError("`out` must be a contiguous tensor on the CPU")
    if tensor.numel() == 0:
        return bytearray()
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def describe(tensor: Any) -> dict[str, Any]:
    """The device, and whether it is a parameter or wants gradients."""
    kept: dict[str, Any] = {}
    if tensor.device.type != "cpu":
        kept["device"] = str(tensor.device)
    if isinstance(tensor, torch.nn.Parameter):
        kept["parameter"] = True
    if tensor.requires_grad:
        kept["requires_grad"] = True
    return kept


def identity(tensor: Any) -> Any:
    """Equal for tensors of one storage."""
    if tensor.layout != torch.strided or tensor.device.type == "meta" or tensor.numel() == 0:
        return id(tensor)
    return "torch", str(tensor.device), tensor.untyped_storage().data_ptr()


def view_identity(tensor: Any) -> Any:
    """Equal for views of the same elements."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return id(tensor)
    return "torch", str(tensor.device), tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def together(tensors: list[Any]) -> tuple[torch.Tensor, list[dict[str, Any] | None]]:
    """The stretch of their storage that holds all of them, and where each lies in it."""
    first = tensors[0]
    place = first.data_ptr(), first.shape, first.stride(), first.dtype
    if first.is_contiguous() and all((t.data_ptr(), t.shape, t.stride(), t.dtype) == place for t in tensors):
        return first, [None] * len(tensors)
    if any(tensor.dtype != first.dtype for tensor in tensors):
        raise TypeError("tensors of several types share its memory")
    start = min(tensor.storage_offset() for tensor in tensors)
    stop = max(tensor.storage_offset() + _extent(tensor) for tensor in tensors)
    whole = first.detach().as_strided((stop - start,), (1,), start)
    views = [
        {"shape": list(tensor.shape), "stride": list(tensor.stride()), "offset": tensor.storage_offset() - start}
        for tensor in tensors
    ]
    return whole, list(views)


def _extent(tensor: Any) -> int:
    """Elements from its first to behind its last."""
    return int(1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)))


def place(tensor: Any, entry: dict[str, Any], map_location: Any) -> Any:
    """The tensor on the device that `map_location` says, as in `torch.load`; without one, where it was."""
    before = entry.get("device", "cpu")
    if callable(map_location):
        moved = map_location(tensor, before)
        return tensor if moved is None else moved
    if isinstance(map_location, dict):
        return tensor.to(map_location.get(before, before))
    return tensor.to(before if map_location is None else map_location)


def restore(tensor: Any, entry: dict[str, Any]) -> Any:
    """The view of its memory, and the parameter, that it was."""
    view = entry.get("view")
    if view is not None:
        tensor = tensor.reshape(-1).as_strided(view["shape"], view["stride"], view["offset"])
    wanted = bool(entry.get("requires_grad"))
    if entry.get("parameter"):
        return torch.nn.Parameter(tensor, requires_grad=wanted)
    return tensor.detach().requires_grad_() if wanted else tensor
