"""Predicted blocks (frame.md, sections 4.11 and 7.5), for reference_decoder.py."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from reference_decoder import (
    MAX_ROWS,
    Corrupt,
    Rans12Table,
    Reader,
    SharedTables,
    Unsupported,
    ceil_div,
    decode_rans12,
    decode_stream,
    require,
)
from reference_delta import read_kept

FROM_BASE, DECAY, ROWS, COLUMNS, LOW_RANK = 4, 8, 16, 32, 64
N_CONTEXTS, N_SIZE_CONTEXTS = 53, 11


def steps_of(a: int, t: int) -> tuple[int, int]:
    """Least steps and number of kept bits of class `a`."""
    if a < 2 << t:
        return a, 0
    above = a - (2 << t)
    k = (above >> t) + 1
    return ((1 << t) + above % (1 << t)) << k, k


class LowRank:
    """Section 7.5, factors."""

    def __init__(self, r: Reader, n_rows: int, n_columns: int) -> None:
        rank = r.u8()
        require(1 <= rank <= 128, f"rank {rank}")
        self.exponent = signed16(r)
        self.shifts = r.take(rank)
        require(max(self.shifts) <= 14, "a shift above 14")
        require((n_rows + n_columns) * rank <= 8 * r.left(), "more factors than bytes")
        self.row_shifts = decode_stream(r, n_rows)
        self.column_shifts = decode_stream(r, n_columns)
        self.rows: dict[int, list[int]] = {}
        self.columns: dict[int, list[int]] = {}
        for shift in sorted(set(self.shifts)):
            members = [c for c in range(rank) if self.shifts[c] == shift]
            entries = read_entries(r, len(members) * (n_rows + n_columns))
            for at, c in enumerate(members):
                row = entries[at * n_rows :][:n_rows]
                self.rows[c] = [u << shift for u in row]
                fit = all(-32768 <= u <= 32767 for u in self.rows[c])
                require(fit, "a factor of more than 16 bits")
                start = len(members) * n_rows + at * n_columns
                self.columns[c] = entries[start : start + n_columns]

    def added(self, row: int, column: int) -> float:
        total = sum(self.rows[c][row] * self.columns[c][column] for c in self.rows)
        total = (total + 2**31) % 2**32 - 2**31
        e = self.exponent + self.row_shifts[row] + self.column_shifts[column]
        return f32(float(total)) * 2.0 ** min(max(e, -126), 96)


def read_entries(r: Reader, n: int) -> list[int]:
    symbols = decode_stream(r, n)
    require(max(symbols, default=0) <= 110, "a class of factors")
    classes = [steps_of(ceil_div(s, 2), 2) for s in symbols]
    n_bits = sum(k for _, k in classes)
    bits = int.from_bytes(r.take(ceil_div(n_bits, 8)), "little")
    require(bits >> n_bits == 0, "fill bits of factors")
    data = bits.to_bytes(ceil_div(n_bits, 8) + 4, "little")
    entries = []
    at = 0
    for s, (least, k) in zip(symbols, classes, strict=True):
        word = int.from_bytes(data[at // 8 : at // 8 + 4], "little")
        size = least | (word >> at % 8) % (1 << k)
        at += k
        require(size <= 32767, "a factor of more than 15 bits")
        entries.append(-size if s % 2 == 0 else size)
    return entries


def signed16(r: Reader) -> int:
    return (r.number(2) + 2**15) % 2**16 - 2**15


def f32(x: float) -> float:
    """The nearest F32, the even one of two; infinite beyond the largest."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return float("inf") if x > 0 else float("-inf")


def flushed(x: float) -> float:
    """Zero of the same sign in place of numbers below the normal ones."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return from_bits(bits & 1 << 31) if bits >> 23 & 255 == 0 else x


def from_bits(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


@dataclass
class Prediction:
    """Section 7.5."""

    width: int
    mantissa: int
    flags: int
    detail: int
    scale: int
    decay: float
    row_len: int
    n_rows: int
    row_scales: bytes
    column_scales: bytes
    low_rank: LowRank | None
    lasts: bytes
    tables: list[Rans12Table]

    def table_of(self, context: int) -> int:
        for table, last in enumerate(self.lasts):
            if last >= context:
                same = (last < N_SIZE_CONTEXTS) == (context < N_SIZE_CONTEXTS)
                require(same, "an element without a table")
                return table
        raise Corrupt("an element without a table")

    def predict(self, b: int, row: int, column: int) -> int:
        infinite = 255 << 7 if self.width == 2 else 255 << 23
        adjusts = self.flags & (DECAY | LOW_RANK)
        if not adjusts or b & infinite == infinite:
            return b
        shift = 32 - 8 * self.width
        x = flushed(from_bits(b << shift))
        if self.flags & DECAY:
            x = flushed(f32(x * self.decay))
        added = self.low_rank.added(row, column) if self.low_rank else 0.0
        x = flushed(f32(x + added))
        bits = struct.unpack("<I", struct.pack("<f", x))[0]
        if shift == 0 or bits >> 23 & 255 == 255:
            return bits >> shift
        return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def read_prediction(r: Reader) -> Prediction:
    flags = r.u8()
    if flags >> 7 or flags & 3 == 3:
        raise Unsupported(f"flags {flags:#04x} of a prediction")
    adjusts = bool(flags & (DECAY | LOW_RANK))
    require(not flags & DECAY or bool(flags & FROM_BASE), "a decay without a base")
    require(not adjusts or flags & 3 != 1, "arithmetic on F16")
    width, mantissa = ((2, 7), (2, 10), (4, 23))[flags & 3]
    detail, scale = r.u8(), signed16(r)
    require(detail <= 2 and -4096 <= scale <= 4096, "detail or scale")
    decay = 1.0
    if flags & DECAY:
        bits = r.u32()
        require(0 < bits >> 23 & 255 < 255, "a decay that is not normal")
        decay = from_bits(bits)
    row_len = n_rows = 0
    if flags & (ROWS | COLUMNS | LOW_RANK):
        row_len = r.u32()
        require(row_len > 0, "rows of no elements")
        require(not flags & (COLUMNS | LOW_RANK) or row_len <= MAX_ROWS, "columns")
        if flags & (ROWS | LOW_RANK):
            n_rows = r.u32()
            require(1 <= n_rows <= MAX_ROWS, f"{n_rows} rows")
    row_scales = decode_stream(r, n_rows) if flags & ROWS else b""
    column_scales = decode_stream(r, row_len) if flags & COLUMNS else b""
    low_rank = LowRank(r, n_rows, row_len) if flags & LOW_RANK else None
    n_tables = r.u8()
    lasts = r.take(n_tables)
    ascending = all(a < b for a, b in zip(lasts, lasts[1:] + bytes([N_CONTEXTS])))
    require(ascending, "contexts of tables")
    bits = 8 * width
    n_classes = (2 << detail) + ((bits - detail - 1) << detail)
    tables = []
    for last in lasts:
        table = Rans12Table(r)
        limit = 254 if last < N_SIZE_CONTEXTS else 2 * n_classes - 1
        require(not any(table.frequencies[limit:]), "a symbol that does not exist")
        tables.append(table)
    return Prediction(
        width, mantissa, flags, detail, scale, decay, row_len, n_rows,
        row_scales, column_scales, low_rank, lasts, tables,
    )  # fmt: skip


def decode_predicted(
    r: Reader, raw_len: int, shared: SharedTables | None, first: int, base: bytes | None
) -> bytes:
    """Section 4.11."""
    if shared is None or shared.prediction is None:
        raise Corrupt("a predicted block without a prediction")
    model = shared.prediction
    width, bits, n = model.width, 8 * model.width, raw_len // model.width
    numbers = [0] * n
    if model.flags & FROM_BASE:
        if base is None:
            raise Corrupt("a block that needs a base")
        numbers = [
            int.from_bytes(base[width * i : width * (i + 1)], "little") for i in range(n)
        ]
    first_row = 0
    if model.row_len:
        whole = first % (model.row_len * width) == 0 and n % model.row_len == 0
        require(whole, "a block that does not hold whole rows")
        first_row = first // (model.row_len * width)
        if model.n_rows:
            require(first_row + n // model.row_len <= model.n_rows, "a row too many")
    top = 1 << (bits - 1)
    predicted, scales, contexts = [], [], []
    for i, b in enumerate(numbers):
        row, column = divmod(i, model.row_len) if model.row_len else (0, i)
        row += first_row
        p = model.predict(b, row, column)
        q = model.scale
        q += model.row_scales[row] if model.flags & ROWS else 0
        q += model.column_scales[column] if model.flags & COLUMNS else 0
        predicted.append(p)
        scales.append(q)
        contexts.append(min(max(((p & ~top) >> (model.mantissa - 1)) - q, -8), 44) + 8)

    tables = [model.table_of(c) for c in contexts]
    buckets: list[list[int]] = [[] for _ in model.tables]
    for i, table in enumerate(tables):
        buckets[table].append(i)
    of_groups = [t for t, b in enumerate(buckets) for _ in range(ceil_div(len(b), 64))]
    coded = Reader(r.take(r.u32()))
    symbols_in_order = decode_rans12(
        coded, 64 * len(of_groups), lambda g: model.tables[of_groups[g]]
    )
    symbols = [0] * n
    at = 0
    for bucket in buckets:
        for i, s in zip(bucket, symbols_in_order[at:]):
            symbols[i] = s
        at += 64 * ceil_div(len(bucket), 64)

    lens = []
    for c, s in zip(contexts, symbols, strict=True):
        if c < N_SIZE_CONTEXTS:
            lens.append({0: 0, 1: bits}.get(s, model.mantissa - 2))
        else:
            lens.append(steps_of(ceil_div(s, 2), model.detail)[1])
    kept = read_kept(r, lens)
    out = []
    for p, q, c, s, raw in zip(predicted, scales, contexts, symbols, kept, strict=True):
        if c >= N_SIZE_CONTEXTS:
            steps = steps_of(ceil_div(s, 2), model.detail)[0] | raw
            out.append(moved(p, steps if s % 2 else -steps, bits))
        elif s < 2:
            out.append(raw if s else p)
        else:
            size = ((s - 2) // 2 - 101 + 2 * q) * 2 ** (model.mantissa - 2) + raw
            out.append(size % top | (p & top) ^ (top if s % 2 else 0))
    return b"".join(x.to_bytes(width, "little") for x in out) + r.take(raw_len % width)


def moved(p: int, step: int, bits: int) -> int:
    """The number so many steps from `p`, away from zero counted up."""
    top = 1 << (bits - 1)

    def ordered(x: int) -> int:
        return x ^ (top - 1) if x & top else x

    return ordered((ordered(p) + (-step if p & top else step)) % 2**bits)
