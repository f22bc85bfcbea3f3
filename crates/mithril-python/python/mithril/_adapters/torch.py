"""Tensors of PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from mithril._adapters import refuse
from mithril._adapters._dtypes import TABLE, stored_as
from mithril._mithril import UnsupportedError

# Versions of torch differ in which types they have.
_TYPES = {names.ours: getattr(torch, names.torch) for names in TABLE if names.torch is not None and hasattr(torch, names.torch)}
_NAMES = {theirs: ours for ours, theirs in _TYPES.items()}

FRAMEWORK = "torch"


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def refusal(value: Any) -> str | None:
    """Why a value is more than its numbers: tensors that are not dense, and all subclasses but parameters."""
    if value.is_nested:
        return "it is nested; store its parts, which `unbind()` gives"
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        if hasattr(value, "full_tensor"):
            return "processes share it; save it by mithril.checkpoint.torch, or store its `full_tensor()`"
        return "what it is beside its numbers would be lost; store it `as_subclass(torch.Tensor)`, or what it is made of"
    if value.layout != torch.strided:
        return f"its layout is {value.layout}; store its `to_dense()`, or its indices and values"
    if value.is_quantized:
        return "it is quantized; store its `int_repr()`, and its scale and zero point beside it"
    # Torch has had names up to some version.
    if getattr(value, "has_names", bool)():
        return "its names would be lost; store its `rename(None)`, and its names beside it"
    return None


def borrow(tensor: Any) -> tuple[Any, str, tuple[int, ...]]:
    """The bytes of a tensor on the CPU. Copies only what is not contiguous."""
    refuse(tensor, refusal(tensor))
    if tensor.device.type == "meta":
        raise ValueError("the tensor is on device meta, and has no values: move it to the CPU first")
    if tensor.device.type != "cpu":
        tensor = tensor.to("cpu")
    name = dtype_name(tensor.dtype)
    return memory(_plain(tensor)), name, unpacked(name, tuple(tensor.shape))


def borrow_chunk(tensor: Any) -> tuple[Any, str, tuple[int, ...]]:
    """As `borrow`, for any type of torch: those that containers have no name for are lent as another one of their bytes."""
    if chunk_type(tensor.dtype) in _TYPES:
        return borrow(tensor)
    refuse(tensor, refusal(tensor))
    data = memory(_plain(tensor.to("cpu")))
    return data, *stored_as(chunk_type(tensor.dtype), tensor.numel() * tensor.dtype.itemsize)


def _plain(tensor: Any) -> Any:
    """A contiguous tensor whose memory holds its values."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def is_lent(tensor: Any) -> bool:
    """Whether `borrow` gives the tensor's own memory, and no copy."""
    return bool(tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def dtype_name(dtype: torch.dtype) -> str:
    """Our name of a type of torch."""
    name = _NAMES.get(dtype)
    if name is None:
        raise TypeError(f"unsupported torch dtype {dtype}")
    return name


def dtype_of(name: str) -> torch.dtype:
    """torch's type for our name."""
    dtype = _TYPES.get(name)
    if dtype is None:
        raise UnsupportedError(f"torch has no type for {name}")
    return dtype


def chunk_type(dtype: torch.dtype) -> str:
    """What manifests call a type of torch: our name, or torch's own where elements have another size than ours or no name."""
    name = _NAMES.get(dtype, "F4")
    return str(dtype).removeprefix("torch.") if name == "F4" else name


def type_of_chunk(name: str) -> torch.dtype:
    """The type of torch that `chunk_type` made this name of."""
    dtype = _TYPES.get(name) or getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedError(f"this version of torch has no type {name}")
    return dtype


def unpacked(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in elements of our type. torch's type for `F4` has two in each of its own, as safetensors counts them."""
    if name != "F4":
        return shape
    if not shape:
        raise TypeError("a tensor of torch.float4_e2m1fn_x2 without dimensions has two elements: give it one, `reshape(1)`")
    return (*shape[:-1], shape[-1] * 2)


def _packed(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if name != "F4":
        return shape
    if not shape or shape[-1] % 2 != 0:
        raise UnsupportedError(
            f"torch has no tensor for F4 of the shape {list(shape)}: its type has pairs in the last dimension"
        )
    return (*shape[:-1], shape[-1] // 2)


def empty(dtype: str, shape: tuple[int, ...], size: int) -> tuple[torch.Tensor, Any]:
    """A new tensor on the CPU and its memory."""
    tensor = torch.empty(_packed(dtype, shape), dtype=dtype_of(dtype), device="cpu")
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
