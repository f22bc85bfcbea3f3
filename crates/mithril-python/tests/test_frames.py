"""Buffers and arrays to frames and back."""

import array
import mmap
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import mithril

RNG = np.random.default_rng(1)
WEIGHTS = (RNG.standard_normal(50_000) * 0.02).astype(ml_dtypes.bfloat16)
RAW = WEIGHTS.tobytes()


@pytest.mark.parametrize("effort", [None, "fast", "balanced", "max"])
def test_every_effort_gives_the_bytes_back(effort):
    blob = mithril.compress(RAW, dtype="bf16", effort=effort)
    assert type(blob) is bytes
    assert len(blob) < 0.72 * len(RAW)
    assert mithril.decompress(blob) == RAW


def test_every_kind_of_buffer_gives_the_same_frame(tmp_path):
    path = tmp_path / "raw"
    path.write_bytes(RAW)
    expected = mithril.compress(RAW, dtype="bf16")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mithril.compress(mapped, dtype="bf16") == expected
    wide = array.array("H", RAW)
    strided = memoryview(b"".join(bytes([b, 0]) for b in RAW[:1000]))[::2]
    assert mithril.compress(bytearray(RAW), dtype="bf16") == expected
    assert mithril.compress(memoryview(RAW), dtype="bf16") == expected
    assert mithril.compress(wide, dtype="bf16") == expected
    assert mithril.decompress(mithril.compress(strided)) == RAW[:1000]
    for kind in (bytearray, memoryview):
        assert mithril.decompress(kind(expected)) == RAW


def test_bytes_are_those_of_the_rust_program(tmp_path):
    path = tmp_path / "raw.bin"
    path.write_bytes(RAW)
    for effort in ("fast", "balanced", "max"):
        out = tmp_path / f"{effort}.mthf"
        command = [sys.executable, "-m", "mithril", "compress", path, "-o", out, "--effort", effort, "--dtype", "bf16"]
        subprocess.run(command, check=True, capture_output=True)
        assert out.read_bytes() == mithril.compress(RAW, dtype="bf16", effort=effort)


@pytest.mark.parametrize("kind", [bytearray, lambda n: memoryview(bytearray(n)), lambda n: np.empty(n, np.uint8)])
def test_out_is_filled_and_returned(kind):
    blob = mithril.compress(RAW, dtype="bf16")
    out = kind(len(RAW))
    assert mithril.decompress(blob, out=out) is out
    assert bytes(out) == RAW


def test_out_of_another_kind_is_refused():
    blob = mithril.compress(RAW, dtype="bf16")
    with pytest.raises(ValueError, match="output has 7"):
        mithril.decompress(blob, out=bytearray(7))
    with pytest.raises(BufferError):
        mithril.decompress(blob, out=bytes(len(RAW)))
    with pytest.raises(ValueError, match="C-contiguous"):
        mithril.decompress(blob, out=np.empty((2, len(RAW)), np.uint8)[:, ::2])
    shared = bytearray(blob)
    with pytest.raises(ValueError, match="shares memory"):
        mithril.decompress(shared, out=shared)


def test_arrays_keep_dtype_and_shape():
    cube = WEIGHTS.reshape(50, 20, 50)
    back = mithril.decompress_array(mithril.compress_array(cube))
    assert back.dtype == cube.dtype
    assert back.shape == cube.shape
    assert back.tobytes() == cube.tobytes()
    info = mithril.inspect(mithril.compress(cube))
    assert (info.dtype, info.shape, info.original_size) == ("BF16", (50, 20, 50), cube.nbytes)
    assert repr(info).startswith("FrameInfo(dtype='BF16', shape=(50, 20, 50), original_size=100000,")


def test_raw_frames_become_flat_arrays():
    assert mithril.decompress_array(mithril.compress(b"abc")).tolist() == [97, 98, 99]
    assert mithril.decompress_array(mithril.compress(RAW, dtype="bf16")).shape == (50_000,)
    with pytest.raises(TypeError):
        mithril.compress_array(b"abc")


def test_deltas_need_their_reference():
    later = RAW[:-2] + b"\x01\x02"
    blob = mithril.compress_delta(later, RAW, dtype="bf16")
    assert len(blob) < 2000
    assert mithril.decompress_delta(blob, RAW) == later
    out = bytearray(len(RAW))
    assert mithril.decompress_delta(blob, RAW, out=out) is out
    assert out == later
    with pytest.raises(mithril.BaseMismatchError):
        mithril.decompress_delta(blob, later)
    with pytest.raises(mithril.BaseMismatchError):
        mithril.decompress(blob)
    with pytest.raises(ValueError, match="base"):
        mithril.compress_delta(RAW, RAW[:-2], dtype="bf16")
    with pytest.raises(ValueError, match="reference is F32"):
        mithril.compress_delta(WEIGHTS, np.zeros(25_000, np.float32))


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="unknown dtype `bf17`"):
        mithril.compress(RAW, dtype="bf17")
    with pytest.raises(ValueError, match="effort is"):
        mithril.compress(RAW, effort="huge")
    with pytest.raises(ValueError, match="level is 1 to 22"):
        mithril.compress(RAW, level=23)
    with pytest.raises(ValueError, match="threads is"):
        mithril.compress(RAW, threads=-1)
    with pytest.raises(ValueError, match="auto=False"):
        mithril.compress(RAW, auto=False, effort="max")
    with pytest.raises(ValueError, match="the array is of BF16"):
        mithril.compress(WEIGHTS, dtype="fp16")
    with pytest.raises(TypeError):
        mithril.compress(7)
    with pytest.raises(TypeError):
        mithril.compress("text")
    with pytest.raises(TypeError):
        mithril.compress(RAW, "bf16")


def test_damage_has_the_right_exception():
    blob = mithril.compress(RAW, dtype="bf16")
    damaged = bytearray(blob)
    damaged[len(blob) // 2] ^= 1
    with pytest.raises(mithril.CorruptError):
        mithril.decompress(damaged)
    with pytest.raises((mithril.TruncatedError, mithril.CorruptError)):
        mithril.decompress(blob[:-9])
    with pytest.raises(mithril.MithrilError):
        mithril.decompress(b"")
    with pytest.raises(mithril.MithrilError):
        mithril.decompress(b"no frame at all, but long enough to be one")
    for error in (mithril.CorruptError, mithril.TruncatedError, mithril.StorageError, mithril.ConflictError):
        assert issubclass(error, mithril.MithrilError)


def test_frames_are_told_from_other_bytes():
    assert mithril.is_mithril(mithril.compress(b""))
    assert not mithril.is_mithril(b"MTH")
    assert not mithril.is_mithril(RAW)


def test_widths_are_bytes_of_an_element():
    widths = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "u8": 1, "F4": 1, None: 1}
    assert {name: mithril.dtype_width(name) for name in widths} == widths


def test_chunks_are_blocks_of_the_same_codec():
    blob = mithril.chunked.compress(RAW, dtype="bf16", chunk_size=40_000)
    assert 32_000 <= mithril.inspect(blob).block_size <= 40_000
    assert mithril.chunked.decompress(blob) == RAW
    assert mithril.decompress(blob) == RAW
    with pytest.raises(ValueError, match="at least 32768"):
        mithril.chunked.compress(RAW, chunk_size=100)


def test_a_gpu_is_refused_where_there_are_no_kernels_and_decodes_where_there_are() -> None:
    data = np.random.default_rng(1).normal(size=40_000).astype(np.float32)
    blob = mithril.compress(data)
    decoded, message = None, ""
    try:
        decoded = mithril.decompress(blob, device="gpu")
    except mithril.UnsupportedError as error:
        message = str(error)
    if decoded is None:
        assert "GPU" in message
    else:
        assert decoded == data.tobytes()
        out = bytearray(data.nbytes)
        assert mithril.decompress(blob, device="gpu", out=out) is out
        assert out == data.tobytes()
        with pytest.raises(ValueError, match="bytes"):
            mithril.decompress(blob, device="gpu", out=bytearray(3))
        with pytest.raises(mithril.CorruptError):
            mithril.decompress(blob[:50] + bytes([blob[50] ^ 1]) + blob[51:], device="gpu")
    with pytest.raises(ValueError, match="device"):
        mithril.decompress(blob, device="tpu")
