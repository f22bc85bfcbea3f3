"""Blocks against a base (frame.md, sections 4.8 to 4.10), for reference_decoder.py."""

from __future__ import annotations

from dataclasses import dataclass

from reference_decoder import (
    Corrupt,
    Rans8Table,
    Reader,
    Unsupported,
    ceil_div,
    decode_block,
    decode_stream,
    read_n_streams,
    require,
)

SAME, DIFFERENCE, XOR = 8, 9, 10


def decode_against_base(
    kind: int, r: Reader, raw_len: int, base: bytes | None
) -> bytes:
    """Decodes a block of these kinds; `base` is the base's bytes in its place."""
    if base is None:
        raise Corrupt("a block that needs a base")
    if kind == SAME:
        return base
    if kind == DIFFERENCE:
        return decode_difference(r, raw_len, base)
    inner = r.rest()
    require(inner[:1] == b"" or inner[0] not in (6, 8, 9, 10, 11), "kind within xor")
    raw = decode_block(inner, raw_len, None, 0)
    return bytes(x ^ y for x, y in zip(raw, base, strict=True))


# ---- 4.9 Difference ----


@dataclass
class Rule:
    """How a magnitude gives a context."""

    shift: int
    low: int
    contexts: int
    cyclic: bool

    def context(self, magnitude: int) -> int:
        s = magnitude >> self.shift
        if self.cyclic:
            return s % self.contexts
        return min(max(s, self.low) - self.low, self.contexts - 1)


@dataclass
class Context:
    """The table of a context."""

    mode: int
    center: int
    flags: Rans8Table | None
    kept: int
    classes: Rans8Table | None
    exact: tuple[int, int] | None

    def kept_bits(self, symbol: int) -> int:
        if self.exact is not None and symbol >= 14:
            return 0
        return self.kept + max(symbol // 2 - 1, 0)

    def step(self, symbol: int, raw: int) -> int:
        if self.exact is not None and symbol >= 14:
            return self.exact[symbol - 14]
        rest = raw
        if symbol // 2 > 0:
            rest |= 1 << (self.kept + symbol // 2 - 1)
        return self.center + (rest + 1 if symbol % 2 == 0 else -(rest + 1))


class Rans8Parts:
    """Section 9.2, a part at a time."""

    def __init__(self, r: Reader) -> None:
        n_streams = read_n_streams(r)
        self.states = []
        for _ in range(n_streams):
            high, low = r.take(32), r.take(32)
            require(min(high) > 0, "a state below 256")
            self.states.append([256 * h + lo for h, lo in zip(high, low, strict=True)])
        stream_lens = [r.u32() for _ in range(n_streams)]
        self.streams = [Reader(r.take(stream_len)) for stream_len in stream_lens]

    def part(self, n: int, table: Rans8Table | None) -> list[int]:
        require(table is not None, "classes without a table")
        assert table is not None
        out: list[int] = []
        for _ in range(ceil_div(n, 32 * len(self.states))):
            for lanes, stream in zip(self.states, self.streams, strict=True):
                for lane in range(32):
                    symbol, rank = table.lookup[lanes[lane] % 256]
                    x = table.frequencies[symbol] * (lanes[lane] // 256) + rank
                    if x < 256:
                        require(stream.left() > 0, "a stream that ends early")
                        x = 256 * x + stream.u8()
                    lanes[lane] = x
                    out.append(symbol)
        return out[:n]

    def finish(self) -> None:
        require(
            all(x == 256 for lanes in self.states for x in lanes), "states at the end"
        )
        for stream in self.streams:
            stream.finish("a stream of rANS8")


def read_rules(r: Reader, bits: int, n: int) -> tuple[list[Rule], int, bytes]:
    """Rules, elements of a row, and the rule of each row."""
    n_rules = r.u8()
    require(1 <= n_rules <= 4, f"{n_rules} rules")
    rules = []
    for _ in range(n_rules):
        shift, low, contexts = r.u8(), r.number(2), r.u8()
        rule = Rule(shift, low, contexts & 127, contexts >= 128)
        require(shift < bits and rule.contexts > 0, "a rule")
        power = rule.contexts & (rule.contexts - 1) == 0
        require(not rule.cyclic or (low == 0 and power), "a cyclic rule")
        rules.append(rule)
    require(sum(rule.contexts for rule in rules) <= 16, "more than 16 contexts")
    if n_rules == 1:
        return rules, max(n, 1), bytes(1)
    row_len = r.u32()
    require(row_len > 0, "rows of no elements")
    rows = decode_stream(r, ceil_div(n, row_len))
    require(all(rule < n_rules for rule in rows), "a rule that is not there")
    return rules, row_len, rows


def read_context(r: Reader, width: int) -> Context:
    head = r.u8()
    if head >> 4:
        raise Unsupported(f"head {head:#04x} of a context")
    mode = head & 3
    center = 0
    if head & 4:
        center = r.number(width)
        require(center != 0, "a center of 0")
    require(mode != 3, "mode 3")
    context = Context(mode, center, None, 0, None, None)
    if mode == 2:
        context.flags = Rans8Table(0, r.take(16))
    if mode != 0:
        context.kept = r.u8()
        context.classes = Rans8Table(0, r.take(16))
        require(context.kept <= 8 * width - 7, f"{context.kept} bits kept")
    if head & 8:
        require(mode != 0, "exact steps without classes")
        context.exact = (r.number(width), r.number(width))
    return context


def read_kept(r: Reader, lens: list[int]) -> list[int]:
    """The kept bits of each moved element, which keep so many."""
    raw = [0] * len(lens)
    for j in range(7):
        reaching = [i for i, k in enumerate(lens) if k % 8 > j]
        plane = int.from_bytes(r.take(ceil_div(len(reaching), 8)), "little")
        require(plane >> len(reaching) == 0, "fill bits of a plane")
        for at, i in enumerate(reaching):
            raw[i] |= (plane >> at & 1) << (j + 8 * (lens[i] // 8))
    for j in range(8):
        for i, k in enumerate(lens):
            if k // 8 > j:
                raw[i] |= r.u8() << (8 * j)
    return raw


def decode_difference(r: Reader, raw_len: int, base: bytes) -> bytes:
    flags = r.u8()
    if flags >> 3:
        raise Unsupported(f"flags {flags:#04x} of a difference block")
    width, sign = 1 << (flags & 3), bool(flags & 4)
    bits, n = 8 * width, raw_len // width
    rules, row_len, rows = read_rules(r, bits, n)
    firsts = [sum(rule.contexts for rule in rules[:i]) for i in range(len(rules))]
    tables = [
        read_context(r, width) for _ in range(sum(rule.contexts for rule in rules))
    ]
    numbers = [
        int.from_bytes(base[width * i : width * (i + 1)], "little") for i in range(n)
    ]
    top = 1 << (bits - 1)

    members: list[list[int]] = [[] for _ in tables]
    for i, p in enumerate(numbers):
        rule = rows[i // row_len]
        magnitude = p & ~top if sign else p
        members[firsts[rule] + rules[rule].context(magnitude)].append(i)
    parts = Rans8Parts(r)
    moved: list[list[int]] = []
    for context, elements in zip(tables, members, strict=True):
        flagged = [context.mode == 1] * len(elements)
        if context.mode == 2:
            quads = parts.part(ceil_div(len(elements), 4), context.flags)
            flagged = [bool(quads[q // 4] >> q % 4 & 1) for q in range(len(elements))]
        moved.append([i for i, flag in zip(elements, flagged, strict=True) if flag])
    symbols: dict[int, tuple[int, Context]] = {}
    for context, elements in zip(tables, moved, strict=True):
        if elements:
            classes = parts.part(len(elements), context.classes)
            symbols.update(
                (i, (symbol, context)) for i, symbol in zip(elements, classes, strict=True)
            )
    parts.finish()
    order = sorted(symbols)
    kept = read_kept(r, [symbols[i][1].kept_bits(symbols[i][0]) for i in order])

    steps = [0] * n
    for context, elements in zip(tables, members, strict=True):
        for i in elements:
            steps[i] = context.center
    for i, raw in zip(order, kept, strict=True):
        symbol, context = symbols[i]
        steps[i] = context.step(symbol, raw)

    def ordered(x: int) -> int:
        return x ^ (top - 1) if sign and x & top else x

    out = []
    for p, step in zip(numbers, steps, strict=True):
        signed = -step if sign and p & top else step
        out.append(ordered((ordered(p) + signed) % 2**bits))
    n_escapes = r.u32()
    require(n_escapes <= n, f"{n_escapes} escapes")
    positions = [r.u32() for _ in range(n_escapes)]
    require(
        all(a < b for a, b in zip(positions, positions[1:] + [n])), "order of escapes"
    )
    for position in positions:
        out[position] = r.number(width)
    tail = r.take(raw_len % width)
    return b"".join(x.to_bytes(width, "little") for x in out) + tail
