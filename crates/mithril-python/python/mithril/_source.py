"""Whatever users hand in, seen as bytes with a number type and a shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Union

from mithril import _adapters, _mithril

if TYPE_CHECKING:
    from typing_extensions import Buffer

    class SupportsDLPack(Protocol):
        """A tensor of a framework that lends its memory."""

        def __dlpack__(self) -> Any: ...
        def __dlpack_device__(self) -> tuple[Any, int]: ...

    Readable = Union[Buffer, SupportsDLPack]


class Source(NamedTuple):
    """Contiguous little-endian bytes and what they mean. Keeps what it borrows alive."""

    data: Any
    dtype: str | None
    shape: tuple[int, ...] | None


def read(data: Any, dtype: str | None) -> Source:
    """See an object as bytes. `dtype` is that of raw buffers; an array's own must be the same."""
    adapter = _adapters.of(data)
    if adapter is not None:
        return _checked(Source(*adapter.borrow(data)), dtype)
    if hasattr(data, "__dlpack__"):
        tensor = _mithril.BorrowedTensor(data)
        return _checked(Source(tensor, tensor.dtype, tensor.shape), dtype)
    if isinstance(data, memoryview) and not data.c_contiguous:
        data = data.tobytes()
    return Source(data, dtype, None)


def writable(out: Any) -> Any:
    """The writable memory of an object: of itself, or of what its framework lends."""
    adapter = _adapters.of(out)
    return out if adapter is None else adapter.memory(out)


def _checked(source: Source, dtype: str | None) -> Source:
    if dtype is not None and source.dtype is not None and _mithril.dtype_name(dtype) != source.dtype:
        raise ValueError(f"dtype is {dtype!r}, and the array is of {source.dtype}")
    return source
