"""Any array of any framework comes back: dtypes, shapes, strides, orders."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import mithril

settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
settings.load_profile("ci")

DTYPES = [
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
    np.float16, np.float32, np.float64, np.complex64,
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu,
    ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz,
]  # fmt: skip


@st.composite
def arrays(draw):
    """Arrays of any bits, any shape with zeros and none, and any order of their elements in memory."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    count = int(np.prod(shape, dtype=np.int64))
    bits = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if dtype == np.bool_:
        bits = bytes(b & 1 for b in bits)
    array = np.frombuffer(bits, dtype).reshape(shape)
    order = draw(st.sampled_from(["C", "F", "reversed", "transposed", "wide", "read-only"]))
    if order == "F":
        return np.asfortranarray(array)
    if order == "reversed" and array.ndim:
        return array[::-1]
    if order == "transposed":
        return array.T
    if order == "wide" and array.ndim:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    return array


@given(arrays())
@settings(max_examples=300)
def test_arrays_come_back(array):
    before = array.tobytes()
    blob = mithril.compress_array(array)
    back = mithril.decompress_array(blob)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == before
    assert back.flags.writeable and back.flags.c_contiguous
    assert mithril.decompress(blob) == before
    assert mithril.compress(array.copy(order="C"), threads=3) == blob


@given(arrays(), st.sampled_from(["balanced", "max"]))
@settings(max_examples=60)
def test_arrays_come_back_at_every_effort(array, effort):
    back = mithril.decompress_array(mithril.compress_array(array, effort=effort))
    assert back.tobytes() == array.tobytes()


@given(arrays(), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_deltas_come_back(array, random):
    changed = bytearray(array.tobytes())
    for _ in range(min(3, len(changed))):
        at = random.randrange(len(changed))
        changed[at] ^= 1 if array.dtype == np.bool_ else random.randrange(256)
    current = np.frombuffer(bytes(changed), array.dtype).reshape(array.shape)
    blob = mithril.compress_delta(current, array)
    assert mithril.decompress_delta(blob, array) == bytes(changed)


@given(arrays())
@settings(max_examples=60)
def test_packed_files_come_back(array):
    tensors = {"one": array, "same": array, "": np.arange(3)}
    loaded = mithril.safetensors.load(mithril.safetensors.save(tensors))
    for name, expected in tensors.items():
        assert (loaded[name].dtype, loaded[name].shape) == (expected.dtype, expected.shape)
        assert loaded[name].tobytes() == expected.tobytes()


@given(st.binary(max_size=3000), st.sampled_from([None, "bf16", "fp32", "u8"]))
@settings(max_examples=200)
def test_bytes_come_back(data, dtype):
    blob = mithril.compress(data, dtype=dtype)
    assert len(blob) <= len(data) + 200
    assert mithril.decompress(blob) == data


@given(st.binary(max_size=400), st.integers(0, 60), st.integers(0, 255))
@settings(max_examples=300)
def test_damaged_frames_never_give_other_bytes(data, at, flip):
    blob = bytearray(mithril.compress(data))
    blob[at % len(blob)] ^= flip
    try:
        assert mithril.decompress(blob) == data
    except mithril.MithrilError:
        pass


@given(arrays())
@settings(max_examples=60)
def test_big_endian_arrays_come_back_by_value(array):
    if array.dtype.kind not in "iufc" or array.dtype.itemsize == 1:
        return
    swapped = array.astype(array.dtype.newbyteorder(">"))
    back = mithril.decompress_array(mithril.compress_array(swapped))
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


def test_types_without_numbers_are_refused():
    for array in (np.array(["a"]), np.array([None]), np.array([1 + 2j]), np.zeros(2, "f4,i4"), np.zeros(2, "M8[s]")):
        with pytest.raises(TypeError, match="unsupported numpy dtype"):
            mithril.compress(array)


class Lent:
    """What any framework with DLPack looks like."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self):
        return self.tensor.__dlpack__()

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool, torch.uint8, torch.complex64])
def test_dlpack_lends_without_a_copy(dtype):
    tensor = (torch.randn(50, 30) * 2).to(dtype)
    blob = mithril.compress(Lent(tensor))
    assert blob == mithril.compress(tensor)
    info = mithril.inspect(blob)
    assert info.shape == (50, 30)
    for odd in (tensor[:, ::2], tensor.t()):
        with pytest.raises(BufferError, match="not contiguous"):
            mithril.compress(Lent(odd))
        assert mithril.inspect(mithril.compress(odd)).shape == tuple(odd.shape)
    assert mithril.decompress(mithril.compress(Lent(tensor[:0]))) == b""


def test_torch_tensors_are_read_and_written_where_they_lie():
    tensor = torch.randn(64, 64, requires_grad=True)
    blob = mithril.compress(tensor)
    out = torch.empty(64, 64)
    assert mithril.decompress(blob, out=out) is out
    assert torch.equal(out, tensor)
    conjugate = torch.randn(4, dtype=torch.complex64).conj()
    assert mithril.decompress_array(mithril.compress(conjugate)).tolist() == conjugate.tolist()
    with pytest.raises(ValueError, match="contiguous"):
        mithril.decompress(blob, out=torch.empty(128, 64)[::2])
    with pytest.raises(ValueError, match="move it to the CPU first"):
        mithril.compress(torch.empty(3, device="meta"))


def test_jax_and_mlx_arrays_are_read():
    import jax.numpy as jnp
    import mlx.core as mx

    for array in (jnp.arange(100, dtype=jnp.bfloat16), jnp.zeros((3, 0)), jnp.float32(7)):
        back = mithril.decompress_array(mithril.compress(array))
        assert (back.shape, back.tolist()) == (array.shape, np.asarray(array).tolist())
    for array in (mx.arange(100, dtype=mx.bfloat16), mx.zeros((3, 0)), mx.array(7.0), mx.arange(12).reshape(3, 4).T):
        back = mithril.decompress_array(mithril.compress(array))
        assert back.shape == array.shape
        assert back.astype(np.float32).tolist() == array.astype(mx.float32).tolist()
    with pytest.raises(ValueError, match="cannot be written"):
        mithril.decompress(mithril.compress(b"abcd"), out=jnp.zeros(1))
