"""Random access to the tensors of a packed or plain file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mithril import _adapters, _mithril
from mithril._types import Path

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Buffer, Self


class Reader:
    """The tensors of a file, each read alone: the rest of the file is not touched.

    >>> import numpy as np
    >>> from mithril.safetensors import Reader, save
    >>> with Reader.from_bytes(save({"w": np.arange(6, dtype=np.int32).reshape(2, 3)})) as reader:
    ...     print(reader.names(), reader.read_numpy("w").tolist())
    ['w'] [[0, 1, 2], [3, 4, 5]]
    """

    def __init__(self, model: _mithril.Model) -> None:
        """Use `open` or `from_bytes`."""
        self._model = model

    @classmethod
    def open(cls, path: Path, *, base: Path | None = None) -> Self:
        """Open a file. Without `base`, models that it was packed against are looked for beside it."""
        return cls(_mithril.Model.open(path, [] if base is None else [base]))

    @classmethod
    def from_bytes(cls, frame: Buffer, *, base: Buffer | None = None) -> Self:
        """Open the bytes of a file, which are kept and not copied."""
        return cls(_mithril.Model.from_bytes(frame, [] if base is None else [base]))

    def names(self) -> list[str]:
        """The tensors, in the order of their bytes."""
        return self._model.names()

    def header(self) -> dict[str, Any]:
        """The header of the original safetensors file: dtype, shape and offsets of every tensor, and `__metadata__`."""
        header = self._model.header()
        if header is None:
            raise _mithril.UnsupportedError("the file is and was no safetensors file, so it has no header of one")
        parsed: dict[str, Any] = json.loads(header)
        return parsed

    def metadata(self) -> dict[str, str]:
        """The texts under `__metadata__`; empty if there are none."""
        metadata: dict[str, str] = self.header().get("__metadata__", {})
        return metadata

    def shape(self, name: str) -> tuple[int, ...]:
        """Dimensions of a tensor."""
        return self._model.entry(name)[1]

    def dtype(self, name: str) -> str:
        """Number type of a tensor, as safetensors spells it."""
        return self._model.entry(name)[0]

    def frame_size(self, name: str) -> int:
        """Bytes that a tensor takes in the file. A tensor that is stored with another one, or in a base, takes none."""
        _, _, size, stored = self._model.entry(name)
        if self._model.kind() != "container":
            return size
        return stored or 0

    def read_raw(self, name: str, *, threads: int = 0) -> bytes:
        """The bytes of a tensor.

        Raises:
            NotFoundError: there is none of this name.
            CorruptError: it is damaged; other tensors may be intact.
        """
        return self._model.read_bytes(name, threads)

    def read_numpy(self, name: str, *, threads: int = 0) -> np.ndarray[Any, Any]:
        """A tensor as a numpy array; bf16 and fp8 with the types of `ml_dtypes`."""
        array: np.ndarray[Any, Any] = read_tensor(self._model, name, _adapters.named("numpy"), threads)
        return array

    def close(self) -> None:
        """End all reading."""
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._model.names())

    def __contains__(self, name: object) -> bool:
        return name in self._model.names()


def read_tensor(
    model: _mithril.Model,
    name: str,
    adapter: _adapters.Adapter,
    threads: int = 0,
    rows: tuple[int, int] | None = None,
) -> Any:
    """Decode a tensor, or some of its rows, to a new array of a framework."""
    dtype, shape, size, _ = model.entry(name)
    extent = None
    if rows is not None:
        row_size = size // shape[0]
        extent = (rows[0] * row_size, rows[1] * row_size)
        shape = (rows[1] - rows[0], *shape[1:])
    made: list[Any] = []

    def make(size: int) -> Any:
        array, memory = adapter.empty(dtype, shape, size)
        made.append(array)
        return memory

    model.read(name, extent, make, threads)
    return adapter.finish(made[0])
