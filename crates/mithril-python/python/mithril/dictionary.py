"""zstd dictionaries for many small records: trained here, read by every zstd.

>>> records = [b'{"user": %d, "name": "name %d", "active": true}' % (i, i * 7919 % 1000) for i in range(1000)]
>>> dictionary = train(records, size=4096)
>>> frames = dictionary.compress_many(records)
>>> dictionary.decompress_many(frames) == records
True
>>> 2 * sum(map(len, frames)) < sum(map(len, records))
True

Dictionaries and frames are those of the package `zstandard`: `Dictionary(theirs)` takes a `ZstdCompressionDict`, and
`zstandard.ZstdCompressionDict(ours.data)` or `ours.to_zstandard()` is one.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from mithril import _mithril

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from mithril._types import Path

__all__ = ["Dictionary", "Evaluation", "Training", "dictionary_id", "train", "update"]

# Where records start in one buffer, and where the last ends: numbers, or a buffer of them such as a numpy array.
Offsets = Union[Sequence[int], "Buffer"]

# Levels of zstd from which `train` and `Dictionary` start when none is given.
_LEVEL = 3


@dataclass(frozen=True)
class Evaluation:
    """What records take, in bytes: as they are, compressed without a dictionary, and with it."""

    raw: int
    plain: int
    coded: int

    @property
    def ratio(self) -> float:
        """How many times smaller they become with the dictionary."""
        return self.raw / max(self.coded, 1)

    @property
    def plain_ratio(self) -> float:
        """How many times smaller they become without it."""
        return self.raw / max(self.plain, 1)


@dataclass(frozen=True)
class Training:
    """How a dictionary came to be: what was chosen, and what samples take that were held out of the search for it."""

    k: int
    d: int
    held_out: Evaluation | None


class Dictionary:
    """A dictionary that is ready to compress and decompress records, from any number of threads.

    Args:
        data: the dictionary: bytes, or an object of `zstandard.ZstdCompressionDict`. Bytes that do not start like a
            dictionary of zstd are bare content.
        level: level of zstd that records are compressed at, 1 to 22.

    Raises:
        CorruptError, TruncatedError: it has a header, and that is damaged.

    >>> dictionary = Dictionary(b'{"name": "", "version": "1.0.0"}')
    >>> dictionary.decompress(dictionary.compress(b'{"name": "x", "version": "1.0.0"}'))
    b'{"name": "x", "version": "1.0.0"}'
    """

    __slots__ = ("_compiled", "level", "training")

    #: The level that records are compressed at.
    level: int
    #: How it came to be, if `train` made it just now.
    training: Training | None

    def __init__(self, data: Any, *, level: int = _LEVEL) -> None:
        self._compiled = _mithril.RecordDictionary(_bytes_of(data), level)
        self.level = level
        self.training = None

    @classmethod
    def load(cls, path: Path, *, level: int = _LEVEL) -> Dictionary:
        """The dictionary of a file, as `save`, `mithril dictionary train` or `zstd --train` wrote it."""
        with open(path, "rb") as file:
            return cls(file.read(), level=level)

    def save(self, path: Path) -> None:
        """Writes it to a file, which appears whole or not at all. A file of that name is replaced."""
        with _mithril.OutputFile(path, True) as file:
            file.write(self.data)

    @property
    def data(self) -> bytes:
        """Its bytes."""
        return self._compiled.data()

    @property
    def id(self) -> int | None:
        """The number by which frames name it; none for bare content."""
        return self._compiled.id

    @property
    def content(self) -> bytes:
        """What records resemble: its bytes without the header."""
        return self.data[self._compiled.header_size :]

    def to_zstandard(self) -> Any:
        """The same as a `ZstdCompressionDict` of the package `zstandard`, which must be there."""
        import zstandard

        return zstandard.ZstdCompressionDict(self.data)

    def compress(self, record: Buffer) -> bytes:
        """The frame of one record. For many, `compress_many` is faster."""
        return self._compiled.compress(record)

    def decompress(self, frame: Buffer) -> bytes:
        """The record of one frame.

        Raises:
            BaseMismatchError: the frame names another dictionary, whose id is in the message.
            CorruptError: it is damaged, does not state its size, or holds more than 64 MiB.
        """
        return self._compiled.decompress(frame)

    def compress_many(self, records: Iterable[Buffer], *, threads: int = 0) -> list[bytes]:
        """The frame of every record, on several threads; 0 is one per core. Frames do not depend on their number."""
        return self._compiled.compress_list(_as_list(records), threads)

    def decompress_many(self, frames: Iterable[Buffer], *, threads: int = 0) -> list[bytes]:
        """The record of every frame, on several threads; 0 is one per core.

        Raises:
            as `decompress`; the message names the first record that fails.
        """
        return self._compiled.decompress_list(_as_list(frames), threads)

    def compress_buffer(self, data: Buffer, offsets: Offsets, *, threads: int = 0) -> tuple[bytes, memoryview]:
        """Compresses records that lie in one buffer to frames in one buffer. No object is made for any of them.

        Args:
            data: the records.
            offsets: record `i` is `data[offsets[i]:offsets[i + 1]]`, so there is one more offset than records. Integers of
                32 or 64 bits are read where they lie (numpy, `array`, Arrow), others are copied.
            threads: 0 is one per core.

        Returns:
            The frames, and their offsets of the same kind, as a memoryview of 64-bit numbers.

        >>> dictionary = Dictionary(b"what all of them resemble")
        >>> frames, ends = dictionary.compress_buffer(b"all of them resemble", [0, 3, 20])
        >>> records, offsets = dictionary.decompress_buffer(frames, ends)
        >>> records, offsets.tolist()
        (b'all of them resemble', [0, 3, 20])
        """
        frames, ends = self._compiled.compress_joined(data, _as_numbers(offsets), threads)
        return frames, memoryview(ends).cast("Q")

    def decompress_buffer(self, data: Buffer, offsets: Offsets, *, threads: int = 0) -> tuple[bytes, memoryview]:
        """Decompresses frames that lie in one buffer to records in one buffer: the way back of `compress_buffer`."""
        records, ends = self._compiled.decompress_joined(data, _as_numbers(offsets), threads)
        return records, memoryview(ends).cast("Q")

    def evaluate(self, records: Iterable[Buffer], *, threads: int = 0) -> Evaluation:
        """What records take with it and without, at its level. Give records that it was not trained on."""
        return Evaluation(*self._compiled.evaluate(_as_list(records), self.level, threads))

    def __bytes__(self) -> bytes:
        return self.data

    def __len__(self) -> int:
        return len(self.data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dictionary):
            return NotImplemented
        return self.level == other.level and self.data == other.data

    def __hash__(self) -> int:
        return hash((self.level, self.data))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.data, self.level, self.training)

    def __repr__(self) -> str:
        return f"<mithril.dictionary.Dictionary id={self.id} level={self.level}, {len(self)} bytes>"


def train(
    samples: Iterable[Buffer] | Buffer,
    *,
    offsets: Offsets | None = None,
    size: int | str = 112_640,
    level: int = _LEVEL,
    k: int | None = None,
    d: int | None = None,
    search: bool = True,
    id: int | None = None,
    raw_content: bool = False,
    threads: int = 0,
) -> Dictionary:
    """Trains a dictionary on samples.

    Args:
        samples: records like those that will be compressed; about 100 times the size of the dictionary is a good amount.
            With `offsets`, one buffer that holds them all.
        offsets: where each sample starts in the buffer, and where the last ends.
        size: bytes of the dictionary at most, or "auto": the smallest that serves held-out samples nearly as well as larger
            ones.
        level: level of zstd that records will be compressed at.
        k, d: longest segment that is taken from a sample, and length of the runs that are counted; searched when not given.
        search: False takes what serves most data for `k` and `d`, which is several times faster.
        id: number of the dictionary; made from its content by default.
        raw_content: True for bare content, without header, id and tables.
        threads: 0 is one per core. The dictionary does not depend on it.

    Raises:
        ValueError: the samples are too few, too small, too alike or too random, or an argument is out of its range. The
            message says what to do.
    """
    if isinstance(size, str) and size != "auto":
        raise ValueError(f'size is a number of bytes or "auto", not {size!r}')
    wanted = None if isinstance(size, str) else size
    given, numbers = _samples(samples, offsets)
    options = (wanted, level, k, d, id, search, raw_content, threads)
    data, used_k, used_d, held_out = _mithril.train_dictionary(given, numbers, options)
    dictionary = Dictionary(data, level=level)
    dictionary.training = Training(used_k, used_d, None if held_out is None else Evaluation(*held_out))
    return dictionary


def update(
    dictionary: Dictionary,
    samples: Iterable[Buffer] | Buffer,
    *,
    offsets: Offsets | None = None,
    size: int | None = None,
    threads: int = 0,
) -> Dictionary:
    """Fits a dictionary to newer samples: what still pays stays, the rest is replaced. It has another id.

    Args:
        dictionary: the old one, whose level the new one has.
        samples, offsets, threads: as in `train`.
        size: bytes of the new one at most; those of the old one by default.
    """
    given, numbers = _samples(samples, offsets)
    is_raw = len(dictionary.content) == len(dictionary)
    wanted = len(dictionary) if size is None else size
    options = (wanted, dictionary.level, None, None, None, False, is_raw, threads)
    data = _mithril.update_dictionary(dictionary.data, given, numbers, options)
    return Dictionary(data, level=dictionary.level)


def dictionary_id(frame: Buffer) -> int | None:
    """The id of the dictionary that a frame needs; none when it names none."""
    return _mithril.dictionary_id(frame)


def _restore(data: bytes, level: int, training: Training | None) -> Dictionary:
    dictionary = Dictionary(data, level=level)
    dictionary.training = training
    return dictionary


def _bytes_of(data: Any) -> Buffer:
    """The bytes of a dictionary, whoever made it."""
    if isinstance(data, Dictionary):
        return data.data
    # `ZstdCompressionDict` has no buffer; it is not imported to be told from others.
    as_bytes = getattr(data, "as_bytes", None)
    found: Buffer = data if as_bytes is None else as_bytes()
    return found


def _samples(samples: Any, offsets: Offsets | None) -> tuple[Any, Buffer | None]:
    if offsets is None:
        return _as_list(samples), None
    return samples, _as_numbers(offsets)


def _as_list(records: Iterable[Buffer]) -> list[Buffer]:
    """A list of the records. One buffer is no list of records, though Python would take its bytes for numbers."""
    if isinstance(records, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"a list of records is needed, not one object of type {type(records).__name__}")
    return records if isinstance(records, list) else list(records)


def _as_numbers(offsets: Offsets) -> Buffer:
    """Offsets as a buffer of 64-bit numbers, without a copy if they are that already."""
    try:
        view = memoryview(offsets)  # type: ignore[arg-type]
    except TypeError:
        return _array(offsets)  # type: ignore[arg-type]
    if view.ndim != 1 or view.format not in ("q", "Q", "l", "L", "i", "I"):
        raise TypeError("offsets are integers of 32 or 64 bits in one dimension")
    return view if view.itemsize == 8 and view.c_contiguous else _array(view)


def _array(numbers: Iterable[int]) -> array.array[int]:
    try:
        return array.array("Q", numbers)
    except OverflowError as error:
        raise ValueError("offsets are numbers from 0 on") from error
