"""Number types: the lists of safetensors, torch, numpy with ml_dtypes and MLX beside ours, so that a new one is noticed."""

import io

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from test_safetensors import comparable

import mithril
import mithril.safetensors.torch
from mithril import _mithril
from mithril._adapters import _dtypes
from mithril._adapters import mlx as mlx_adapter
from mithril._adapters import numpy as numpy_adapter
from mithril._adapters import torch as torch_adapter
from mithril.checkpoint import torch as ours
from mithril.checkpoint.torch import _extension

pytestmark = pytest.mark.filterwarnings("ignore")

# Types of torch that mithril names by those of another: nothing but a checkpoint has them.
NAMELESS = {"complex128", "complex32", "bcomplex32"}
# For compilers: torch fills whole bytes, and its own planners refuse them, as they do not know their size.
SHELLS = {f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)}
BITS = {"bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"}
# Tensors of these have scales beside their numbers, and neither safetensors nor DCP takes them.
QUANTISED = {"qint8", "qint32", "quint8", "quint4x2", "quint2x4"}
# Of whole bytes, and in no container: JAX uses them, and Orbax stores them as bytes.
OF_ML_DTYPES_ALONE = {
    "bcomplex32", "complex32", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4", "float8_e4m3",
    "float8_e4m3b11fnuz", "int1", "int2", "int4", "uint1", "uint2", "uint4",
}  # fmt: skip


def names_of_torch():
    found = [getattr(torch, name) for name in dir(torch)]
    return {str(dtype).removeprefix("torch.") for dtype in found if isinstance(dtype, torch.dtype)}


def made(dtype, seed=3):
    """A tensor of any type and of all bytes."""
    generator = torch.Generator().manual_seed(seed)
    width = 1 if dtype == torch.bool else 255
    raw = torch.randint(0, width + 1, (6, 4 * dtype.itemsize), dtype=torch.uint8, generator=generator)
    return raw.view(dtype)


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def test_the_table_has_every_type():
    assert [names.ours for names in _dtypes.TABLE] == _mithril.dtype_names()
    known = {names.torch for names in _dtypes.TABLE} - {None}
    assert names_of_torch() - known == names_of_torch() & (NAMELESS | SHELLS | BITS | QUANTISED)
    known = {names.mlx for names in _dtypes.TABLE} - {None}
    assert {name for name in dir(mx) if isinstance(getattr(mx, name), mx.Dtype)} == known
    known = {names.numpy for names in _dtypes.TABLE} - {None}
    of_numpy = {np.dtype(code).name for code in np.typecodes["All"] if code not in "SUVOMm"}
    assert of_numpy - known == {"complex128", "float128", "complex256"} & of_numpy
    of_ml_dtypes = {name for name in dir(ml_dtypes) if isinstance(getattr(ml_dtypes, name), type)} - {"finfo", "iinfo"}
    assert of_ml_dtypes - known == OF_ML_DTYPES_ALONE
    for adapter, column in ((numpy_adapter, "numpy"), (mlx_adapter, "mlx"), (torch_adapter, "torch")):
        assert set(adapter._NAMES.values()) == {n.ours for n in _dtypes.TABLE if getattr(n, column) is not None}


def test_the_table_has_every_type_of_safetensors():
    theirs = set(safetensors.torch._TYPES) | {"F4", "F6_E2M3", "F6_E3M2"}
    assert theirs <= set(_mithril.dtype_names())
    assert {str(dtype).removeprefix("torch.") for dtype in safetensors.torch._SIZE if dtype is not None} == {
        names.torch for names in _dtypes.TABLE
    } - {None}


@pytest.mark.parametrize("name", [names.torch for names in _dtypes.TABLE if names.torch is not None])
def test_every_type_of_torch_is_saved_as_the_package_saves_it(name, tmp_path):
    tensors = {"w": made(getattr(torch, name)), "nothing": made(getattr(torch, name))[:0]}
    plain = safetensors.torch.save(tensors)
    packed = mithril.safetensors.torch.save(tensors)
    assert mithril.safetensors.decompress_bytes(packed) == plain
    for blob in (packed, plain):
        assert comparable(mithril.safetensors.torch.load(blob)) == comparable(tensors)
    (tmp_path / "plain").write_bytes(plain)
    (tmp_path / "packed").write_bytes(packed)
    with safetensors.safe_open(tmp_path / "plain", "pt") as theirs:
        expected = comparable(theirs.get_tensors())
        shape, dtype = theirs.get_slice("w").get_shape(), theirs.get_slice("w").get_dtype()
    for path in (tmp_path / "plain", tmp_path / "packed"):
        with mithril.safetensors.safe_open(path, "pt") as file:
            assert comparable(file.get_tensors()) == expected
            part = file.get_slice("w")
            assert (part.get_shape(), part.get_dtype()) == (shape, dtype)
            assert raw(part[2:5]) == raw(tensors["w"][2:5]) and part[2:5].shape == tensors["w"][2:5].shape
            assert raw(part[3]) == raw(tensors["w"][3])
    frame = mithril.compress(tensors["w"])
    out = torch.zeros_like(tensors["w"].view(torch.uint8)).view(tensors["w"].dtype)
    assert raw(mithril.decompress(frame, out=out)) == raw(tensors["w"])


def test_pairs_that_share_a_byte_are_not_taken_apart(tmp_path):
    tensors = {"w": made(torch.float4_e2m1fn_x2), "flat": made(torch.float4_e2m1fn_x2)[0]}
    mithril.safetensors.torch.save_file(tensors, tmp_path / "packed")
    with mithril.safetensors.safe_open(tmp_path / "packed", "pt") as file:
        for name, index in (("w", (0, 1)), ("w", (slice(None), slice(0, 2))), ("flat", slice(0, 2)), ("flat", 1), ("w", None)):
            with pytest.raises(mithril.UnsupportedError, match="share a byte"):
                file.get_slice(name)[index]
        for index in ((), ..., (...,)):
            assert raw(file.get_slice("flat")[index]) == raw(tensors["flat"])
    with mithril.safetensors.safe_open(tmp_path / "packed", "np") as file, pytest.raises(mithril.UnsupportedError, match="F4"):
        file.get_tensor("w")
    with pytest.raises(TypeError, match="without dimensions"):
        mithril.compress(tensors["flat"][0])
    header = b'{"a":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}}'
    odd = len(header).to_bytes(8, "little") + header + b"abc"
    with pytest.raises(mithril.UnsupportedError, match="pairs"):
        mithril.safetensors.torch.load(odd)


@pytest.mark.parametrize("name", [names.numpy for names in _dtypes.TABLE if names.numpy is not None])
def test_every_type_of_numpy_comes_back(name):
    array = np.random.default_rng(2).integers(0, 2 if name == "bool" else 255, (5, 64), np.uint8)
    array = array.view(numpy_adapter.dtype_called(name))
    back = mithril.decompress_array(mithril.compress(array))
    assert comparable(back) == comparable(array)
    packed = mithril.safetensors.load(mithril.safetensors.save({"w": array}))
    assert comparable(packed["w"]) == comparable(array)


@pytest.mark.parametrize("name", sorted(names_of_torch() - QUANTISED - SHELLS - BITS))
def test_every_type_of_torch_comes_back_from_checkpoints(name, tmp_path):
    tensor = made(getattr(torch, name))
    state = {"w": tensor, "scalar": tensor[0, 0], "object": {"dtype": tensor.dtype}}

    dcp.save(state, storage_writer=ours.MithrilStorageWriter(tmp_path / "storage"), no_dist=True)
    loaded = {"w": made(tensor.dtype, 9), "scalar": made(tensor.dtype, 9)[0, 0]}
    dcp.load(loaded, storage_reader=ours.MithrilStorageReader(tmp_path / "storage"), no_dist=True)
    assert raw(loaded["w"]) == raw(tensor) and raw(loaded["scalar"]) == raw(tensor[0, 0])
    delta = ours.MithrilStorageWriter(tmp_path / "delta", base=tmp_path / "storage")
    dcp.save(state, storage_writer=delta, no_dist=True)
    part = {"w": made(tensor.dtype, 9)}
    dcp.load(part, storage_reader=ours.MithrilStorageReader(tmp_path / "delta"), no_dist=True)
    assert raw(part["w"]) == raw(tensor)
    planner = {"w": made(tensor.dtype, 9)}
    dcp.save({"w": tensor}, checkpoint_id=tmp_path / "planner", planner=ours.MithrilSavePlanner(), no_dist=True)
    dcp.load(planner, checkpoint_id=tmp_path / "planner", planner=ours.MithrilLoadPlanner(), no_dist=True)
    assert raw(planner["w"]) == raw(tensor)


@pytest.mark.parametrize("name", sorted(names_of_torch() - QUANTISED - SHELLS - BITS))
def test_the_extension_knows_every_type(name):
    archive = io.BytesIO()
    torch.save(made(getattr(torch, name)), archive)
    found = _extension._dtype_of(archive.getvalue()[: _extension._HEAD])
    expected = {names.torch: names.ours for names in _dtypes.TABLE}.get(name) or _dtypes.stored_as(name, 16)[0]
    assert found == expected
    assert mithril.decompress(mithril.compress(archive.getvalue(), dtype=found)) == archive.getvalue()
