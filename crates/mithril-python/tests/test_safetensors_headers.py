"""Plain safetensors files are read, or refused, as the package does it: over generated headers, right and wrong ones."""

import json
import random
from typing import Any

import pytest
import safetensors

import mithril.safetensors as ms

WIDTHS = {"F64": 8, "I64": 8, "F32": 4, "BF16": 2, "F16": 2, "I16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "I8": 1}
NAMES = ["w", "/dense/kernel", "..", "a/../b", "", "nul\0", "\u91cd\u307f", "a.b", 'quote " \\', "x" * 5000]


def file_of(header: str, data: bytes) -> bytes:
    coded = header.encode()
    return len(coded).to_bytes(8, "little") + coded + data


def entries_of(pick: random.Random) -> tuple[list[tuple[str, dict[str, Any]]], bytes]:
    """Tensors that fill their file, in any order of the header."""
    entries, end = [], 0
    for name in pick.sample(NAMES, pick.randrange(5)):
        dtype = pick.choice(list(WIDTHS))
        shape = [pick.choice([0, 1, 2, 3]) for _ in range(pick.randrange(4))]
        size = WIDTHS[dtype]
        for dimension in shape:
            size *= dimension
        entries.append((name, {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}))
        end += size
    pick.shuffle(entries)
    return entries, pick.randbytes(end)


def wrong(pick: random.Random, entries: list[tuple[str, dict[str, Any]]], data: bytes) -> tuple[Any, bytes]:
    """One thing changed, which most often breaks a rule."""
    change = pick.randrange(9)
    if change == 0:
        return entries, data + b"more"
    if change == 1:
        return entries, data[:-1]
    if not entries:
        return entries, data
    entry = pick.choice(entries)[1]
    if change == 2:
        entry["data_offsets"][pick.randrange(2)] += pick.choice([-1, 1])
    elif change == 3:
        entry["data_offsets"] = [at + 1 for at in entry["data_offsets"]]
    elif change == 4:
        entry["shape"] = [*entry["shape"], pick.choice([0, 1, 2, 2**62, -1, 1.5])]
    elif change == 5:
        entry["dtype"] = pick.choice(["F33", "f32", "", None, 7])
    elif change == 6:
        del entry[pick.choice(list(entry))]
    elif change == 7:
        entry["extra"] = {"deep": [1, {}]}
    else:
        entry["data_offsets"].reverse()
    return entries, data


def read_by_package(file: bytes) -> dict[str, Any] | None:
    try:
        found = safetensors.deserialize(file)
    except (safetensors.SafetensorError, ValueError, OverflowError):
        return None
    return {name: (tensor["dtype"], list(tensor["shape"]), bytes(tensor["data"])) for name, tensor in found}


def read_by_mithril(file: bytes) -> dict[str, Any] | None:
    try:
        with ms.Reader.from_bytes(file) as reader:
            return {name: (reader.dtype(name), list(reader.shape(name)), reader.read_raw(name)) for name in reader.names()}
    except ms.SafetensorError:
        return None


def test_generated_files_are_read_or_refused_as_by_the_package() -> None:
    n_read = n_refused = 0
    for seed in range(3_000):
        pick = random.Random(seed)
        entries, data = entries_of(pick)
        if seed % 3:
            entries, data = wrong(pick, entries, data)
        header = json.dumps(dict(entries), ensure_ascii=pick.random() < 0.5) + " " * pick.randrange(9)
        file = file_of(header, data)
        expected, found = read_by_package(file), read_by_mithril(file)
        assert found == expected, (seed, header)
        n_read += expected is not None
        n_refused += expected is None
    assert n_read > 1_000 and n_refused > 500


def test_a_name_twice_is_refused_and_comes_back_byte_for_byte() -> None:
    one = '{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'
    file = file_of(f'{{"a":{one},"a":{one.replace("[0,2]", "[2,4]")}}}', b"abcd")
    with pytest.raises(ms.SafetensorError, match="`a` is there twice"):
        ms.load(file)
    packed = ms.compress_bytes(file)
    assert ms.decompress_bytes(packed) == file
    # Packed, it has what the package makes of it: the last one.
    assert ms.load(packed)["a"].tobytes() == b"cd"


def test_bytes_behind_the_last_tensor_are_refused_and_come_back_byte_for_byte() -> None:
    file = file_of('{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"ab and more")
    assert read_by_package(file) is None
    with pytest.raises(ms.SafetensorError, match="9 bytes behind the last tensor"):
        ms.load(file)
    packed = ms.compress_bytes(file)
    assert ms.decompress_bytes(packed) == file
    assert ms.load(packed)["a"].tobytes() == b"ab"
