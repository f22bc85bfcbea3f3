"""Reference reader of mithril containers (`MCKP`, version 1), written from container.md.

It follows container.md section by section, takes frames and streams from
reference_decoder.py, and prefers clarity to speed. reference_decoder.py is the
program; this file is the part that knows containers.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from reference_decoder import (
    DTYPES,
    MAX_RANK,
    Corrupt,
    Frame,
    ModuleMissing,
    Reader,
    Refused,
    Truncated,
    Unsupported,
    checksum,
    decode_frame,
    decode_stream,
    require,
    tensor_len,
)
from reference_decoder import read_header as read_frame_header

MAGIC = b"MCKP"
END_MAGIC = b"MCKF"
RECORD_MAGIC = b"MCKE"
PROLOGUE_LEN = 24
FOOTER_LEN = 84
FULL, REF, COPY, DELTA, DERIVED, INLINE = range(6)
GLUE, DIGEST, BASE_NAME, STEP = 0x10, 0x20, 0x40, 0x80
LINK_RECORDS = 2

# ---- 10. Limits and reserved values ----

MAX_SECTION_LEN = 100_000_000
SMALL_SECTION_LEN = 1 << 20
MAX_SECTION_RATIO = 32
MAX_NAME_LEN = 65535
MAX_INLINE_LEN = 64
MAX_PATH_LEN = 4096
MAX_ALIGNMENT = 16


class BaseMissing(Exception):
    """A base tensor is not at hand: no fault of the container."""


Bases = dict[bytes, bytes]  # Raw bytes of base tensors by their digest.


def decode_section(coded: bytes, raw_len: int) -> bytes:
    """A header or index: exactly one stream, within its limits."""
    limit = max(SMALL_SECTION_LEN, MAX_SECTION_RATIO * len(coded))
    require(raw_len <= min(limit, MAX_SECTION_LEN), f"a section of {raw_len} bytes")
    r = Reader(coded)
    raw = decode_stream(r, raw_len)
    r.finish("a section")
    return raw


# ---- BLAKE3, from its specification: the hash of some bytes, 32 bytes long ----

IV = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
    0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8
QUARTERS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip


def compress(
    chain: tuple[int, ...], block: bytes, counter: int, flags: int
) -> tuple[int, ...]:
    """The compression function: eight words of output."""
    low = 0xFFFFFFFF
    words = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    state = [*chain, *IV[:4], counter & low, counter >> 32, len(block), flags]

    def rotate(x: int, n: int) -> int:
        return (x >> n | x << (32 - n)) & low

    for _ in range(7):
        for i, (a, b, c, d) in enumerate(QUARTERS):
            for word, right_d, right_b in (
                (words[2 * i], 16, 12),
                (words[2 * i + 1], 8, 7),
            ):
                state[a] = (state[a] + state[b] + word) & low
                state[d] = rotate(state[d] ^ state[a], right_d)
                state[c] = (state[c] + state[d]) & low
                state[b] = rotate(state[b] ^ state[c], right_b)
        words = [words[i] for i in PERMUTATION]
    return tuple(state[i] ^ state[i + 8] for i in range(8))


def blake3(data: bytes) -> bytes:
    """A binary tree of chunks of 1024 bytes; left subtrees are full."""

    def chunk(number: int, root: int) -> tuple[int, ...]:
        chain: tuple[int, ...] = IV
        bytes_of = data[1024 * number : 1024 * number + 1024]
        blocks = [bytes_of[at : at + 64] for at in range(0, len(bytes_of), 64)] or [b""]
        for i, block in enumerate(blocks):
            flags = CHUNK_START if i == 0 else 0
            if i == len(blocks) - 1:
                flags |= CHUNK_END | root
            chain = compress(chain, block, number, flags)
        return chain

    def subtree(first: int, count: int, root: int) -> tuple[int, ...]:
        if count == 1:
            return chunk(first, root)
        left = 1 << (count - 1).bit_length() - 1
        words = subtree(first, left, 0) + subtree(first + left, count - left, 0)
        return compress(IV, struct.pack("<16I", *words), 0, PARENT | root)

    count = max(1, -(-len(data) // 1024))
    return struct.pack("<8I", *subtree(0, count, ROOT))


# ---- 2. Footer ----


def check_repeated(version: int, alignment: int, flags: int) -> None:
    """What prologue and footer have in common."""
    if version != 1:
        raise Unsupported(f"container version {version}")
    if flags & 0x00FF & ~LINK_RECORDS:
        raise Unsupported(f"container flags {flags:#06x}")
    require(alignment <= MAX_ALIGNMENT, f"alignment {alignment}")


@dataclass
class Footer:
    """Section 2, without what only the footer itself needs."""

    data_offset: int
    repeated: bytes
    index_offset: int
    index_len: int
    index_raw_len: int
    index_checksum: int
    digest: bytes

    @property
    def alignment(self) -> int:
        return self.repeated[1]

    @property
    def links_have_records(self) -> bool:
        return bool(self.repeated[2] & LINK_RECORDS)


def read_footer(data: bytes) -> Footer:
    start = len(data) - FOOTER_LEN
    if start < PROLOGUE_LEN or data[-4:] != END_MAGIC:
        read_prologue(data)
        raise Truncated("no footer at the end of the file")
    r = Reader(data[start:])
    body = r.take(72)
    if r.number(8) != checksum(body):
        read_prologue(data)
        raise Corrupt("footer_checksum")
    r = Reader(body)
    data_offset, repeated, reserved = r.number(8), r.take(4), r.u32()
    check_repeated(repeated[0], repeated[1], int.from_bytes(repeated[2:], "little"))
    if reserved:
        raise Unsupported("reserved bytes of the footer")
    footer = Footer(
        data_offset, repeated, r.number(8), r.u32(), r.u32(), r.number(8), r.take(32)
    )
    require(footer.index_offset + footer.index_len == start, "index and footer")
    require(footer.index_len <= MAX_SECTION_LEN, "index_len")
    require(data_offset <= PROLOGUE_LEN + MAX_SECTION_LEN, "data_offset")
    return footer


# ---- 3. Prologue and header ----


@dataclass
class Prologue:
    repeated: bytes
    header_len: int
    header_raw_len: int
    header_checksum: int


def read_prologue(data: bytes) -> Prologue:
    require(data[:4] != b"" and MAGIC.startswith(data[:4]), "not a container")
    if len(data) > 4 and data[4] != 1:
        raise Unsupported(f"container version {data[4]}")
    r = Reader(data[:PROLOGUE_LEN])
    r.take(4)
    repeated = r.take(4)
    check_repeated(repeated[0], repeated[1], int.from_bytes(repeated[2:], "little"))
    prologue = Prologue(repeated, r.u32(), r.u32(), r.number(8))
    require(prologue.header_len <= MAX_SECTION_LEN, "header_len")
    return prologue


def no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    require(len(dict(pairs)) == len(pairs), "a field of the header twice")
    return dict(pairs)


def is_safe_path(path: str) -> bool:
    """Section 3."""
    parts = path.replace("\\", "/").split("/")
    return (
        len(path.encode()) <= MAX_PATH_LEN
        and "\0" not in path
        and not path.startswith("/")
        and ".." not in parts
    )


def check_header(header: object) -> None:
    """The types and names of section 3."""
    require(isinstance(header, dict), "a header that is no object")
    assert isinstance(header, dict)
    original = header.get("original")
    if original is not None:
        require(
            isinstance(original, dict)
            and isinstance(original.get("name"), str)
            and isinstance(original.get("format"), str)
            and isinstance(original.get("len"), int),
            "original",
        )
        name = original["name"]
        plain = is_safe_path(name) and name != "." and not set(name) & set("/\\")
        require(plain, "an original name with directories")
    step = header.get("step")
    require(step is None or (isinstance(step, int) and 0 <= step < 2**64), "step")
    for file in header.get("files", []):
        require(isinstance(file, dict) and isinstance(file.get("path"), str), "files")
        for path in (file["path"], file.get("packed_as") or file["path"]):
            require(path != "" and is_safe_path(path), "an unsafe path")


def read_header(data: bytes, footer: Footer, index: bytes) -> dict[str, object]:
    prologue = read_prologue(data)
    end = PROLOGUE_LEN + prologue.header_len
    require(end == footer.data_offset, "prologue and footer")
    require(prologue.repeated == footer.repeated, "prologue and footer")
    coded = data[PROLOGUE_LEN:end]
    require(checksum(data[:16] + coded) == prologue.header_checksum, "header_checksum")
    raw = decode_section(coded, prologue.header_raw_len)
    require(blake3(data[:end] + index) == footer.digest, "digest")
    try:
        header = json.loads(raw.decode(), object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"header: {error}") from error
    check_header(header)
    return header


# ---- 4. Index ----


@dataclass
class Step:
    """The step of section 6.1."""

    moments: list[int]
    base_moments: list[bytes]
    factors: list[int]


@dataclass
class Entry:
    """Section 4.3."""

    kind: int
    glue: bool
    name: str
    dtype: int
    shape: list[int]
    glue_before: int
    raw_len: int
    digest: bytes | None = None
    base: bytes | None = None
    base_name: str | None = None
    target: int | None = None
    inline: bytes | None = None
    step: Step | None = None
    frame_len: int = 0
    frame_checksum: int = 0
    record_offset: int = field(default=0, compare=False)
    frame_offset: int = field(default=0, compare=False)

    def has_frame(self) -> bool:
        return self.kind in (FULL, DELTA)


def read_number(r: Reader) -> int:
    """Section 4.1."""
    number = 0
    for shift in range(0, 64, 7):
        byte = r.u8()
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            require(byte != 0 or shift == 0, "a number with needless zeros")
            require(number < 2**64, "a number of more than 64 bits")
            return number
    raise Corrupt("a number of more than 64 bits")


def read_name(r: Reader) -> str:
    """Sections 4.2 and 4.4."""
    try:
        coded = r.take(read_number(r))
        require(len(coded) <= MAX_NAME_LEN, "a name that is too long")
        return coded.decode()
    except UnicodeDecodeError as error:
        raise Corrupt("a name that is not UTF-8") from error


def read_entry(r: Reader) -> Entry:
    """Section 4.3."""
    tag = r.u8()
    kind = tag & 0x0F
    if kind > INLINE or tag & STEP and kind != DELTA:
        raise Unsupported(f"entry tag {tag:#04x}")
    name = read_name(r)
    dtype = r.u8()
    if dtype not in DTYPES:
        raise Unsupported(f"dtype {dtype}")
    rank = read_number(r)
    require(rank <= MAX_RANK, f"rank {rank}")
    shape = [read_number(r) for _ in range(rank)]
    glue_before = read_number(r)
    entry = Entry(
        kind,
        bool(tag & GLUE),
        name,
        dtype,
        shape,
        glue_before,
        tensor_len(shape, dtype),
    )
    if tag & DIGEST:
        entry.digest = r.take(32)
    require(not tag & BASE_NAME or kind in (COPY, DELTA), "a base name without a base")
    if kind == INLINE:
        require(not tag & DIGEST, "a digest of bytes in the index")
        require(entry.raw_len <= MAX_INLINE_LEN, "too many bytes for the index")
        entry.inline = r.take(entry.raw_len)
    if kind in (COPY, DELTA):
        entry.base = r.take(32)
    if tag & BASE_NAME:
        entry.base_name = read_name(r)
    if tag & STEP:
        moments = [read_number(r) for _ in range(2)]
        base_moments = [r.take(32) for _ in range(2)]
        entry.step = Step(moments, base_moments, [r.u32() for _ in range(3)])
    if kind in (REF, DERIVED):
        entry.target = read_number(r)
    if kind == DERIVED and (rounding := r.u8()) != 0:
        raise Unsupported(f"rounding {rounding}")
    if entry.has_frame():
        entry.frame_len, entry.frame_checksum = read_number(r), r.number(8)
    return entry


def check_links(entries: list[Entry]) -> None:
    """Targets by section 6, glue by section 8, names by section 4.4."""
    names = [entry.name for entry in entries if not entry.glue]
    require(len(set(names)) == len(names), "two tensors of the same name")
    glue_len = entries[0].raw_len if entries and entries[0].glue else 0
    require(sum(e.glue_before for e in entries) <= glue_len, "more glue than there is")
    for i, entry in enumerate(entries):
        if entry.glue:
            fits = i == 0 and entry.kind == FULL and entry.name == ""
            require(fits and entry.glue_before == 0, "glue")
        if entry.step is not None:
            check_moments(entry, entries)
        if entry.target is None:
            continue
        require(entry.target < len(entries), "a target that is not there")
        target = entries[entry.target]
        require(not target.glue, "a target that is glue")
        if entry.kind == REF:
            require(entry.target < i, "a reference to a later entry")
            require(target.kind != REF, "a reference to a reference")
            require(target.raw_len == entry.raw_len, "a reference to other bytes")
        else:
            require(DTYPES[entry.dtype][0] in ("F16", "BF16"), "a derived dtype")
            require(DTYPES[target.dtype][0] == "F32", "derived from no F32")
            require(target.kind in (FULL, COPY, DELTA), "derived from a link")
            require(target.raw_len == 2 * entry.raw_len, "derived from other bytes")


def check_moments(entry: Entry, entries: list[Entry]) -> None:
    assert entry.step is not None
    require(DTYPES[entry.dtype][0] == "F32", "a step of no F32")
    for number in entry.step.moments:
        require(number < len(entries), "a moment that is not there")
        moment = entries[number]
        require(not moment.glue and moment.step is None, "a moment that is none")
        require(moment.kind in (FULL, COPY, DELTA), "a moment that is a link")
        require(DTYPES[moment.dtype][0] == "F32", "a moment of no F32")
        require(moment.raw_len == entry.raw_len, "a moment of another length")


def read_index(raw: bytes, index_offset: int) -> list[Entry]:
    r = Reader(raw)
    try:
        n_entries = read_number(r)
        require(n_entries <= max(4096, index_offset // 16), "more entries than the file has room for")
        entries = [read_entry(r) for _ in range(n_entries)]
    except Truncated as early:
        raise Corrupt("an index that ends inside an entry") from early
    r.finish("the index")
    check_links(entries)
    return entries


# ---- 5. Where frames lie ----


def number_bytes(number: int) -> bytes:
    """Section 4.1."""
    low = number & 0x7F
    return bytes([low]) if number < 0x80 else bytes([low | 0x80]) + number_bytes(number >> 7)


def link_fields(entry: Entry, target: int | None) -> bytes:
    """What the record of a link has between its name and its checksum."""
    fields = bytes([entry.dtype])
    for number in (len(entry.shape), *entry.shape, entry.glue_before):
        fields += number_bytes(number)
    if entry.base is not None:
        fields += entry.base
    if target is not None:
        fields += struct.pack("<I", target)
    if entry.kind == DERIVED:
        fields += b"\0"
    return fields + (entry.inline or b"")


def place_frames(entries: list[Entry], footer: Footer) -> None:
    end = footer.data_offset
    for entry in entries:
        if not entry.has_frame() and not footer.links_have_records:
            continue
        entry.record_offset = end
        end += 20 + len(entry.name.encode())
        if entry.has_frame():
            entry.frame_offset = ((end - 1 >> footer.alignment) + 1) << footer.alignment
            end = entry.frame_offset + entry.frame_len
        else:
            end += len(link_fields(entry, entry.target))
            entry.frame_offset = end
        require(end <= footer.index_offset, "a frame that reaches into the index")
    require(end == footer.index_offset, "bytes between the last frame and the index")


def check_record(data: bytes, number: int, entries: list[Entry]) -> None:
    entry = entries[number]
    between = data[entry.record_offset : entry.frame_offset]
    r = Reader(between)
    require(r.take(4) == RECORD_MAGIC, "no record")
    fields = r.u32(), r.u8(), r.u8()
    name = r.take(r.number(2))
    link = b""
    if not entry.has_frame():
        link = r.take(len(link_fields(entry, entry.target)))
    body = between[: r.at]
    require(r.number(8) == checksum(body), "record_checksum")
    tag = entry.kind | (GLUE if entry.glue else 0) | (STEP if entry.step else 0)
    require(fields == (number, tag, 0), "a record of another entry")
    require(name == entry.name.encode(), "a record of another name")
    require(not any(r.rest()), "padding that is not zero")
    if not entry.has_frame():
        # A derived entry may be recorded with a reference to its target.
        targets = [entry.target]
        if entry.kind == DERIVED:
            same = (i for i, e in enumerate(entries) if e.kind == REF)
            targets += [i for i in same if entries[i].target == entry.target]
        fits = any(link == link_fields(entry, target) for target in targets)
        require(fits, "a record of another link")


# ---- 6. Kinds of entry ----


@dataclass
class Container:
    data: bytes
    header: dict[str, object]
    entries: list[Entry]
    bases: Bases

    def base(self, entry: Entry) -> bytes:
        assert entry.base is not None
        return self.base_tensor(entry.base, entry.raw_len)

    def base_tensor(self, digest: bytes, raw_len: int) -> bytes:
        raw = self.bases.get(digest)
        if raw is None or len(raw) != raw_len:
            raise BaseMissing(f"no base tensor with the digest {digest.hex()}")
        return raw

    def stepped(self, entry: Entry) -> bytes:
        """Section 6.1: the base tensor behind its step."""
        assert entry.step is not None
        before = [self.base_tensor(d, entry.raw_len) for d in entry.step.base_moments]
        behind = [self.raw(number) for number in entry.step.moments]
        return move(self.base(entry), [*before, *behind], entry.step.factors)

    def frame(self, entry: Entry) -> bytes:
        coded = self.data[entry.frame_offset : entry.frame_offset + entry.frame_len]
        named = read_frame_header(Reader(coded)).base_digest
        if entry.step is not None:
            require(named is not None, "a frame without a base")
            base = self.stepped(entry)
        else:
            require(named == entry.base, "a frame of another base")
            base = self.base(entry) if entry.kind == DELTA else None
        frame: Frame = decode_frame(coded, base)
        require(frame.dtype == DTYPES[entry.dtype][0], "a frame of another dtype")
        require(frame.shape in (None, entry.shape), "a frame of another shape")
        require(len(frame.raw) == entry.raw_len, "a frame of another length")
        # Last, because what decoding says about damage is more precise.
        require(checksum(coded) == entry.frame_checksum, "frame_checksum")
        return frame.raw

    def raw(self, number: int) -> bytes:
        """The raw bytes of an entry."""
        entry = self.entries[number]
        if entry.inline is not None:
            return entry.inline
        if entry.kind == COPY:
            return self.base(entry)
        if entry.kind == REF:
            assert entry.target is not None
            return self.raw(entry.target)
        if entry.kind == DERIVED:
            assert entry.target is not None
            return round_elements(DTYPES[entry.dtype][0], self.raw(entry.target))
        return self.frame(entry)


def open_container(data: bytes, bases: Bases | None = None) -> Container:
    """Section 1.2, and the header."""
    footer = read_footer(data)
    index = data[footer.index_offset : footer.index_offset + footer.index_len]
    require(checksum(index) == footer.index_checksum, "index_checksum")
    entries = read_index(
        decode_section(index, footer.index_raw_len), footer.index_offset
    )
    place_frames(entries, footer)
    header = read_header(data, footer, index)
    return Container(data, header, entries, bases or {})


# ---- 6.1 Steps ----

SMALLEST, LARGEST = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127


def values(raw: bytes) -> list[float]:
    """F32 elements; those without an exponent count as zero."""
    numbers = struct.unpack(f"<{len(raw) // 4}f", raw)
    return [0.0 if abs(x) < SMALLEST else x for x in numbers]


def update(first: float, second: float) -> float:
    if second < 0.0:
        return math.nan
    return first / (math.sqrt(second) + 1e-8)


def move(weights: bytes, moments: list[bytes], factors: list[int]) -> bytes:
    a, b, c = values(struct.pack("<3I", *factors))
    out = bytearray(weights)
    elements = zip(values(weights), *map(values, moments), strict=True)
    for i, (w, m0, v0, m1, v1) in enumerate(elements):
        moved = w + c * w + a * update(m0, v0) + b * update(m1, v1)
        if SMALLEST <= abs(moved) <= LARGEST:
            struct.pack_into("<f", out, 4 * i, moved)
    return bytes(out)


# ---- 7. Rounding ----


def to_bf16(x: int) -> int:
    if x & 0x7FFFFFFF > 0x7F800000:
        return x >> 16 | 0x0040
    return (x + 0x7FFF + (x >> 16 & 1)) % 2**32 >> 16


def to_f16(x: int) -> int:
    sign, m = x >> 16 & 0x8000, x & 0x7FFFFFFF
    if m >= 0x7F800001:
        return sign | 0x7E00 | m >> 13 & 0x03FF
    if m >= 0x477FF000:
        return sign | 0x7C00
    if m >= 0x38800000:
        return sign | m - 0x38000000 + 0x0FFF + (m >> 13 & 1) >> 13
    if m >= 0x33000000:
        k = 126 - (m >> 23)
        f = m & 0x007FFFFF | 0x00800000
        return sign | f + 2 ** (k - 1) - 1 + (f >> k & 1) >> k
    return sign


def round_elements(dtype: str, wide: bytes) -> bytes:
    to: Callable[[int], int] = {"BF16": to_bf16, "F16": to_f16}[dtype]
    values = [to(x) for (x,) in struct.iter_unpack("<I", wide)]
    return struct.pack(f"<{len(values)}H", *values)


# ---- 8. Restoring a file ----


def restore(container: Container) -> bytes:
    """The original file; of a container that is none, all tensors one behind the other."""
    entries = container.entries
    total = sum(entry.raw_len for entry in entries)
    original = container.header.get("original")
    if isinstance(original, dict):
        require(original["len"] == total, "original.len")
    out = bytearray()
    glue, used = b"", 0
    for number, entry in enumerate(entries):
        if entry.frame_offset:
            check_record(container.data, number, entries)
        raw = container.raw(number)
        if entry.digest is not None:
            require(blake3(raw) == entry.digest, "the digest of an entry")
        if entry.glue:
            glue = raw
            continue
        out += glue[used : used + entry.glue_before] + raw
        used += entry.glue_before
    return bytes(out + glue[used:])


# ---- Golden files ----


def base_tensors(path: Path) -> Bases:
    """The tensors of a container by digest, as a base for another one."""
    container = open_container(path.read_bytes())
    tensors = [container.raw(i) for i, e in enumerate(container.entries) if not e.glue]
    return {blake3(raw): raw for raw in tensors}


def check_container(path: Path, expected: dict[str, object]) -> str | None:
    """What is wrong with the reading of a golden container, None if nothing is."""
    bases: Bases = {}
    for name in expected.get("bases", []):
        bases.update(base_tensors(path.parent / name))
    restored = restore(open_container(path.read_bytes(), bases))
    if len(restored) != expected["raw_len"]:
        return f"{len(restored)} bytes in place of {expected['raw_len']}"
    if hashlib.sha256(restored).hexdigest() != expected["sha256"]:
        return "another SHA-256"
    return None


def check_rejected_container(path: Path, expected: dict[str, object]) -> str | None:
    """What is wrong with the refusal of a golden container, None if nothing is."""
    try:
        restore(open_container(path.read_bytes()))
    except ModuleMissing:
        raise
    except Refused as refusal:
        kind = type(refusal).__name__.lower()
        return None if kind == expected["kind"] else f"refused as {kind}: {refusal}"
    return "not refused"
