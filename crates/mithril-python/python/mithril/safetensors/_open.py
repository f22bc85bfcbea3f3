"""`safe_open`, as the package `safetensors` has it."""

from __future__ import annotations

import json
import operator
from typing import TYPE_CHECKING, Any

from mithril import _adapters, _mithril
from mithril._mithril import MithrilError, NotFoundError, UnsupportedError
from mithril._types import Path
from mithril.safetensors._reader import read_tensor

if TYPE_CHECKING:
    from typing_extensions import Self


# Names of frameworks, and the module that knows each.
_FRAMEWORKS = {
    "np": "numpy",
    "numpy": "numpy",
    "pt": "torch",
    "torch": "torch",
    "pytorch": "torch",
    "flax": "jax",
    "jax": "jax",
    "mlx": "mlx",
}


class safe_open:
    """Open a packed or plain safetensors file and read its tensors as they are asked for.

    Args:
        filename: the file.
        framework: "np", "pt", "flax" or "mlx".
        device: where torch's tensors go; all others stay on the CPU.
        backend: taken for the package's sake; files are always read, never mapped into memory, so that a file that is cut
            off gives an exception and no signal.
        base: the model that the file was packed against; without it, it is looked for beside the file.
        threads: 0 is one per core.

    Raises:
        FileNotFoundError: there is no such file.
        SafetensorError: it is no model file that mithril knows, or is damaged.
    """

    def __init__(
        self,
        filename: Path,
        framework: str,
        device: Any = "cpu",
        *,
        backend: str = "mmap",
        base: Path | None = None,
        threads: int = 0,
    ) -> None:
        if not isinstance(framework, str):
            raise TypeError(f"framework is a name, not {type(framework).__name__}")
        if framework not in _FRAMEWORKS:
            raise UnsupportedError(f"framework {framework} is invalid")
        if backend not in ("mmap", "pread"):
            raise UnsupportedError(f"backend {backend!r} is invalid: expected 'mmap' or 'pread'")
        self._adapter = _adapters.named(_FRAMEWORKS[framework])
        self._device = _device(_FRAMEWORKS[framework], device)
        self._threads = threads
        self._model: _mithril.Model | None = _mithril.Model.open(filename, [] if base is None else [base])

    def keys(self) -> list[str]:
        """Names of the tensors, sorted."""
        return sorted(self._open().names())

    def offset_keys(self) -> list[str]:
        """Names of the tensors, in the order of their bytes."""
        return self._open().names()

    def metadata(self) -> dict[str, str] | None:
        """The texts under `__metadata__`; none if the file has no such entry."""
        header = self._open().header()
        return None if header is None else json.loads(header).get("__metadata__")

    def get_tensor(self, name: str) -> Any:
        """A tensor, in the framework that was asked for."""
        return self._moved(_read(self._open(), name, self._adapter, self._threads))

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name, in the order of their bytes."""
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> Slice:
        """A tensor that is read when it is indexed: `file.get_slice("embedding")[10:20]` decodes only those rows."""
        _entry(self._open(), name)
        return Slice(self, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._model = None

    def __repr__(self) -> str:
        state = "closed" if self._model is None else f"{len(self._model.names())} tensors"
        return f"<mithril.safetensors.safe_open: {state}>"

    def _open(self) -> _mithril.Model:
        if self._model is None:
            raise MithrilError("File is closed")
        return self._model

    def _moved(self, tensor: Any) -> Any:
        return tensor if self._device is None else tensor.to(self._device)


class Slice:
    """A tensor of an open file, which is read when it is indexed."""

    def __init__(self, file: safe_open, name: str) -> None:
        """Use `safe_open.get_slice`."""
        self._file = file
        # Of its own: a slice may be used after the file was closed, as in the package.
        self._model = file._open()
        self._name = name

    def get_shape(self) -> list[int]:
        """Dimensions of the whole tensor."""
        return list(self._model.entry(self._name)[1])

    def get_dtype(self) -> str:
        """Its number type, as safetensors spells it."""
        return self._model.entry(self._name)[0]

    def __getitem__(self, index: Any) -> Any:
        """Part of the tensor. Integers, slices with a positive step and an ellipsis; with torch, all that torch takes.

        The blocks that hold the rows asked for are decoded, and no others.
        """
        shape = tuple(self.get_shape())
        strict = self._file._adapter.FRAMEWORK != "torch"
        if strict and isinstance(index, list) and not index:
            # The package takes an empty list for no rows.
            index = slice(0, 0)
        indices = index if isinstance(index, tuple) else (index,)
        if strict:
            _check(indices, shape)
        if self.get_dtype() == "F4":
            _check_packed(indices, shape)
        rows, rest = _rows(indices, shape)
        adapter, threads = self._file._adapter, self._file._threads
        if rows is None:
            return self._file._moved(_own(_read(self._model, self._name, adapter, threads), index))
        tensor = read_tensor(self._model, self._name, adapter, threads, rows)
        return self._file._moved(_own(tensor, rest))


def _rows(indices: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[tuple[int, int] | None, Any]:
    """The rows that an index needs, and what is left to do with them; no rows if all of them are needed."""
    if not indices or not shape or 0 in shape:
        return None, indices
    first, others = indices[0], indices[1:]
    if isinstance(first, slice) and (first.step is None or operator.index(first.step) > 0):
        start, stop, step = first.indices(shape[0])
        stop = max(start, stop)
        return (start, stop), (slice(0, stop - start, step), *others)
    if isinstance(first, bool) or not hasattr(first, "__index__") or getattr(first, "shape", ()) != ():
        return None, indices
    row = operator.index(first)
    if not -shape[0] <= row < shape[0]:
        return None, indices
    row %= shape[0]
    return (row, row + 1), (0, *others)


def _check_packed(indices: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    """Refuse to take pairs of elements apart: all of a tensor can be read, and whole rows of it."""
    if not indices or indices == (...,) or (len(indices) == 1 and indices[0] is not None and len(shape) > 1):
        return
    raise UnsupportedError("two elements of F4 share a byte: of such a tensor only whole rows can be read, `[first:end]`")


def _check(indices: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    """Refuse what the package refuses for numpy."""
    if sum(index is Ellipsis for index in indices) > 1:
        raise MithrilError("an index has one ellipsis at most")
    given = [index for index in indices if index is not Ellipsis]
    if len(given) > len(shape):
        raise MithrilError(f"{len(given)} indices for a tensor of {len(shape)} dimensions")
    before = next((at for at, index in enumerate(indices) if index is Ellipsis), len(indices))
    for at, index in enumerate(given):
        size = shape[at if at < before else at - len(given) + len(shape)]
        if isinstance(index, slice):
            if index.step is not None and index.step <= 0:
                raise MithrilError(f"the step of a slice is positive, not {index.step}")
            start, stop = (0 if bound is None else bound for bound in (index.start, index.stop))
            if stop > size or start > size:
                raise MithrilError(f"slice {start}:{stop} leaves a dimension of {size}")
        elif isinstance(index, (list, str, bytes, float)) or not hasattr(index, "__index__") or _rank(index):
            raise MithrilError(f"an index is an integer, a slice or an ellipsis, not {type(index).__name__}")
        elif not -size <= operator.index(index) < size:
            raise MithrilError(f"index {index} is outside of a dimension of {size}")


def _rank(index: Any) -> int:
    return len(getattr(index, "shape", ()))


def _own(tensor: Any, index: Any) -> Any:
    """Part of a tensor that does not keep the whole in memory."""
    if isinstance(index, tuple) and hasattr(tensor, "flags") and not any(one is Ellipsis for one in index):
        # numpy gives an array then, where it would give a scalar.
        index = (*index, ...)
    part = tensor[index]
    if hasattr(part, "is_contiguous"):
        return part.clone() if part.numel() < tensor.numel() else part.contiguous()
    if hasattr(part, "flags"):
        return part.copy() if part.size < tensor.size else part
    return part


def _read(model: _mithril.Model, name: str, adapter: _adapters.Adapter, threads: int) -> Any:
    _entry(model, name)
    return read_tensor(model, name, adapter, threads)


def _entry(model: _mithril.Model, name: str) -> None:
    try:
        model.entry(name)
    except NotFoundError:
        raise NotFoundError(f"File does not contain tensor {name}") from None


def _device(adapter: str, device: Any) -> Any:
    """Where torch's tensors are moved; none if they stay."""
    if adapter != "torch":
        if device not in (None, "cpu"):
            raise UnsupportedError(f"Device {device} is not supported for framework {adapter}")
        return None
    import torch

    if isinstance(device, int):
        device = f"cuda:{device}"
    try:
        device = torch.device(device)
    except RuntimeError:
        raise UnsupportedError(f"device {device} is invalid") from None
    if device.type == "meta":
        raise UnsupportedError(f"device {device} is invalid")
    return None if device.type == "cpu" else device
