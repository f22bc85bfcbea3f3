"""The stream extension: for those who keep torch's `FileSystemWriter` (torch 2.7 or newer)."""

from __future__ import annotations

import io
from typing import IO, Any, cast

import mithril
from mithril._mithril import UnsupportedError

try:
    from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension
except ModuleNotFoundError:
    ExtensionRegistry, StreamTransformExtension = None, object

AVAILABLE = ExtensionRegistry is not None
"""Whether this torch has extensions."""

# The types of storages that torch's pickles name, and ours.
_STORAGES = {
    b"BFloat16Storage": "bf16",
    b"HalfStorage": "f16",
    b"FloatStorage": "f32",
    b"DoubleStorage": "f64",
    b"LongStorage": "i64",
    b"IntStorage": "i32",
    b"ShortStorage": "i16",
    b"CharStorage": "i8",
    b"ByteStorage": "u8",
}
# Where the pickle of one tensor ends: its zip entry comes first and is small.
_HEAD = 4096


def _check() -> None:
    if not AVAILABLE:
        raise UnsupportedError("torch has extensions from version 2.7 on: use MithrilStorageWriter or the planners")


class MithrilExtension(StreamTransformExtension):  # type: ignore[misc]
    """Compresses the items of a checkpoint: `FileSystemWriter(path, _extensions=[MithrilExtension()])`.

    Reading needs the extension to be known: `FileSystemReader(path, _extension_registry=MithrilExtension.registry())`.
    An item is decoded whole wherever a part of it is needed, and there are no deltas: `MithrilStorageWriter` has both.
    """

    def __init__(self, *, effort: str | None = None, threads: int = 0) -> None:
        super().__init__()
        _check()
        self.effort = effort
        self.threads = threads

    @staticmethod
    def registry_name() -> str:
        """The name in a checkpoint's metadata."""
        return "stream.mithril"

    @staticmethod
    def from_descriptor(version: str) -> MithrilExtension:
        """The extension that reads what was written by a version."""
        if version.partition(".")[0] != "1":
            raise ValueError(f"the checkpoint was written by version {version} of this extension, this is version 1")
        return MithrilExtension()

    @staticmethod
    def registry() -> Any:
        """A registry with this extension, for readers."""
        _check()
        registry = ExtensionRegistry()
        registry.register(MithrilExtension)
        return registry

    def get_descriptor(self) -> str:
        """Name and version."""
        return f"{self.registry_name()}/1"

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        """A stream that compresses what is written to it when it is closed."""
        return cast("IO[bytes]", _Compressing(output, self))

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        """A stream of the bytes that were written."""
        return io.BytesIO(mithril.decompress(input.read()))


class _Compressing(io.BytesIO):
    def __init__(self, output: IO[bytes], extension: MithrilExtension) -> None:
        super().__init__()
        self._output = output
        self._extension = extension
        self._is_done = False

    def close(self) -> None:
        if not self._is_done:
            self._is_done = True
            with self.getbuffer() as content:
                frame = mithril.compress(
                    content,
                    dtype=_dtype_of(bytes(content[:_HEAD])),
                    effort=self._extension.effort,
                    threads=self._extension.threads,
                )
            self._output.write(frame)
            self._output.flush()
        super().close()


def _dtype_of(head: bytes) -> str | None:
    """The type of the numbers in torch's archive of one tensor, whose data start at a multiple of 64 bytes."""
    if not head.startswith(b"PK"):
        return None
    found = {ours for name, ours in _STORAGES.items() if name in head}
    return found.pop() if len(found) == 1 else None
