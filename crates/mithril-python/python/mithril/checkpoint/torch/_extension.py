"""The stream extension: for those who keep torch's `FileSystemWriter` (torch 2.7 or newer)."""

from __future__ import annotations

import io
from typing import IO, Any, cast

import mithril
from mithril._adapters._dtypes import PARTS, TABLE
from mithril._mithril import UnsupportedError
from mithril.checkpoint.torch import _pieces

try:
    from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension
except ModuleNotFoundError:
    ExtensionRegistry, StreamTransformExtension = None, object

AVAILABLE = ExtensionRegistry is not None
"""Whether this torch has extensions."""

# Version 1 had an item in one frame.
_VERSION = 2
# What the pickle of a tensor names: its storage, or for newer types torch's name of them.
_STORAGES = {
    "BFloat16Storage": "BF16",
    "BoolStorage": "BOOL",
    "ByteStorage": "U8",
    "CharStorage": "I8",
    "ComplexDoubleStorage": PARTS["complex128"],
    "ComplexFloatStorage": "C64",
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "IntStorage": "I32",
    "LongStorage": "I64",
    "ShortStorage": "I16",
}
_NUMBERS = {f"ctorch\n{name}\n".encode(): ours for name, ours in _STORAGES.items()}
_NUMBERS |= {f"ctorch\n{names.torch}\n".encode(): names.ours for names in TABLE if names.torch is not None}
_NUMBERS |= {f"ctorch\n{name}\n".encode(): part for name, part in PARTS.items()}
# Where the pickle of one tensor ends: its zip entry comes first and is small.
_HEAD = 4096


def _check() -> None:
    if not AVAILABLE:
        raise UnsupportedError("torch has extensions from version 2.7 on: use MithrilStorageWriter or the planners")


class MithrilExtension(StreamTransformExtension):  # type: ignore[misc]
    """Compresses the items of a checkpoint: `FileSystemWriter(path, _extensions=[MithrilExtension()])`.

    Reading needs the extension to be known: `FileSystemReader(path, _extension_registry=MithrilExtension.registry())`.
    torch's reader loads an item whole wherever a part of it is needed, so loading takes the largest item once more, as it
    does without the extension. There are no deltas. `MithrilStorageWriter` has neither fault.
    """

    def __init__(self, *, effort: str | None = None, threads: int = 0) -> None:
        super().__init__()
        _check()
        self.effort = effort
        self.threads = threads
        self._version = _VERSION

    @staticmethod
    def registry_name() -> str:
        """The name in a checkpoint's metadata."""
        return "stream.mithril"

    @staticmethod
    def from_descriptor(version: str) -> MithrilExtension:
        """The extension that reads what was written by a version."""
        number = version.partition(".")[0]
        if number not in ("1", str(_VERSION)):
            raise ValueError(f"the checkpoint was written by version {version} of this extension, this is version {_VERSION}")
        extension = MithrilExtension()
        extension._version = int(number)
        return extension

    @staticmethod
    def registry() -> Any:
        """A registry with this extension, for readers."""
        _check()
        registry = ExtensionRegistry()
        registry.register(MithrilExtension)
        return registry

    def get_descriptor(self) -> str:
        """Name and version."""
        return f"{self.registry_name()}/{_VERSION}"

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        """A stream that compresses what is written to it, piece by piece."""
        return cast("IO[bytes]", _pieces.Writer(output, _Coding(self.effort, self.threads).compress))

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        """A stream of the bytes that were written, which are decoded as they are read."""
        if self._version == 1:
            return io.BytesIO(mithril.decompress(input.read(), threads=self.threads))
        return cast("IO[bytes]", _pieces.Reader(input, self.threads))


class _Coding:
    """How the pieces of one item are coded: the first says what numbers are in all of them."""

    def __init__(self, effort: str | None, threads: int) -> None:
        self._effort = effort
        self._threads = threads
        self._dtype: str | None = None

    def compress(self, content: memoryview, is_first: bool) -> bytes:
        if is_first:
            self._dtype = _dtype_of(bytes(content[:_HEAD]))
        return mithril.compress(content, dtype=self._dtype, effort=self._effort, threads=self._threads)


def _dtype_of(head: bytes) -> str | None:
    """The type of the numbers in torch's archive of one tensor, whose data start at a multiple of 64 bytes."""
    if not head.startswith(b"PK"):
        return None
    found = {ours for name, ours in _NUMBERS.items() if name in head}
    return found.pop() if len(found) == 1 else None
