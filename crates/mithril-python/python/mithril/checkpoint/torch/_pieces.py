"""Items of torch's own writer as pieces: each a frame, so that neither side ever holds more than one.

A piece is the length of its frame and that of its content (64 bits each, little-endian), then the frame. All but the last
hold `PIECE_LEN` bytes. Two zeros stand behind the last one.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import mithril
from mithril._mithril import CorruptError, TruncatedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_LEN = 16 << 20
"""Bytes of a piece: a multiple of the 64 bytes that torch aligns the numbers of a tensor to."""

_LENGTHS = struct.Struct("<QQ")
# What a reader allocates for a piece at most.
_MAX_PIECE_LEN = 1 << 30


class Writer(io.RawIOBase):
    """Compresses what is written to it, piece by piece. `compress` is told whether a piece is the first."""

    def __init__(self, output: IO[bytes], compress: Callable[[memoryview, bool], bytes]) -> None:
        super().__init__()
        self._output = output
        self._compress = compress
        self._pending = bytearray()
        self._is_first = True

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            if not self._pending and len(view) - at >= PIECE_LEN:
                # Without a copy.
                self._put(view[at : at + PIECE_LEN])
                at += PIECE_LEN
                continue
            part = view[at : at + PIECE_LEN - len(self._pending)]
            self._pending += part
            at += len(part)
            if len(self._pending) == PIECE_LEN:
                self._put_pending()
        return len(view)

    def close(self) -> None:
        if not self.closed:
            if self._pending:
                self._put_pending()
            self._output.write(_LENGTHS.pack(0, 0))
            self._output.flush()
        super().close()

    def _put_pending(self) -> None:
        pending, self._pending = self._pending, bytearray()
        self._put(memoryview(pending))

    def _put(self, content: memoryview) -> None:
        frame = self._compress(content, self._is_first)
        self._is_first = False
        self._output.write(_LENGTHS.pack(len(frame), len(content)))
        self._output.write(frame)


class _Piece(NamedTuple):
    start: int
    """Of the frame."""
    frame_len: int
    content_start: int
    content_len: int


class Reader(io.RawIOBase):
    """What was written to a `Writer`, decoded where it is read. It can seek, as torch's loader has to."""

    def __init__(self, source: IO[bytes], threads: int) -> None:
        super().__init__()
        self._source = source if source.seekable() else io.BytesIO(source.read())
        self._threads = threads
        self._pieces = self._found()
        self._len = sum(piece.content_len for piece in self._pieces)
        self._at = 0
        # The piece that was decoded last, of which only a part was wanted.
        self._kept: tuple[int, memoryview] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._len}[whence]
        if start + offset < 0:
            raise ValueError(f"there is no byte {start + offset}")
        self._at = start + offset
        return self._at

    def readinto(self, target: Any, /) -> int:
        view = memoryview(target).cast("B")
        n_read = min(len(view), max(0, self._len - self._at))
        done = 0
        while done < n_read:
            # All pieces but the last are of one length.
            index = self._at // self._pieces[0].content_len
            piece = self._pieces[index]
            skipped = self._at - piece.content_start
            part = view[done : min(n_read, done + piece.content_len - skipped)]
            if len(part) == piece.content_len:
                self._decode(piece, part)
            else:
                part[:] = self._content(index)[skipped : skipped + len(part)]
            done += len(part)
            self._at += len(part)
        return n_read

    def readall(self) -> bytes:
        return self.read(max(0, self._len - self._at)) or b""

    def _content(self, index: int) -> memoryview:
        if self._kept is None or self._kept[0] != index:
            self._kept = None
            content = memoryview(bytearray(self._pieces[index].content_len))
            self._decode(self._pieces[index], content)
            self._kept = (index, content)
        return self._kept[1]

    def _decode(self, piece: _Piece, target: memoryview) -> None:
        self._source.seek(piece.start)
        frame = self._source.read(piece.frame_len)
        if len(frame) != piece.frame_len:
            raise TruncatedError(f"an item of the checkpoint ends {piece.frame_len - len(frame)} bytes early")
        mithril.decompress(frame, out=target, threads=self._threads)

    def _found(self) -> list[_Piece]:
        pieces: list[_Piece] = []
        at, content_start = self._source.tell(), 0
        while True:
            self._source.seek(at)
            lengths = self._source.read(_LENGTHS.size)
            if len(lengths) != _LENGTHS.size:
                raise TruncatedError("an item of the checkpoint ends before its last piece")
            frame_len, content_len = _LENGTHS.unpack(lengths)
            if (frame_len, content_len) == (0, 0):
                return pieces
            is_odd = bool(pieces) and (content_len > pieces[0].content_len or pieces[-1].content_len != pieces[0].content_len)
            if is_odd or not 0 < content_len <= _MAX_PIECE_LEN or not 0 < frame_len <= 2 * _MAX_PIECE_LEN:
                raise CorruptError("an item of the checkpoint is damaged: its pieces have impossible lengths")
            pieces.append(_Piece(at + _LENGTHS.size, frame_len, content_start, content_len))
            at += _LENGTHS.size + frame_len
            content_start += content_len
