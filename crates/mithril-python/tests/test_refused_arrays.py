"""Arrays that are more than type, shape and numbers are refused by name: nothing of them is lost without a word."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import mlx.core as mx
import numpy as np
import pytest
import torch

import mithril
import mithril.checkpoint as ckpt
import mithril.safetensors
from mithril._adapters import torch as torch_adapter


class Named(np.ndarray):
    """An array with a name, as packages for units and labels have them."""


class Labelled(torch.Tensor):
    """A tensor with a label."""


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def quantized():
    return torch.quantize_per_tensor(torch.ones(4), 0.1, 3, torch.quint8)


def dtensor():
    from torch.distributed.tensor import DTensor, init_device_mesh

    os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"})
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        return DTensor.from_local(torch.ones(4), init_device_mesh("cpu", (1,)))
    finally:
        torch.distributed.destroy_process_group()


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3)


ARRAYS = {
    "masked": (lambda: np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0]), "MaskedArray.*mask"),
    "masked without a mask": (lambda: np.ma.masked_array([1.0, 2.0]), "MaskedArray"),
    "matrix": (lambda: np.ones(3).view(np.matrix), "matrix.*asarray"),
    "records": (lambda: np.ones(3).view(np.recarray), "recarray"),
    "characters": (lambda: np.array(["a", "b"]).view(np.char.chararray), "chararray"),
    "subclass": (lambda: np.ones(3).view(Named), "Named"),
    "torch subclass": (lambda: torch.ones(3).as_subclass(Labelled), "Labelled"),
    "nested": (nested, "nested.*unbind"),
    "quantized": (quantized, "quantized.*int_repr"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "sparse_coo.*to_dense"),
    "dtensor": (dtensor, "DTensor.*full_tensor"),
    "fake": (fake, "FakeTensor"),
    "random key": (lambda: jax.random.key(3), "key_data"),
}
if hasattr(torch.Tensor, "has_names"):
    ARRAYS["named"] = (lambda: torch.ones(2, 3, names=("rows", "columns")), "names")
# What torch says of types that it may change.
IGNORED = pytest.mark.filterwarnings("ignore:.*(prototype|experimental|deprecated|beta).*")


@IGNORED
@pytest.mark.parametrize("name", ARRAYS)
def test_more_than_an_array_is_refused_by_name(name):
    make, why = ARRAYS[name]
    array = make()
    compressor = ckpt.Compressor("memory://")
    with pytest.raises(TypeError, match=f"`model.w` is a .*{why}"):
        compressor.save({"model": {"w": array}}, "step_1")
    assert compressor.keys() == []
    with pytest.raises(TypeError, match=why):
        mithril.compress(array)
    with pytest.raises(TypeError, match=why):
        mithril.compress_array(array)
    with pytest.raises(TypeError, match=why):
        mithril.safetensors.save({"w": array})


def test_what_is_trusted_comes_back_as_it_was():
    compressor = ckpt.Compressor("memory://", trusted=True)
    masked = np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    state = {"masked": masked, "matrix": np.ones(3).view(np.matrix), "sparse": torch.eye(3).to_sparse()}
    compressor.save(state, "step_1")
    loaded = compressor.load("step_1")
    assert type(loaded["masked"]) is type(masked) and loaded["masked"].mask.tolist() == [False, True, False]
    assert type(loaded["matrix"]) is np.matrix
    assert torch.equal(loaded["sparse"].to_dense(), torch.eye(3))


def test_plain_arrays_of_every_framework_come_back(tmp_path):
    mapped = np.lib.format.open_memmap(tmp_path / "w.npy", "w+", np.float32, (3, 4))
    mapped[:] = np.arange(12).reshape(3, 4)
    assert type(mapped) is np.memmap
    state = {
        "memmap": mapped,
        "scalar": np.float32(0.5),
        "parameter": torch.nn.Parameter(torch.arange(4.0)),
        "buffer": torch.nn.Buffer(torch.arange(3)),
        "jax": jnp.arange(5),
        "mlx": mx.arange(6),
    }
    compressor = ckpt.Compressor("memory://")
    compressor.save(state, "step_1")
    loaded = compressor.load("step_1")
    assert type(loaded["memmap"]) is np.ndarray and np.array_equal(loaded["memmap"], mapped)
    assert type(loaded["scalar"]) is np.float32 and loaded["scalar"] == 0.5
    assert type(loaded["parameter"]) is torch.nn.Parameter and torch.equal(loaded["parameter"], state["parameter"])
    assert torch.equal(loaded["buffer"], state["buffer"])
    assert jnp.array_equal(loaded["jax"], state["jax"]) and mx.array_equal(loaded["mlx"], state["mlx"]).item()


def test_a_traced_array_has_no_values():
    def traced(x):
        with pytest.raises(TypeError, match="traced"):
            mithril.compress(x)
        return x

    jax.jit(traced)(jnp.ones(3))


def test_a_masked_array_is_no_output():
    blob = mithril.compress(np.arange(4, dtype=np.float32))
    out = np.ma.masked_array(np.zeros(4, np.float32), mask=[0, 1, 0, 0])
    with pytest.raises(TypeError, match="MaskedArray"):
        mithril.decompress(blob, out=out)
    assert torch_adapter.refusal(torch.nn.Parameter(torch.ones(2))) is None
