"""Large tensors through torch's own writer: cut, so that nobody holds them whole."""

import io
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from test_torch_checkpoint import blank, check_equal
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

import mithril
from mithril.checkpoint import torch as ours
from mithril.checkpoint.torch import _extension, _pieces, _planner

# torch warns that one process needs no process group, and about its own storage classes.
pytestmark = pytest.mark.filterwarnings("ignore")


def tensors() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "matrix": torch.randn(300, 70, generator=generator),
        "one row": torch.randn(1, 9001, generator=generator).bfloat16(),
        "long rows": torch.randn(3, 2, 5000, generator=generator),
        "transposed": torch.randn(90, 110, generator=generator).t(),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 7),
        "text": "kept",
    }


def written(content: bytes) -> bytes:
    output = io.BytesIO()
    writer = _pieces.Writer(output, lambda piece, is_first: mithril.compress(piece, dtype="f32" if is_first else None))
    chance = random.Random(len(content))
    at = 0
    while at < len(content):
        at += writer.write(content[at : at + chance.choice((1, 100, 5000, 70_000))])
    writer.close()
    writer.close()
    return output.getvalue()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces and chunks of 8 KiB."""
    monkeypatch.setattr(_pieces, "PIECE_LEN", 8192)
    monkeypatch.setattr(_planner, "_CHUNK_LEN", 8192)


def test_pieces_read_like_a_file(small: None) -> None:
    for n_bytes in (0, 1, 8191, 8192, 8193, 3 * 8192, 50_001):
        content = random.Random(1).randbytes(n_bytes // 2).ljust(n_bytes, b"x")
        plain, pieces = io.BytesIO(content), _pieces.Reader(io.BytesIO(written(content)), 0)
        assert pieces.seekable() and pieces.read() == content and pieces.read(1) == b"" and pieces.tell() == n_bytes
        chance = random.Random(2)
        for _ in range(60):
            place, whence = chance.choice(
                ((chance.randint(0, n_bytes + 3), os.SEEK_SET), (-chance.randint(0, n_bytes), os.SEEK_END), (0, os.SEEK_CUR))
            )
            assert pieces.seek(place, whence) == plain.seek(place, whence)
            length = chance.choice((0, 1, 100, 8192, 20_000))
            assert pieces.read(length) == plain.read(length)
            assert pieces.tell() == plain.tell()
        with pytest.raises(ValueError, match="no byte"):
            pieces.seek(-1)


def test_pieces_that_are_cut_off_or_damaged_are_refused(small: None) -> None:
    content = random.Random(1).randbytes(20_000)
    whole = written(content)
    for n_bytes in range(0, len(whole), 97):
        with pytest.raises((mithril.TruncatedError, mithril.CorruptError)):
            _pieces.Reader(io.BytesIO(whole[:n_bytes]), 0).read()
    for place in (*range(24), *range(24, len(whole), 61)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x80
        with pytest.raises(mithril.MithrilError):
            _pieces.Reader(io.BytesIO(bytes(damaged)), 0).read()


def test_planners_cut_large_tensors_and_any_part_of_them_loads(small: None, tmp_path: Path) -> None:
    contents = tensors()
    dcp.save(contents, storage_writer=FileSystemWriter(tmp_path), planner=ours.MithrilSavePlanner())
    table = FileSystemReader(tmp_path).read_metadata().planner_data["mithril"]["chunks"]
    chunks = [chunk for chunk in table.values() if chunk["fqn"] == "long rows"]
    assert len(chunks) == 6 * 3 and all(torch.Size(chunk["sizes"]).numel() * 4 <= 8192 for chunk in chunks)
    loaded = blank(contents)
    dcp.load(loaded, storage_reader=FileSystemReader(tmp_path), planner=ours.MithrilLoadPlanner())
    check_equal(loaded, contents)


def test_the_extension_cuts_large_tensors(small: None, tmp_path: Path) -> None:
    if not _extension.AVAILABLE:
        return
    contents = tensors()
    dcp.save(contents, storage_writer=FileSystemWriter(tmp_path, _extensions=[ours.MithrilExtension()]))
    loaded = blank(contents)
    reader = FileSystemReader(tmp_path, _extension_registry=ours.MithrilExtension.registry())
    dcp.load(loaded, storage_reader=reader)
    check_equal(loaded, contents)


def test_items_of_the_first_version_load_and_later_ones_are_refused() -> None:
    if not _extension.AVAILABLE:
        return
    registry = ours.MithrilExtension.registry()
    content = random.Random(1).randbytes(30_000)
    for version, stored in (("1", mithril.compress(content)), ("2", written(content))):
        (extension,) = registry.from_descriptor_list([f"stream.mithril/{version}"])
        assert extension.transform_from(io.BytesIO(stored)).read() == content
    with pytest.raises(ValueError, match="version 3"):
        registry.from_descriptor_list(["stream.mithril/3"])


def test_a_stream_that_cannot_seek_is_read_first() -> None:
    content = random.Random(1).randbytes(30_000)
    source = io.BytesIO(written(content))
    source.seekable = lambda: False  # type: ignore[method-assign]
    pieces = _pieces.Reader(source, 0)
    pieces.seek(-5, os.SEEK_END)
    assert pieces.read() == content[-5:]
