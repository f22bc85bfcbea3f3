"""Reference decoder of mithril frames (`MTHF`, version 1), written from frame.md.

It follows frame.md section by section and prefers clarity to speed. Containers
(`MCKP`) are read by reference_container.py, entropy-coded quantised weights by reference_ecq.py,
and blocks against a base by reference_delta.py, predicted ones by reference_prediction.py, which this program calls. The digest of a base is compared
if the module `blake3` is there. It needs
Python 3.11 and nothing else, except that streams of zstd need the module
`compression.zstd` (Python 3.14) or `zstandard`, and those of brotli the module
`brotli`.

    python3 reference_decoder.py FILE [-o OUT]      write the raw bytes, or the restored file
    python3 reference_decoder.py FILE --base RAW    the same for a frame against a base
    python3 reference_decoder.py --check GOLDEN     decode all of GOLDEN/index.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reference_prediction import Prediction

# ---- How a reader refuses (README.md) ----


class Refused(Exception):
    """The frame is refused; the subclass is the kind."""


class Truncated(Refused):
    """The bytes end before the data does."""


class Corrupt(Refused):
    """The bytes contradict themselves or a limit."""


class Unsupported(Refused):
    """A number that is not known."""


class ModuleMissing(Unsupported):
    """A coder whose module is not installed here."""


def require(condition: bool, message: str) -> None:
    """Refuses as Corrupt unless the condition holds."""
    if not condition:
        raise Corrupt(message)


def ceil_div(a: int, b: int) -> int:
    """`ceil(a / b)` of the conventions."""
    return -(-a // b)


class Reader:
    """Takes little-endian fields off the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, length: int) -> bytes:
        if length > self.left():
            raise Truncated(f"{length} bytes wanted at {self.at}, {self.left()} left")
        self.at += length
        return self.data[self.at - length : self.at]

    def rest(self) -> bytes:
        return self.take(self.left())

    def number(self, length: int) -> int:
        return int.from_bytes(self.take(length), "little")

    def u8(self) -> int:
        return self.number(1)

    def u32(self) -> int:
        return self.number(4)

    def finish(self, what: str) -> None:
        require(self.left() == 0, f"{self.left()} bytes left behind {what}")


# ---- 1. The frame ----

MAGIC = b"MTHF"
END_MAGIC = b"MTHE"
CHECKSUMS, SHAPE, LENGTH, BASE = 1, 2, 4, 16
MAX_RANK = 64
MAX_BLOCK_LEN = 33554432
MAX_SHARED_LEN = 67108864


@dataclass
class Frame:
    """Outputs of section 1.6."""

    dtype: str
    shape: list[int] | None
    raw: bytes


@dataclass
class Header:
    """Section 1.2, without what only the header itself needs."""

    flags: int
    dtype: int
    block_len: int
    shape: list[int] | None
    raw_len: int | None
    shared: SharedTables | None
    base_digest: bytes | None

    def tensor_len(self) -> int | None:
        """Raw bytes of the tensor, if there is a shape."""
        if self.shape is None:
            return None
        return tensor_len(self.shape, self.dtype)


def tensor_len(shape: list[int], dtype: int) -> int:
    """Raw bytes of a tensor."""
    _, elements, unit = DTYPES[dtype]
    n = 1
    for dimension in shape:
        n *= dimension
        require(n < 2**64, "the shape is larger than 2^64 on the way")
    require(
        n * 8 * unit // elements < 2**64, "the shape is larger than 2^64 on the way"
    )
    require(n % elements == 0, "the shape is not one of whole units")
    return n // elements * unit


def read_header(r: Reader) -> Header:
    """Section 1.2, checked in the order of section 1.5."""
    require(MAGIC.startswith(r.data[:4]), "not a frame")
    r.take(4)
    version = r.u8()
    if version != 1:
        raise Unsupported(f"format version {version} is not known to this version")
    flags, dtype, rank = r.u8(), r.u8(), r.u8()
    block_len, shared_len, raw_len = r.u32(), r.u32(), r.number(8)
    require(rank <= MAX_RANK, f"rank {rank}")
    require(shared_len <= MAX_SHARED_LEN, f"{shared_len} bytes of shared tables")
    dimensions = [r.number(8) for _ in range(rank)]
    base_digest = r.take(32) if flags & BASE else None
    shared = r.take(shared_len)
    expected = checksum(r.data[: r.at])
    require(r.number(8) == expected, "header_checksum")

    if flags & ~(CHECKSUMS | SHAPE | LENGTH | BASE):
        raise Unsupported(f"frame flags {flags:#04x}")
    if dtype not in DTYPES:
        raise Unsupported(f"dtype {dtype}")
    unit = DTYPES[dtype][2]
    require(1 <= block_len <= MAX_BLOCK_LEN, f"block_len {block_len}")
    require(block_len % unit == 0, f"block_len {block_len} with a unit of {unit}")
    require(rank == 0 or bool(flags & SHAPE), "a rank without SHAPE")
    require(raw_len == 0 or bool(flags & LENGTH), "a raw length without LENGTH")
    header = Header(
        flags=flags,
        dtype=dtype,
        block_len=block_len,
        shape=dimensions if flags & SHAPE else None,
        raw_len=raw_len if flags & LENGTH else None,
        shared=None,
        base_digest=base_digest,
    )
    if header.tensor_len() is not None and header.raw_len is not None:
        require(header.tensor_len() == raw_len, "shape and raw_len differ")
    if shared_len > 0:
        header.shared = read_shared_tables(Reader(shared))
    return header


def read_blocks(
    r: Reader, header: Header, base: bytes | None
) -> tuple[list[bytes], list[int]]:
    """Section 1.3: the raw bytes and the coded length of every block."""
    blocks: list[bytes] = []
    coded_lens: list[int] = []
    short = False
    while (coded_len := r.u32()) != 0:
        require(not short, "a short block before the last")
        raw_len = r.u32()
        require(1 <= raw_len <= header.block_len, f"a block of {raw_len} raw bytes")
        require(coded_len <= raw_len + 1, f"a block of {coded_len} coded bytes")
        short = raw_len < header.block_len
        expected = r.number(8) if header.flags & CHECKSUMS else None
        first = len(blocks) * header.block_len
        of_base = None if base is None else base[first : first + raw_len]
        require(of_base is None or len(of_base) == raw_len, "a base of another length")
        raw = decode_block(r.take(coded_len), raw_len, header.shared, first, of_base)
        require(
            expected is None or checksum(raw) == expected,
            f"checksum of block {len(blocks)}",
        )
        blocks.append(raw)
        coded_lens.append(coded_len)
    return blocks, coded_lens


def check_trailer(r: Reader, coded_lens: list[int], total: int) -> None:
    """Section 1.4."""
    length = 4 * len(coded_lens) + 24
    if r.left() < length:
        raise Truncated("the frame does not end with its trailer")
    require(r.left() == length, "bytes behind the frame")
    if not r.data.endswith(END_MAGIC):
        raise Truncated("the frame does not end with its magic")
    expected = checksum(r.data[r.at : -12])
    require(
        [r.u32() for _ in coded_lens] == coded_lens,
        "coded_len of a block and the trailer",
    )
    require(r.number(8) == total, "raw_len of the trailer")
    require(r.u32() == len(coded_lens), "n_blocks")
    require(r.number(8) == expected, "trailer_checksum")


def check_digest(base: bytes, digest: bytes) -> None:
    """Compares the digest of a base, if the module for it is there."""
    try:
        from blake3 import blake3
    except ImportError:
        return
    require(blake3(base).digest() == digest, "digest of the base")


def decode_frame(data: bytes, base: bytes | None = None) -> Frame:
    """Section 1.5: decodes the bytes of exactly one frame, given those of its base."""
    r = Reader(data)
    header = read_header(r)
    if header.base_digest is None:
        base = None
    elif base is not None:
        check_digest(base, header.base_digest)
    blocks, coded_lens = read_blocks(r, header, base)
    raw = b"".join(blocks)
    check_trailer(r, coded_lens, len(raw))
    require(header.raw_len in (None, len(raw)), "raw_len of the header and the blocks")
    require(header.tensor_len() in (None, len(raw)), "the shape and the blocks")
    require(base is None or len(base) == len(raw), "a base of another length")
    return Frame(DTYPES[header.dtype][0], header.shape, raw)


# ---- 2. Dtypes ----

# Name, elements of a unit, and its bytes, by id.
DTYPES = {
    0: ("BYTES", 1, 1),
    1: ("BOOL", 1, 1),
    2: ("U8", 1, 1),
    3: ("I8", 1, 1),
    4: ("U16", 1, 2),
    5: ("I16", 1, 2),
    6: ("U32", 1, 4),
    7: ("I32", 1, 4),
    8: ("U64", 1, 8),
    9: ("I64", 1, 8),
    10: ("F16", 1, 2),
    11: ("BF16", 1, 2),
    12: ("F32", 1, 4),
    13: ("F64", 1, 8),
    14: ("C64", 1, 8),
    15: ("F8_E4M3", 1, 1),
    16: ("F8_E5M2", 1, 1),
    17: ("F8_E8M0", 1, 1),
    18: ("F8_E4M3FNUZ", 1, 1),
    19: ("F8_E5M2FNUZ", 1, 1),
    20: ("F4", 2, 1),
    21: ("F6_E2M3", 4, 3),
    22: ("F6_E3M2", 4, 3),
    32: ("Q4_0", 32, 18),
    33: ("Q4_1", 32, 20),
    34: ("Q5_0", 32, 22),
    35: ("Q5_1", 32, 24),
    36: ("Q8_0", 32, 34),
    37: ("Q8_1", 32, 36),
    38: ("Q2_K", 256, 84),
    39: ("Q3_K", 256, 110),
    40: ("Q4_K", 256, 144),
    41: ("Q5_K", 256, 176),
    42: ("Q6_K", 256, 210),
    43: ("Q8_K", 256, 292),
    44: ("IQ2_XXS", 256, 66),
    45: ("IQ2_XS", 256, 74),
    46: ("IQ3_XXS", 256, 98),
    47: ("IQ1_S", 256, 50),
    48: ("IQ4_NL", 32, 18),
    49: ("IQ3_S", 256, 110),
    50: ("IQ2_S", 256, 82),
    51: ("IQ4_XS", 256, 136),
    52: ("IQ1_M", 256, 56),
    53: ("TQ1_0", 256, 54),
    54: ("TQ2_0", 256, 66),
    55: ("MXFP4", 32, 17),
    56: ("NVFP4", 64, 36),
    57: ("Q1_0", 128, 18),
}


# ---- 3. Checksum ----


def checksum(data: bytes) -> int:
    """64 bits of any number of bytes."""
    padded = data + bytes(-len(data) % 256)
    lanes = [0] * 64
    for i in range(len(padded) // 4):
        x = lanes[i % 64] ^ int.from_bytes(padded[4 * i : 4 * i + 4], "little")
        rotated = (x << 16 | x >> 16) & 0xFFFFFFFF
        lanes[i % 64] = rotated * 0x9E3779B1 & 0xFFFFFFFF
    prime, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    total = len(data) * prime & mask
    for i in range(32):
        total = (total ^ (lanes[2 * i] | lanes[2 * i + 1] << 32)) * prime & mask
        total ^= total >> 29
    return total


# ---- 4. Blocks ----

FIELDS, SPARSE, ROWS = 2, 5, 6


def decode_block(
    coded: bytes,
    raw_len: int,
    shared: SharedTables | None,
    first: int,
    base: bytes | None = None,
) -> bytes:
    """Decodes one block; `first` is the place of its first raw byte in the frame."""
    r = Reader(coded)
    kind = r.u8()
    if kind == 0:
        raw = r.rest()
        require(len(raw) == raw_len, f"a stored block of {len(raw)} bytes")
    elif kind == 1:
        raw = decode_constant(r, raw_len)
    elif kind == FIELDS:
        raw = decode_fields(r, raw_len, shared, first, None)
    elif kind == 3:
        raw = decode_planes(r, raw_len)
    elif kind == 4:
        raw = decode_palette(r, raw_len)
    elif kind == SPARSE:
        raw = decode_sparse(r, raw_len)
    elif kind == ROWS:
        raw = decode_rows(r, raw_len, shared, first)
    elif kind in (8, 9, 10):
        from reference_delta import decode_against_base

        raw = decode_against_base(kind, r, raw_len, base)
    elif kind == 11:
        from reference_prediction import decode_predicted

        raw = decode_predicted(r, raw_len, shared, first, base)
    else:
        raise Unsupported(f"block kind {kind}")
    r.finish("the block")
    return raw


def read_width(r: Reader) -> int:
    """Width of the elements of sections 4.5 to 4.7."""
    width = r.u8()
    require(width in (1, 2, 4, 8), f"elements of {width} bytes")
    return width


def decode_constant(r: Reader, raw_len: int) -> bytes:
    """Section 4.2."""
    pattern = r.rest()
    require(len(pattern) in (1, 2, 4, 8), f"a pattern of {len(pattern)} bytes")
    half = len(pattern) // 2
    require(
        len(pattern) < raw_len and pattern[:half] != pattern[half:],
        "a pattern that is not the shortest",
    )
    return (pattern * (raw_len // len(pattern) + 1))[:raw_len]


def decode_planes(r: Reader, raw_len: int) -> bytes:
    """Section 4.4."""
    width = r.u8()
    if width == 0:
        low, high = decode_stream(r, raw_len), decode_stream(r, raw_len)
        require(max(low + high, default=0) <= 15, "a nibble above 15")
        return bytes(a | b << 4 for a, b in zip(low, high, strict=True))
    if width > 16:
        run_lens = r.take(r.u8())
        require(0 not in run_lens and sum(run_lens) == width, "runs that are no element")
    else:
        run_lens = bytes([1] * width)
    n = raw_len // width
    runs = [(length, decode_stream(r, n * length)) for length in run_lens]
    elements = (
        run[i * length : (i + 1) * length] for i in range(n) for length, run in runs
    )
    return b"".join(elements) + r.take(raw_len % width)


def decode_palette(r: Reader, raw_len: int) -> bytes:
    """Section 4.5."""
    width = read_width(r)
    entries = [r.take(width) for _ in range(r.u8() + 1)]
    values = [int.from_bytes(entry, "little") for entry in entries]
    require(
        all(a < b for a, b in pairwise(values)),
        "entries that do not ascend",
    )
    numbers = decode_stream(r, raw_len // width)
    require(max(numbers, default=0) < len(entries), "a number beyond the last entry")
    return b"".join(entries[i] for i in numbers) + r.take(raw_len % width)


def decode_sparse(r: Reader, raw_len: int) -> bytes:
    """Section 4.6."""
    width = read_width(r)
    n = raw_len // width
    n_kept = r.u32()
    require(n_kept <= n, f"{n_kept} elements kept of {n}")
    masks = decode_stream(r, ceil_div(n, 4))
    bits = [mask >> i & 1 for mask in masks for i in range(4)]
    require(
        max(masks, default=0) <= 15 and not any(bits[n:]),
        "mask bits without an element",
    )
    require(sum(bits) == n_kept, "masks that do not count n_kept")
    inner = r.take(r.u32())
    require(
        inner[:1] == b"" or inner[0] not in (SPARSE, ROWS, 8, 9, 10, 11), "kind of the inner block"
    )
    kept = Reader(decode_block(inner, n_kept * width, None, 0))
    elements = [kept.take(width) if bit else bytes(width) for bit in bits[:n]]
    require(sum(any(element) for element in elements) == n_kept, "a zero that is kept")
    return b"".join(elements) + r.take(raw_len % width)


def decode_rows(
    r: Reader, raw_len: int, shared: SharedTables | None, first: int
) -> bytes:
    """Section 4.7."""
    width = read_width(r)
    row_bytes = r.u32() * width
    require(
        row_bytes > 0 and raw_len % row_bytes == 0, "rows that do not divide the block"
    )
    require(first % row_bytes == 0, "a block that does not start at a row")
    n_rows, first_row = raw_len // row_bytes, first // row_bytes
    require(first_row + n_rows <= 2**32, "a row number of 2^32 or more")
    masks = decode_stream(r, ceil_div(n_rows, 4))
    bits = [mask >> i & 1 for mask in masks for i in range(4)]
    require(
        max(masks, default=0) <= 15 and not any(bits[n_rows:]),
        "mask bits without a row",
    )
    part_of_row = bits[:n_rows]
    require(set(part_of_row) == {0, 1}, "a part without rows")
    parts = []
    for part in range(2):
        coded = Reader(r.take(r.u32()))
        require(coded.u8() == FIELDS, "a part that is not of kind 2")
        rows = [first_row + i for i in range(n_rows) if part_of_row[i] == part]
        parts.append(
            Reader(decode_fields(coded, len(rows) * row_bytes, shared, 0, rows))
        )
        coded.finish("the part")
    return b"".join(parts[part].take(row_bytes) for part in part_of_row)


# ---- 5. Bit fields ----


@dataclass
class Group:
    """Section 5.2: bits of an element from `low` on, and perhaps its sign."""

    low: int
    n_bits: int
    holds_sign: bool = False

    def pieces(self) -> Iterator[int]:
        """Widths of the pieces, low bits first."""
        left = self.n_bits + self.holds_sign
        for width in (8, 4, 2, 1):
            while left >= width:
                yield width
                left -= width


class Fields:
    """Section 5.1: the header of a block of bit fields, behind its kind."""

    def __init__(self, r: Reader) -> None:
        flags = r.u8()
        if flags & 64:
            raise Unsupported(f"flags of bit fields {flags:#04x}")
        self.width = 1 << (flags & 3)
        self.bits = 8 * self.width
        self.sign = bool(flags & 4)
        self.flip = bool(flags & 8)
        self.packed = bool(flags & 16)
        self.coded_sign = bool(flags & 32)
        self.coded_low = bool(flags & 128)
        self.mantissa, self.joint, self.dead = r.u8(), r.u8(), r.u8()
        self.base = r.number(2)
        require(self.mantissa + self.sign < self.bits, "fields do not fit the element")
        require(
            self.joint + self.dead <= self.mantissa,
            "joint and dead exceed the mantissa",
        )
        self.top_shift = self.mantissa - self.joint
        self.top_bits = self.bits - self.sign - self.top_shift
        self.kept = self.top_shift - self.dead
        self.raw_sign = self.sign and not self.coded_sign
        require(self.sign or not self.coded_sign, "CODED_SIGN without SIGN")
        require(
            not self.coded_low or (self.dead > 0 and self.dead % 8 == 0),
            "CODED_LOW of bits that are no bytes",
        )
        require(not (self.sign and self.flip), "FLIP with SIGN")
        require(
            self.base == 0 or self.top_bits > 8, "a base with a top field of a byte"
        )
        require(self.base >> self.top_bits == 0, "a base beyond the top field")
        require(self.top_bits <= 16, "a top field of more than 16 bits")

    def check_packed(self, n: int) -> None:
        """Where section 5.4 defines PACKED."""
        layout = (self.width, self.mantissa)
        if layout == (4, 23):
            defined = self.dead <= 16
        else:
            defined = layout in ((2, 7), (2, 10)) and self.dead == 0
        defined = defined and n % 32 == 0 and self.joint == 0
        defined = defined and (self.sign or layout == (2, 10))
        defined = defined and not self.coded_sign and not self.flip
        require(defined, "PACKED is not defined here")

    def groups(self) -> list[Group]:
        """Section 5.2."""
        groups = []
        if self.kept > 0:
            for byte in range(self.dead // 8, (self.top_shift - 1) // 8 + 1):
                low, high = max(self.dead, 8 * byte), min(self.top_shift, 8 * byte + 8)
                groups.append(Group(low, high - low))
        if self.raw_sign:
            if not groups or groups[-1].n_bits == 8:
                groups.append(Group(0, 0))
            groups[-1].holds_sign = True
        return groups

    def element_of(self, q: int) -> int:
        """Section 5.4: the number of the element at position `q` of the plane."""
        lane = q % 32
        if not self.packed:
            return q
        if self.width == 2:
            return q - lane + (lane & 7) + 2 * (lane & 8) + (lane & 16) // 2
        return q - lane + 8 * ((lane & 15) // 4) + (lane & 3) + 4 * (lane // 16)


def read_rest(r: Reader, n: int, groups: list[Group]) -> list[list[int]]:
    """Section 5.3: the value of each group at each place."""
    values = [[0] * n for _ in groups]
    for tile in range(0, n, 256):
        places = min(256, n - tile)
        n_vectors = ceil_div(places, 32)
        for g, group in enumerate(groups):
            shift = 0
            for width in group.pieces():
                k = 8 // width
                piece = r.take(32 * ceil_div(n_vectors, k))
                for p in range(places):
                    vector, lane = divmod(p, 32)
                    bits = piece[32 * (vector // k) + lane] >> width * (vector % k)
                    values[g][tile + p] |= (bits & (1 << width) - 1) << shift
                shift += width
    return values


def decode_fields(
    r: Reader,
    raw_len: int,
    shared: SharedTables | None,
    first: int,
    rows: list[int] | None,
) -> bytes:
    """Section 5; `rows` are the row numbers of a part of a rows block, else None."""
    f = Fields(r)
    n = raw_len // f.width
    if f.packed:
        f.check_packed(n)
    if rows is None and shared is not None:
        rows = shared.rows_of_block(n, f.width, first)
    matrix = None if shared is None or rows is None else Matrix(shared, rows, n)

    groups = f.groups()
    rest = read_rest(r, n, groups)
    plane, elements_in_order = decode_symbols(r, n, f, matrix)
    elements = [0] * n
    sign_bit = 1 << f.bits - 1
    for q, x in enumerate(plane):
        e = (x + f.base) % (1 << f.top_bits) << f.top_shift
        for group, values in zip(groups, rest, strict=True):
            e |= values[q] % (1 << group.n_bits) << group.low
            if group.holds_sign and values[q] >> group.n_bits:
                e |= sign_bit
        elements[f.element_of(q)] = e

    # FLIP is applied last, so that the escapes need not undo it.
    mask = (1 << f.top_bits) - 1 << f.top_shift
    for position, top in read_escapes(r, n, f.top_bits):
        i = elements_in_order[position]
        elements[i] = elements[i] & ~mask | top << f.top_shift
    if f.coded_sign:
        for i in decode_signs(r, matrix):
            elements[i] |= sign_bit
    if f.coded_low:
        for j in range(f.dead // 8):
            for i, byte in enumerate(decode_stream(r, n)):
                elements[i] |= byte << 8 * j
    if f.flip:
        elements = [e ^ sign_bit for e in elements]
    raw = b"".join(e.to_bytes(f.width, "little") for e in elements)
    return raw + r.take(raw_len % f.width)


# ---- 6. Symbols ----


def decode_symbols(
    r: Reader, n: int, f: Fields, matrix: Matrix | None
) -> tuple[Sequence[int], Sequence[int]]:
    """The plane, and the element that each position of an escape stands for."""
    coder = r.u8()
    if coder > 7 or coder == 6:
        raise Unsupported(f"coder {coder} of symbols")
    if coder in (0, 1, 3, 7):
        if coder == 0:
            plane = bytes([r.u8()]) * n
        elif coder == 1:
            table8 = Rans8Table(r.u8(), r.take(16))
            plane = decode_rans8(r, read_n_streams(r), n, lambda _: table8)
        elif coder == 7:
            values = r.take(16)
            table8 = Rans8Table(0, r.take(16))
            symbols = decode_rans8(r, read_n_streams(r), n, lambda _: table8)
            plane = bytes(values[symbol] for symbol in symbols)
        else:
            table12 = Rans12Table(r)
            plane = decode_rans12(Reader(r.take(r.u32())), n, lambda _: table12)
        return plane, [f.element_of(q) for q in range(n)]

    require(not f.packed, "PACKED with a coder that uses shared tables")
    needed = {2: RANS8, 4: RANS12, 5: CONTEXTS_ONLY}[coder]
    if matrix is None or matrix.shared.symbols != needed:
        raise Corrupt(f"coder {coder} of symbols without its shared tables")
    shared = matrix.shared
    assert shared.symbol_contexts is not None
    buckets = matrix.buckets(shared.symbol_contexts)
    sizes = [len(bucket) for bucket in buckets]
    if coder == 4:
        used = contexts_of_groups(sizes, 64)
        tables12 = shared.tables12
        symbols = decode_rans12(Reader(r.take(r.u32())), n, lambda g: tables12[used[g]])
    else:
        n_streams = read_n_streams(r)
        used = contexts_of_groups(sizes, 32 * n_streams)
        tables8 = dict(enumerate(shared.tables8))
        if coder == 5:
            tables8 = {c: Rans8Table(r.u8(), r.take(16)) for c in sorted(set(used))}
        symbols = decode_rans8(r, n_streams, n, lambda g: tables8[used[g]])
    elements_in_order = list(chain.from_iterable(buckets))
    placed = bytearray(n)
    for i, symbol in zip(elements_in_order, symbols, strict=True):
        placed[i] = symbol
    return placed, elements_in_order


def read_escapes(r: Reader, n: int, top_bits: int) -> list[tuple[int, int]]:
    """Section 6.2: positions and top fields."""
    counts = [r.u32() for _ in range(0, n, 65536)]
    require(sum(counts) <= n, "more escapes than elements")
    positions = [
        65536 * i + r.number(2) for i, count in enumerate(counts) for _ in range(count)
    ]
    require(max(positions, default=-1) < n, "an escape behind the last element")
    require(
        all(a < b for a, b in pairwise(positions)),
        "escapes that do not ascend",
    )
    tops = [r.number(1 if top_bits <= 8 else 2) for _ in positions]
    require(max(tops, default=0) >> top_bits == 0, "an escape beyond the top field")
    return list(zip(positions, tops, strict=True))


# ---- 7. Shared tables ----

RANS8, RANS12, CONTEXTS_ONLY = 1, 2, 3
MAX_ROWS = 1048576


class Contexts:
    """Section 7.1: classes of rows and columns; each pair is a context."""

    def __init__(self, r: Reader) -> None:
        n_rows = r.u32()
        require(n_rows <= MAX_ROWS, f"{n_rows} rows")
        self.row_classes = decode_stream(r, n_rows)
        n_columns = r.u32()
        require(1 <= n_columns <= MAX_ROWS, f"{n_columns} columns")
        self.column_classes = decode_stream(r, n_columns)
        require(max(self.row_classes + self.column_classes) <= 15, "a class above 15")
        self.n_column_classes = max(self.column_classes) + 1
        self.count = (max(self.row_classes, default=0) + 1) * self.n_column_classes


@dataclass
class SharedTables:
    """Section 7.1."""

    symbols: int
    symbol_contexts: Contexts | None
    tables8: list[Rans8Table]
    tables12: list[Rans12Table]
    sign_contexts: Contexts | None
    sign_tables: list[Rans8Table]
    prediction: Prediction | None = None

    def rows_of_block(self, n: int, width: int, first: int) -> list[int] | None:
        """Section 7.2: row numbers of a block, None if it does not hold whole rows."""
        contexts = self.symbol_contexts or self.sign_contexts
        if contexts is None:
            return None
        n_columns = len(contexts.column_classes)
        if n % n_columns != 0 or first % (n_columns * width) != 0:
            return None
        first_row = first // (n_columns * width)
        return list(range(first_row, first_row + n // n_columns))


def read_shared_tables(r: Reader) -> SharedTables:
    """Reads section 7.1, all of it."""
    flags = r.u8()
    if flags >> 4:
        raise Unsupported(f"flags of shared tables {flags:#04x}")
    require(flags != 0, "shared tables of nothing")
    shared = SharedTables(flags & 3, None, [], [], None, [])
    if shared.symbols != 0:
        shared.symbol_contexts = Contexts(r)
        for _ in range(shared.symbol_contexts.count):
            if shared.symbols == RANS8:
                shared.tables8.append(Rans8Table(r.u8(), r.take(16)))
            elif shared.symbols == RANS12:
                shared.tables12.append(Rans12Table(r))
    if flags & 4:
        shared.sign_contexts = Contexts(r)
        shared.sign_tables = [
            Rans8Table(0, r.take(16)) for _ in range(shared.sign_contexts.count)
        ]
    if flags & 8:
        from reference_prediction import read_prediction

        shared.prediction = read_prediction(r)
    r.finish("the shared tables")
    return shared


@dataclass
class Matrix:
    """A block that holds whole rows, with the tables that it may use."""

    shared: SharedTables
    rows: list[int]
    n: int

    def buckets(self, contexts: Contexts) -> list[list[int]]:
        """Section 7.2: the numbers of the elements in each context's bucket."""
        n_columns = len(contexts.column_classes)
        require(
            len(self.rows) * n_columns == self.n,
            "a block that does not hold whole rows",
        )
        require(
            max(self.rows, default=-1) < len(contexts.row_classes),
            "a row without a class",
        )
        buckets: list[list[int]] = [[] for _ in range(contexts.count)]
        for i, row in enumerate(self.rows):
            base = contexts.row_classes[row] * contexts.n_column_classes
            for column, column_class in enumerate(contexts.column_classes):
                buckets[base + column_class].append(i * n_columns + column)
        return buckets


def contexts_of_groups(sizes: list[int], group_len: int) -> list[int]:
    """Section 7.3: for each group the context whose bucket holds its first position."""
    ends = list(accumulate(sizes))
    return [bisect_right(ends, q) for q in range(0, ends[-1], group_len)]


def decode_signs(r: Reader, matrix: Matrix | None) -> Iterator[int]:
    """Section 7.4: the numbers of the elements whose sign is 1."""
    if matrix is None or matrix.shared.sign_contexts is None:
        raise Corrupt("coded signs without their shared tables")
    buckets = matrix.buckets(matrix.shared.sign_contexts)
    fours = [bucket[i : i + 4] for bucket in buckets for i in range(0, len(bucket), 4)]
    n_streams = read_n_streams(r)
    used = contexts_of_groups(
        [ceil_div(len(bucket), 4) for bucket in buckets], 32 * n_streams
    )
    tables = matrix.shared.sign_tables
    symbols = decode_rans8(r, n_streams, len(fours), lambda g: tables[used[g]])
    for four, symbol in zip(fours, symbols, strict=True):
        for bit, i in enumerate(four):
            if symbol >> bit & 1:
                yield i


# ---- 8. Streams ----


def decode_stream(r: Reader, n: int) -> bytes:
    """Decodes a stream of `n` bytes."""
    coder = r.u8()
    if coder > 9 or coder == 8:
        raise Unsupported(f"coder {coder} of streams")
    if coder == 1:
        return bytes([r.u8()]) * n
    coded = Reader(r.take(r.u32()))
    if coder == 0:
        out = coded.rest()
    elif coder == 2:
        table8 = Rans8Table(coded.u8(), coded.take(16))
        out = decode_rans8(coded, read_n_streams(coded), n, lambda _: table8)
    elif coder == 3:
        out = decode_huffman(coded, n)
    elif coder == 4:
        table12 = Rans12Table(coded)
        out = decode_rans12(coded, n, lambda _: table12)
    elif coder == 5:
        out = decode_zstd(coded.rest(), n)
    elif coder == 6:
        out = decode_lz4(coded.rest(), n)
    elif coder == 7:
        out = decode_brotli(coded.rest())
    else:
        out = decode_zstd(coded.rest(), n, METADATA_ID)
    coded.finish("the stream")
    require(len(out) == n, f"a stream of {len(out)} bytes in place of {n}")
    return out


# ---- 9. rANS8 ----


class Rans8Table:
    """Section 9.1: offset, frequencies, and the alias table that follows from them."""

    def __init__(self, offset: int, frequencies: bytes) -> None:
        require(sum(frequencies) == 256, "frequencies that do not sum to 256")
        self.offset = offset
        self.frequencies = frequencies
        left = list(frequencies)
        divider = [16] * 16
        alias = list(range(16))
        small = [s for s in range(16) if frequencies[s] < 16]
        large = [s for s in range(16) if frequencies[s] >= 16]
        while small and large:
            p, r = small.pop(), large[-1]
            divider[p] = left[p]
            alias[p] = r
            left[r] -= 16 - left[p]
            if left[r] < 16:
                small.append(large.pop())
        # Symbol and rank of each slot.
        self.lookup: list[tuple[int, int]] = []
        next_rank = list(divider)
        for b in range(16):
            self.lookup += [(b, o) for o in range(divider[b])]
            first_rank = next_rank[alias[b]]
            self.lookup += [(alias[b], first_rank + o) for o in range(16 - divider[b])]
            next_rank[alias[b]] += 16 - divider[b]


def read_n_streams(r: Reader) -> int:
    """The field `n_streams`."""
    n_streams = r.u8()
    require(n_streams in (1, 4), f"{n_streams} streams")
    return n_streams


def decode_rans8(
    r: Reader, n_streams: int, n: int, table_of: Callable[[int], Rans8Table]
) -> bytes:
    """Section 9.2: `n` bytes, offset plus symbol, each group by its own table."""
    states = []
    for _ in range(n_streams):
        high, low = r.take(32), r.take(32)
        require(min(high) > 0, "a state below 256")
        states.append([256 * h + lo for h, lo in zip(high, low, strict=True)])
    stream_lens = [r.u32() for _ in range(n_streams)]
    streams = [Reader(r.take(stream_len)) for stream_len in stream_lens]

    out = bytearray()
    for group in range(ceil_div(n, 32 * n_streams)):
        table = table_of(group)
        for lanes, stream in zip(states, streams, strict=True):
            for lane in range(32):
                x = lanes[lane]
                symbol, rank = table.lookup[x % 256]
                x = table.frequencies[symbol] * (x // 256) + rank
                if x < 256:
                    require(stream.left() > 0, "a stream of rANS8 that ends early")
                    x = 256 * x + stream.u8()
                lanes[lane] = x
                out.append((table.offset + symbol) % 256)
    require(
        all(x == 256 for lanes in states for x in lanes), "states of rANS8 at the end"
    )
    for stream in streams:
        stream.finish("a stream of rANS8")
    return bytes(out[:n])


# ---- 10. rANS12 ----


class BitReader:
    """Takes bits from the lowest of each byte up."""

    def __init__(self, r: Reader) -> None:
        self.r = r
        self.byte = 0
        self.n_left = 0

    def take(self, n_bits: int) -> int:
        """The next bits, the first taken being the lowest."""
        value = 0
        for i in range(n_bits):
            if self.n_left == 0:
                self.byte, self.n_left = self.r.u8(), 8
            value |= (self.byte & 1) << i
            self.byte >>= 1
            self.n_left -= 1
        return value

    def finish(self, what: str) -> None:
        """The rest of the last byte is zero."""
        require(self.byte == 0, f"fill bits of {what} that are not zero")


class Rans12Table:
    """Section 10.1."""

    def __init__(self, r: Reader) -> None:
        first, last, absorber = r.u8(), r.u8(), r.u8()
        require(first <= absorber <= last, "an absorber outside of first to last")
        self.frequencies: list[int] = [0] * 256
        bits = BitReader(r)
        for symbol in range(first, last + 1):
            if symbol != absorber:
                self.frequencies[symbol] = self.read_cell(bits)
        bits.finish("a table")
        self.frequencies[absorber] = 4096 - sum(self.frequencies)
        require(
            self.frequencies[absorber] > 0,
            "frequencies that leave the absorber nothing",
        )
        require(self.frequencies[first] > 0, "no frequency of first")
        require(self.frequencies[last] > 0, "no frequency of last")
        self.start = list(accumulate(self.frequencies, initial=0))
        self.symbol_of_slot = [
            s for s, f in enumerate(self.frequencies) for _ in range(f)
        ]

    @staticmethod
    def read_cell(bits: BitReader) -> int:
        """One frequency."""
        length = bits.take(4)
        require(length <= 12, f"a cell with L = {length}")
        if length == 0:
            return 0
        f = min(length, 5) - 1
        return ((1 << f) + bits.take(f)) << max(length - 5, 0)


def decode_rans12(r: Reader, n: int, table_of: Callable[[int], Rans12Table]) -> bytes:
    """Section 10.2: `n` symbols from all bytes of the reader."""
    states = [r.u32() for _ in range(64)]
    require(min(states) >= 65536, "a state below 65536")
    out = bytearray()
    for group in range(ceil_div(n, 64)):
        table = table_of(group)
        for lane in range(64):
            x = states[lane]
            slot = x % 4096
            symbol = table.symbol_of_slot[slot]
            x = table.frequencies[symbol] * (x // 4096) + slot - table.start[symbol]
            if x < 65536:
                x = 65536 * x + r.number(2)
            states[lane] = x
            out.append(symbol)
    require(all(x == 65536 for x in states), "states of rANS12 at the end")
    r.finish("the words of rANS12")
    return bytes(out[:n])


# ---- 11. Huffman ----


def decode_huffman(r: Reader, n: int) -> bytes:
    """`n` symbols from all bytes of the reader."""
    if n == 0:
        return b""
    first, last = r.u8(), r.u8()
    require(first <= last, "first above last")
    if first == last:
        return bytes([first]) * n
    codes = canonical_codes(first, read_code_lengths(r, last - first + 1))
    if n < 1024:
        return decode_bit_stream(r.rest(), n, codes, is_last=True)
    lens = [r.u32() for _ in range(3)]
    streams = [r.take(length) for length in lens] + [r.rest()]
    quarter = ceil_div(n, 4)
    counts = [quarter, quarter, quarter, n - 3 * quarter]
    parts = zip(streams, counts, strict=True)
    return b"".join(
        decode_bit_stream(s, c, codes, i == 3) for i, (s, c) in enumerate(parts)
    )


def read_code_lengths(r: Reader, count: int) -> list[int]:
    """Step 3."""
    nibbles = BitReader(r)
    lengths: list[int] = []
    while len(lengths) < count:
        token = nibbles.take(4)
        if token < 12:
            lengths.append(token)
            continue
        run = 3 + nibbles.take(4) if token in (12, 14) else 19 + nibbles.take(8)
        before = lengths[-1] if lengths else 0
        lengths += [before if token >= 14 else 0] * run
    require(len(lengths) == count, "a run that passes last")
    nibbles.finish("the code lengths")
    require(lengths[0] > 0 and lengths[-1] > 0, "first or last without a code")
    require(
        sum(2 ** (11 - length) for length in lengths if length) == 2048,
        "an incomplete code",
    )
    return lengths


def canonical_codes(first: int, lengths: list[int]) -> dict[tuple[int, int], int]:
    """Step 4: symbols by length and code."""
    codes: dict[tuple[int, int], int] = {}
    code = 0
    for length in range(1, 12):
        code <<= 1
        for i, symbol_length in enumerate(lengths):
            if symbol_length == length:
                codes[length, code] = first + i
                code += 1
    return codes


def decode_bit_stream(
    data: bytes, n: int, codes: dict[tuple[int, int], int], is_last: bool
) -> bytes:
    """Step 6."""
    bits = BitReader(Reader(data))
    out = bytearray()
    try:
        for _ in range(n):
            length, code = 1, bits.take(1)
            while (length, code) not in codes:
                length, code = length + 1, code << 1 | bits.take(1)
            out.append(codes[length, code])
        mark = bits.take(1)
    except Truncated as early:
        if is_last:
            raise
        raise Corrupt("a bit stream that ends early") from early
    require(mark == 1, "a bit stream without its mark")
    bits.finish("a bit stream")
    bits.r.finish("a bit stream")
    return bytes(out)


# ---- 12. zstd, lz4, brotli ----


METADATA_ID = 62160
METADATA = Path(__file__).parents[2] / "crates/mithril-codec/src/entropy/metadata.dict"


def check_zstd_header(data: bytes, n: int, dictionary_id: int) -> None:
    """RFC 8878, section 3.1.1.1: window, dictionary and content size."""
    r = Reader(data)
    require(r.take(4) == b"\x28\xb5\x2f\xfd", "not a zstd frame")
    descriptor = r.u8()
    size_flag, single_segment = descriptor >> 6, descriptor >> 5 & 1
    if not single_segment:
        window = r.u8()
        base = 1 << (10 + (window >> 3))
        require(base + base // 8 * (window & 7) <= 2**27, "the window of a zstd frame")
    found = r.number((0, 1, 2, 4)[descriptor & 3])
    if dictionary_id and found not in (0, dictionary_id):
        raise Unsupported(f"dictionary {found} of a zstd frame")
    require(found == dictionary_id, "a zstd frame with a dictionary, or without one")
    size_len = (single_segment, 2, 4, 8)[size_flag]
    require(size_len > 0, "a zstd frame without a content size")
    size = r.number(size_len) + (256 if size_len == 2 else 0)
    require(size == n, f"a zstd frame of {size} bytes in place of {n}")


def decode_zstd(data: bytes, n: int, dictionary_id: int = 0) -> bytes:
    """One frame of RFC 8878."""
    try:
        check_zstd_header(data, n, dictionary_id)
    except Truncated as early:
        raise Corrupt("a zstd frame that ends early") from early
    try:
        from compression import zstd

        window = {zstd.DecompressionParameter.window_log_max: 27}
        dictionary = zstd.ZstdDict(METADATA.read_bytes()) if dictionary_id else None
        decompressor = zstd.ZstdDecompressor(dictionary, window)
    except ImportError:
        try:
            import zstandard as zstd
        except ImportError:
            raise ModuleMissing(
                "zstd needs the module compression.zstd or zstandard"
            ) from None
        dictionary = (
            zstd.ZstdCompressionDict(METADATA.read_bytes()) if dictionary_id else None
        )
        decompressor = zstd.ZstdDecompressor(
            dict_data=dictionary, max_window_size=2**27
        ).decompressobj()
    try:
        out = decompressor.decompress(data)
    except zstd.ZstdError as error:
        raise Corrupt(f"zstd: {error}") from error
    require(
        decompressor.eof and not decompressor.unused_data, "not exactly one zstd frame"
    )
    return bytes(out)


def decode_lz4(data: bytes, n: int) -> bytes:
    """One block of the LZ4 block format."""
    r = Reader(data)

    def length_of(nibble: int) -> int:
        length = nibble
        if nibble == 15:
            while (more := r.u8()) == 255:
                length += 255
            length += more
        return length

    out = bytearray()
    try:
        while True:
            token = r.u8()
            out += r.take(length_of(token >> 4))
            require(len(out) <= n, "an lz4 block that is too long")
            if r.left() == 0:  # The last sequence has literals only.
                return bytes(out)
            distance = r.number(2)
            require(1 <= distance <= len(out), "an lz4 match before the start")
            length = 4 + length_of(token & 15)
            require(len(out) + length <= n, "an lz4 block that is too long")
            for _ in range(length):  # Byte by byte: a match may overlap itself.
                out.append(out[-distance])
    except Truncated as early:
        raise Corrupt("an lz4 block that ends early") from early


def decode_brotli(data: bytes) -> bytes:
    """One stream of RFC 7932. Its length is only known when all is unpacked."""
    try:
        import brotli
    except ImportError:
        raise ModuleMissing("brotli needs the module brotli") from None
    try:
        return bytes(brotli.decompress(data))
    except brotli.error as error:
        raise Corrupt(f"brotli: {error}") from error


# ---- Command line ----


def check_frame(data: bytes, expected: dict[str, object]) -> str | None:
    """What is wrong with the decoding of a golden frame, None if nothing is."""
    raw = decode_frame(data).raw
    if len(raw) != expected["raw_len"]:
        return f"{len(raw)} raw bytes in place of {expected['raw_len']}"
    if hashlib.sha256(raw).hexdigest() != expected["sha256"]:
        return "another SHA-256"
    return None


def check_delta(path: Path, expected: dict[str, object]) -> str | None:
    """What is wrong with a golden frame whose base is another one, None if nothing is."""
    base = decode_frame((path.parent.parent / str(expected["base"])).read_bytes()).raw
    raw = decode_frame(path.read_bytes(), base).raw
    if hashlib.sha256(raw).hexdigest() != expected["sha256"]:
        return "another SHA-256"
    return None


def check_rejected(data: bytes, expected: dict[str, object]) -> str | None:
    """What is wrong with the refusal of a golden frame, None if nothing is.

    A reader may report any of several faults; these files have one each, so the
    kind is compared too.
    """
    try:
        decode_frame(data)
    except ModuleMissing:
        raise
    except Refused as refusal:
        kind = type(refusal).__name__.lower()
        return None if kind == expected["kind"] else f"refused as {kind}: {refusal}"
    return "not refused"


def check_golden(golden: Path) -> int:
    """Decodes every file of the index and returns the exit status."""
    from reference_container import check_container, check_rejected_container
    from reference_ecq import check_ecq

    index = json.loads((golden / "index.json").read_text(encoding="utf-8"))
    sections = [
        (golden, "frames", lambda path, want: check_frame(path.read_bytes(), want)),
        (golden / "rejected", "rejected", lambda path, want: check_rejected(path.read_bytes(), want)),
        (golden / "deltas", "deltas", check_delta),
        (golden, "containers", check_container),
        (golden / "rejected", "rejected_containers", check_rejected_container),
        (golden / "ecq", "ecq", check_ecq),
    ]
    jobs = [
        (folder / name, want, check)
        for folder, section, check in sections
        for name, want in index.get(section, {}).items()
    ]
    failed = 0
    for path, want, check in jobs:
        try:
            fault = check(path, want)
        # A crash of the decoder is not a refusal: it is a failure of this file.
        except (Refused, OSError, LookupError, ValueError, ArithmeticError) as error:
            fault = f"{type(error).__name__}: {error}"
        if fault is not None:
            failed += 1
            print(f"{path.name}: {fault}")
    print(f"{len(jobs) - failed} passed, {failed} failed")
    return 1 if failed or not jobs else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Decodes mithril frames (MTHF) and containers (MCKP), version 1."
    )
    parser.add_argument("file", nargs="?", type=Path, help="frame or container")
    parser.add_argument(
        "-o", "--output", type=Path, help="file for the raw bytes; else stdout"
    )
    parser.add_argument(
        "--check", type=Path, metavar="GOLDEN_DIR", help="check all golden files"
    )
    parser.add_argument("--base", type=Path, help="raw bytes of the base of a frame")
    options = parser.parse_args()
    if (options.file is None) == (options.check is None):
        parser.error("give either FILE or --check GOLDEN_DIR")
    if options.check is not None:
        return check_golden(options.check)
    data = options.file.read_bytes()
    try:
        if data.startswith(b"MCKP"):
            from reference_container import BaseMissing, open_container, restore

            try:
                raw = restore(open_container(data))
            except BaseMissing as missing:
                print(f"{options.file}: {missing}", file=sys.stderr)
                return 1
        else:
            base = options.base.read_bytes() if options.base is not None else None
            raw = decode_frame(data, base).raw
    except Refused as refusal:
        print(f"{options.file}: {type(refusal).__name__}: {refusal}", file=sys.stderr)
        return 1
    if options.output is not None:
        options.output.write_bytes(raw)
    else:
        sys.stdout.buffer.write(raw)
    return 0


if __name__ == "__main__":
    # The module, not this script, so that both files share one set of exceptions.
    import reference_decoder

    sys.exit(reference_decoder.main())
