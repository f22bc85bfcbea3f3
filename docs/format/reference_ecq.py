"""Reference reader of entropy-coded quantised weights, written from ecq.md.

It follows ecq.md section by section, takes frames, checksums and the tables of
rANS8 from reference_decoder.py, and prefers clarity to speed.
reference_decoder.py is the program; this file is the part that knows these
safetensors files. The digest of a source is compared if the module `blake3` is
there.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reference_decoder import (
    DTYPES,
    Corrupt,
    Rans8Table,
    Reader,
    Truncated,
    Unsupported,
    ceil_div,
    check_digest,
    checksum,
    decode_frame,
    require,
    tensor_len,
)

MAGIC = b"MECQ"
HEADER_LEN = 64
UNIT = 4
AFFINE, MXFP4, MXFP8, NVFP4, LEVELS, BF16, CROSS_LEVELS = range(1, 8)
DTYPE_IDS = {name: number for number, (name, _, _) in DTYPES.items()}
# Bits of the codes of GGUF's blocks, by the number of their dtype.
GGUF_BITS = {32: 4, 33: 4, 34: 5, 35: 5, 36: 8, 40: 4, 41: 5, 42: 6, 48: 4, 55: 4, 56: 4}


# ---- The file ----


@dataclass
class Tensor:
    """An entry of a header, and its bytes where they are known."""

    dtype: str
    shape: list[int]
    start: int
    end: int


def safetensors_header(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, by where they lie in it, and its metadata."""
    r = Reader(data)
    header_len = r.number(8)
    header = json.loads(r.take(header_len))
    metadata = header.pop("__metadata__", None) or {}
    first = 8 + header_len
    tensors = {
        name: Tensor(entry["dtype"], entry["shape"], *(first + at for at in entry["data_offsets"]))
        for name, entry in header.items()
    }
    return tensors, metadata


class EcqFile:
    """A file with its matrices."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.tensors, metadata = safetensors_header(data)
        require({"quantization", "ecq"} <= metadata.keys(), "not entropy-coded")
        about = json.loads(metadata["ecq"])
        if about["version"] != 1:
            raise Unsupported(f"version {about['version']}")
        self.source = about["source"]
        suffix = ".compressed"
        self.matrices = sorted(name.removesuffix(suffix) for name in self.tensors if name.endswith(suffix))

    def read(self, name: str) -> bytes:
        tensor = self.tensors[name]
        return self.data[tensor.start : tensor.end]

    def get(self, name: str) -> bytes:
        """A part that a matrix may lack."""
        return self.read(name) if name in self.tensors else b""

    def frame(self, name: str) -> bytes:
        """The raw bytes of a tensor that holds a frame."""
        return decode_frame(self.read(name)).raw


# ---- Tensors of a matrix ----


@dataclass
class Escape:
    """A weight that is kept beside the codes."""

    row: int
    column: int
    value: float


@dataclass
class Matrix:
    """The codes of a matrix by row, and what its header says."""

    layout: int
    bits: int
    rows: int
    columns: int
    group_size: int
    scale_dtype: int
    codes: list[list[int]]
    escapes: list[Escape]


def low_bits_of(layout: int, bits: int) -> int:
    """Bits below a symbol."""
    return 8 if layout == BF16 else max(bits - 4, 0)


def unpack_low_bits(n: int, plane: bytes, count: int) -> list[int]:
    """Section "Blocks", low bits: `count` values, a multiple of 64."""
    if n == 0:
        return [0] * count
    values = []
    for i in range(count):
        piece, at = divmod(i, 64)
        byte = plane[8 * n * piece + at % (8 * n)]
        values.append(byte >> (n * (at // (8 * n))) & ((1 << n) - 1))
    return values


def read_matrix(file: EcqFile, name: str) -> Matrix:
    """Header, blocks and low bits of a matrix."""
    compressed, freq = file.read(f"{name}.compressed"), file.read(f"{name}.freq")
    offsets_bytes, low_plane = file.read(f"{name}.stream_offsets"), file.get(f"{name}.low_bits")
    r = Reader(compressed)
    require(r.take(4) == MAGIC, "not a matrix")
    version = r.u8()
    if version != 1:
        raise Unsupported(f"version {version} of a matrix")
    layout, bits, n_tables = r.u8(), r.u8(), r.u8()
    rows, columns, rows_per_block = r.number(8), r.number(8), r.u32()
    group_size, compressed_len = r.u32(), r.number(8)
    side_sum, low_bits, scale_dtype = r.number(8), r.u8(), r.u8()
    require(r.take(6) == bytes(6), "reserved bytes")
    require(r.number(8) == checksum(compressed[:56] + offsets_bytes + freq), "sum of a header")
    require(compressed_len == len(compressed), "compressed_len")
    if layout > CROSS_LEVELS and layout not in GGUF_BITS:
        raise Unsupported(f"layout {layout}")
    wanted = {MXFP4: 4, MXFP8: 8, NVFP4: 4, BF16: 12, **GGUF_BITS}.get(layout, bits)
    require(bits == wanted and low_bits == low_bits_of(layout, bits), "bits that do not fit the layout")
    require(low_bits in (0, 1, 2, 4, 8), "low bits")
    require(scale_dtype in (0, 10, 11, 12), "type of the scales")
    padded = 64 * ceil_div(columns, 64)
    require(rows > 0 and columns > 0 and rows * padded <= 2**34, "shape")
    require(rows_per_block > 0 and min(rows, rows_per_block) * padded <= 2**24, "rows of a block")
    require(1 <= n_tables <= 16 and len(freq) == 16 * n_tables, "number of tables")
    tables = [Rans8Table(0, freq[16 * i : 16 * i + 16]) for i in range(n_tables)]
    require(len(low_plane) == rows * padded * low_bits // 8, "length of the low bits")
    if layout in (LEVELS, BF16, CROSS_LEVELS):
        parts = ["levels", "scales", "column_scales"]
        sides = checksum(b"".join(file.get(f"{name}.{part}") for part in parts))
        require(side_sum == sides, "sum of levels and scales")
    else:
        require(side_sum == 0, "a sum of sides that there are none of")

    n_blocks = ceil_div(rows, rows_per_block)
    require(len(offsets_bytes) == 4 * (n_blocks + 1), "number of offsets")
    offsets = [UNIT * at for at in struct.unpack(f"<{n_blocks + 1}I", offsets_bytes)]
    require(offsets[0] == HEADER_LEN and offsets[-1] == len(compressed), "first or last offset")
    require(offsets == sorted(offsets), "offsets that fall")
    matrix = Matrix(layout, bits, rows, columns, group_size, scale_dtype, [], [])
    row_len = padded * low_bits // 8
    for i in range(n_blocks):
        first = i * rows_per_block
        n_rows = min(rows_per_block, rows - first)
        low = low_plane[first * row_len : (first + n_rows) * row_len]
        block = compressed[offsets[i] : offsets[i + 1]]
        symbols, escapes = read_block(block, n_rows * padded, tables, low)
        for row in range(n_rows):
            own = symbols[row * padded : (row + 1) * padded]
            below = unpack_low_bits(low_bits, low[row * row_len : (row + 1) * row_len], padded)
            codes = [symbol << low_bits | b for symbol, b in zip(own, below, strict=True)]
            matrix.codes.append(codes[:columns])
        for position, value in escapes:
            row, column = divmod(position, padded)
            require(column < columns, "an escape in the padding")
            matrix.escapes.append(Escape(first + row, column, value))
    return matrix


# ---- Blocks ----


def read_block(
    data: bytes, n: int, tables: list[Rans8Table], low: bytes
) -> tuple[list[int], list[tuple[int, float]]]:
    """The `n` symbols of a block, and its escapes."""
    r = Reader(data)
    kind, argument, n_escapes, expected = r.u8(), r.u8(), r.number(2), r.u32()
    escape_bytes = r.take(8 * n_escapes)
    if kind == 0:
        require(argument == 0, "argument of a packed block")
        symbols = unpack_low_bits(4, r.take(n // 2), n)
    elif kind == 1:
        require(argument < 16, "symbol of a constant block")
        symbols = [argument] * n
    elif kind == 2:
        require(argument < len(tables), "table of a block")
        symbols = decode_stream(r, n, tables[argument])
    else:
        raise Unsupported(f"kind {kind} of a block")
    rest = r.rest()
    require(len(rest) < UNIT and not any(rest), "padding of a block")
    total = checksum(bytes(symbols) + low + escape_bytes)
    require(expected == (total >> 32 ^ total & 0xFFFFFFFF), "sum of a block")
    escapes = list(struct.iter_unpack("<If", escape_bytes))
    positions = [position for position, _ in escapes]
    require(positions == sorted(set(positions)), "escapes that do not rise")
    require(not positions or positions[-1] < n, "an escape behind the block")
    return symbols, escapes


def decode_stream(r: Reader, n: int, table: Rans8Table) -> list[int]:
    """Kind 2: one stream of 32 lanes."""
    high, low = r.take(32), r.take(32)
    require(min(high) > 0, "a state below 256")
    states = [256 * h + lo for h, lo in zip(high, low, strict=True)]
    symbols = []
    for i in range(n):
        x = states[i % 32]
        symbol, rank = table.lookup[x % 256]
        x = table.frequencies[symbol] * (x // 256) + rank
        if x < 256:
            if r.left() == 0:
                raise Corrupt("a stream that ends early")
            x = 256 * x + r.u8()
        states[i % 32] = x
        symbols.append(symbol)
    require(all(x == 256 for x in states), "states at the end")
    return symbols


# ---- Layouts ----


def f32(value: float) -> float:
    """Rounded to an IEEE single."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def bf16s(data: bytes) -> list[float]:
    """Numbers whose two bytes are the upper ones of a single."""
    require(len(data) % 2 == 0, "bytes of bf16 numbers")
    words = struct.unpack(f"<{len(data) // 2}H", data)
    return [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words]


def plain_weights(file: EcqFile, name: str) -> list[float]:
    """Layouts 5 to 7: the weights themselves, as singles."""
    matrix = read_matrix(file, name)
    levels = file.read(f"{name}.levels")
    weights: list[float] = []
    if matrix.layout == LEVELS:
        values = struct.unpack(f"{len(levels)}b", levels)
        require(len(values) == 1 << matrix.bits, "number of levels")
        scales_bytes = file.read(f"{name}.scales")
        scales = struct.unpack(f"<{len(scales_bytes) // 4}f", scales_bytes)
        require(len(scales) in (1, matrix.rows), "number of scales")
        for row, codes in enumerate(matrix.codes):
            scale = scales[row if len(scales) > 1 else 0]
            weights += [f32(scale * values[code]) for code in codes]
    elif matrix.layout == CROSS_LEVELS:
        values = struct.unpack(f"{len(levels)}b", levels)
        require(len(values) == 1 << matrix.bits, "number of levels")
        scales, column_scales = (bf16s(file.read(f"{name}.{part}")) for part in ("scales", "column_scales"))
        require(len(scales) in (1, matrix.rows), "number of scales")
        require(len(column_scales) == matrix.columns, "number of scales of columns")
        require(all(math.isfinite(scale) for scale in scales), "a scale that is no number")
        require(all(2**-126 <= scale < math.inf for scale in column_scales), "a scale of a column")
        for row, codes in enumerate(matrix.codes):
            scale = scales[row if len(scales) > 1 else 0]
            for code, column in zip(codes, column_scales, strict=True):
                weights.append(f32(f32(scale * column) * values[code]))
    else:
        require(len(levels) == 1, "the first exponent")
        for codes in matrix.codes:
            for code in codes:
                exponent, rest = levels[0] + (code >> 8), code & 0xFF
                word = (rest & 0x80) << 8 | (exponent & 0xFF) << 7 | rest & 0x7F
                weights.append(struct.unpack("<f", struct.pack("<I", word << 16))[0])
    for escape in matrix.escapes:
        weights[escape.row * matrix.columns + escape.column] = escape.value
    return weights


def pack(bits: int, codes: list[int]) -> bytes:
    """Codes from the lowest bit of the first byte on."""
    require(bits * len(codes) % 8 == 0, "codes that do not fill bytes")
    word = 0
    out = bytearray()
    n_bits = 0
    for code in codes:
        word |= code << n_bits
        n_bits += bits
        while n_bits >= 8:
            out.append(word & 0xFF)
            word >>= 8
            n_bits -= 8
    return bytes(out)


def round_f16(value: float) -> int:
    """The bits of the nearest half, ties to even; too large is infinite."""
    try:
        return struct.unpack("<H", struct.pack("<e", value))[0]
    except OverflowError:
        return 0xFC00 if value < 0 else 0x7C00


def round_bf16(value: float) -> int:
    """The bits of the nearest bf16, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def predicted_biases(file: EcqFile, name: str, dtype: int) -> bytes:
    """Zero codes: biases from scales, zero codes and residuals."""
    width = DTYPES[dtype][2]
    scales, residuals = file.frame(f"{name}.scales"), file.frame(f"{name}.bias_residuals")
    zero_codes = file.frame(f"{name}.zero_codes")
    require(len(residuals) == len(scales) == width * (len(zero_codes) // 2), "lengths of the sides")
    top, mask = 1 << (8 * width - 1), (1 << 8 * width) - 1
    out = bytearray()
    for i in range(len(scales) // width):
        bits = int.from_bytes(scales[width * i : width * (i + 1)], "little")
        (zero_code,) = struct.unpack_from("<h", zero_codes, 2 * i)
        if dtype == 10:
            (scale,) = struct.unpack("<e", struct.pack("<H", bits))
        else:
            (scale,) = struct.unpack("<f", struct.pack("<I", bits << 16 if dtype == 11 else bits))
        predicted = 0
        try:
            product = f32(scale * zero_code)
        except OverflowError:
            product = float("inf")
        if product - product == 0:
            if dtype == 10:
                predicted = round_f16(product)
            elif dtype == 11:
                predicted = round_bf16(product)
            else:
                (predicted,) = struct.unpack("<I", struct.pack("<f", product))
        rising = predicted | top if predicted & top == 0 else ~predicted & mask
        rising = rising + int.from_bytes(residuals[width * i : width * (i + 1)], "little") & mask
        bias = ~rising & mask if rising & top == 0 else rising & ~top
        out += bias.to_bytes(width, "little")
    return bytes(out)


def nibbles(codes: list[int]) -> bytes:
    """The first half of the codes as low nibbles, the second as high ones."""
    half = len(codes) // 2
    return bytes(a & 15 | (b & 15) << 4 for a, b in zip(codes[:half], codes[half:], strict=True))


def fifth_bits(codes: list[int], n_bytes: int, place: Iterator[tuple[int, int]]) -> bytes:
    """Bit 4 of every code, in the byte and bit that `place` names."""
    out = bytearray(n_bytes)
    for code, (byte, bit) in zip(codes, place, strict=True):
        out[byte] |= (code >> 4 & 1) << bit
    return bytes(out)


def six_bit_scales(scales: bytes, minima: bytes) -> bytes:
    """Eight scales and eight minima of six bits in twelve bytes."""
    first = [scales[j] & 63 | scales[j + 4] >> 4 << 6 for j in range(4)]
    second = [minima[j] & 63 | minima[j + 4] >> 4 << 6 for j in range(4)]
    third = [scales[j + 4] & 15 | (minima[j + 4] & 15) << 4 for j in range(4)]
    return bytes(first + second + third)


def gguf_block(dtype: str, codes: list[int], side: dict[str, bytes]) -> bytes:
    """One block, in the order of its fields."""
    scales, biases = side["scales"], side.get("biases", b"")
    if dtype in ("Q4_0", "IQ4_NL", "Q4_1", "MXFP4"):
        return scales + biases + nibbles(codes)
    if dtype == "NVFP4":
        return scales + b"".join(nibbles(codes[16 * i : 16 * i + 16]) for i in range(4))
    if dtype in ("Q5_0", "Q5_1"):
        high = fifth_bits(codes, 4, ((i // 8, i % 8) for i in range(32)))
        return scales + biases + high + nibbles(codes)
    if dtype == "Q8_0":
        return scales + bytes(codes)
    if dtype in ("Q4_K", "Q5_K"):
        subs = six_bit_scales(side["sub_scales"], side["sub_biases"])
        high = b""
        if dtype == "Q5_K":
            high = fifth_bits(codes, 32, ((i % 32, i // 32) for i in range(256)))
        low = b"".join(nibbles(codes[64 * i : 64 * i + 64]) for i in range(4))
        return scales + biases + subs + high + low
    require(dtype == "Q6_K", f"no blocks of {dtype}")
    low, high = bytearray(128), bytearray(64)
    for i, code in enumerate(codes):
        half, quarter, lane = i // 128, i // 32 % 4, i % 32
        low[64 * half + 32 * (quarter % 2) + lane] |= (code & 15) << (4 * (quarter // 2))
        high[32 * half + lane] |= (code >> 4) << (2 * quarter)
    return bytes(low + high) + side["sub_scales"] + scales


# Values of a block and bytes of a value, by side.
GGUF_SIDES = {
    "scales": {"MXFP4": (1, 1), "NVFP4": (4, 1)},
    "sub_scales": {"Q6_K": (16, 1)},
}
PARTS_OF_BLOCKS = {
    "Q4_1": ("scales", "biases"),
    "Q5_1": ("scales", "biases"),
    "Q4_K": ("scales", "biases", "sub_scales", "sub_biases"),
    "Q5_K": ("scales", "biases", "sub_scales", "sub_biases"),
    "Q6_K": ("scales", "sub_scales"),
}


def gguf_blocks(file: EcqFile, name: str, matrix: Matrix) -> bytes:
    """All blocks of a matrix of GGUF."""
    dtype, per_block, _ = DTYPES[matrix.layout]
    require(matrix.columns % per_block == 0, "rows that are no whole blocks")
    codes = [code for row in matrix.codes for code in row]
    n_blocks = len(codes) // per_block
    sides = {}
    for side in PARTS_OF_BLOCKS.get(dtype, ("scales",)):
        default = (8, 1) if side.startswith("sub_") else (1, 2)
        count, width = GGUF_SIDES.get(side, {}).get(dtype, default)
        values = file.frame(f"{name}.{side}")
        require(len(values) == n_blocks * count * width, f"length of {side}")
        sides[side] = (values, count * width)
    out = []
    for i in range(n_blocks):
        own = {side: values[i * length : (i + 1) * length] for side, (values, length) in sides.items()}
        out.append(gguf_block(dtype, codes[i * per_block : (i + 1) * per_block], own))
    return b"".join(out)


def originals(file: EcqFile, name: str) -> dict[str, bytes]:
    """The tensors that a matrix restores."""
    matrix = read_matrix(file, name)
    if matrix.layout in GGUF_BITS:
        return {name: gguf_blocks(file, name, matrix)}
    require(matrix.layout <= NVFP4, "a matrix that was never a tensor of another format")
    codes = [code for row in matrix.codes for code in row]
    if matrix.layout == MXFP8:
        codes = [(code >> 4) << 3 | (code >> 3 & 1) << 7 | code & 7 for code in codes]
    packed = pack(matrix.bits, codes)
    if matrix.layout == 0:
        return {name: packed}
    tensors = {f"{name}.weight": packed, f"{name}.scales": file.frame(f"{name}.scales")}
    if f"{name}.biases" in file.tensors:
        tensors[f"{name}.biases"] = file.frame(f"{name}.biases")
    elif f"{name}.zero_codes" in file.tensors:
        tensors[f"{name}.biases"] = predicted_biases(file, name, matrix.scale_dtype)
    return tensors


# ---- The original file ----

GGUF_DTYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
GGUF_VALUE_LENS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def gguf_text(r: Reader) -> str:
    return r.take(r.number(8)).decode()


def gguf_value(r: Reader, kind: int) -> int:
    """Steps over a value; a whole number is returned."""
    if kind == 8:
        gguf_text(r)
    elif kind == 9:
        inner, count = r.u32(), r.number(8)
        for _ in range(count):
            gguf_value(r, inner)
    elif kind in GGUF_VALUE_LENS:
        return r.number(GGUF_VALUE_LENS[kind])
    else:
        raise Corrupt(f"a value of GGUF's type {kind}")
    return 0


def gguf_header(data: bytes) -> dict[str, Tensor]:
    """The tensors of a GGUF file, by where they lie in it."""
    r = Reader(data)
    require(r.take(4) == b"GGUF" and r.u32() in (2, 3), "not a GGUF file")
    n_tensors, n_values = r.number(8), r.number(8)
    alignment = 32
    for _ in range(n_values):
        key, kind = gguf_text(r), r.u32()
        value = gguf_value(r, kind)
        if key == "general.alignment":
            alignment = value
    entries = []
    for _ in range(n_tensors):
        name = gguf_text(r)
        shape = [r.number(8) for _ in range(r.u32())]
        entries.append((name, shape[::-1], GGUF_DTYPES[r.u32()], r.number(8)))
    first = ceil_div(r.at, alignment) * alignment
    return {
        name: Tensor(dtype, shape, first + at, first + at + tensor_len(shape, DTYPE_IDS[dtype]))
        for name, shape, dtype, at in entries
    }


def restore(file: EcqFile) -> bytes:
    """The file that was coded."""
    source = file.source
    glue = file.frame("ecq.source")
    if source["format"] == "gguf":
        tensors = gguf_header(glue)
    else:
        tensors, _ = safetensors_header(glue)
    found: dict[str, bytes] = {}
    for name in file.matrices:
        found |= originals(file, name)
    out = bytearray()
    rest = Reader(glue)
    for name, tensor in sorted(tensors.items(), key=lambda entry: entry[1].start):
        if name in found:
            content = found[name]
        elif f"{name}.frame" in file.tensors:
            content = file.frame(f"{name}.frame")
        else:
            content = file.read(name)
        require(len(content) == tensor.end - tensor.start, f"length of `{name}`")
        out += rest.take(tensor.start - len(out)) + content
    out += rest.rest()
    if len(out) != source["len"]:
        raise Truncated(f"{len(out)} bytes of {source['len']}")
    check_digest(bytes(out), bytes.fromhex(source["blake3"]))
    return bytes(out)


def check_ecq(path: Path, expected: dict[str, object]) -> str | None:
    """What is wrong with a golden file, None if nothing is."""
    file = EcqFile(path.read_bytes())
    if file.source is not None:
        raw = restore(file)
    else:
        weights = [weight for name in file.matrices for weight in plain_weights(file, name)]
        raw = struct.pack(f"<{len(weights)}f", *weights)
    if len(raw) != expected["raw_len"]:
        return f"{len(raw)} bytes in place of {expected['raw_len']}"
    if hashlib.sha256(raw).hexdigest() != expected["sha256"]:
        return "another SHA-256"
    return None
