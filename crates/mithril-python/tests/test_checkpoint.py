"""Whole states of training runs in a store."""

import asyncio
import copy
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
from collections import OrderedDict

import jax.numpy as jnp
import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
import safetensors.numpy
import torch

import mithril
import mithril.checkpoint as ckpt


@pytest.fixture
def compressor(tmp_path):
    return ckpt.Compressor(storage=f"local://{tmp_path}/store")


def trained():
    """A module and its optimizer after some steps."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.BatchNorm1d(128), torch.nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    step(module, optimizer)
    return module, optimizer


def step(module, optimizer):
    optimizer.zero_grad()
    module(torch.randn(32, 64)).square().sum().backward()
    optimizer.step()


def test_training_states_come_back(compressor):
    module, optimizer = trained()
    first = compressor.save({"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}, "step_1")
    step(module, optimizer)
    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2}
    meta = compressor.save(state, key="step_2", previous_key="step_1")
    assert meta.base == "step_1" and meta.original_size == first.original_size
    assert meta.compressed_size < first.compressed_size
    assert meta.ratio == pytest.approx(meta.original_size / meta.compressed_size)

    loaded = compressor.load("step_2")
    assert loaded["epoch"] == 2
    assert type(loaded["model"]) is OrderedDict and loaded["model"]._metadata == state["model"]._metadata
    other, other_optimizer = trained()
    other.load_state_dict(loaded["model"])
    other_optimizer.load_state_dict(loaded["optimizer"])
    for name, tensor in module.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
    assert list(compressor.list().keys()) == ["step_1", "step_2"]
    assert compressor.latest().key == "step_2"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", compressor.latest().saved)
    assert np.array_equal(compressor.load_tensor("step_2", "model.0.weight"), module[0].weight.detach().numpy())
    with pytest.raises(mithril.NotFoundError):
        compressor.load_tensor("step_2", "model.9.weight")


@pytest.mark.parametrize("numbered", [False, True])
def test_weights_start_from_their_moments(tmp_path, numbered):
    """Moments that are named after their weights, and those of `state_dict()`, which numbers them."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    module, optimizer = trained()
    stored = {}
    states = []
    for _ in range(2):
        moments = optimizer.state_dict() if numbered else get_optimizer_state_dict(module, optimizer)
        states.append(copy.deepcopy({"model": module.state_dict(), "optim": moments}))
        step(module, optimizer)
    for from_moments in (False, True):
        store = ckpt.Compressor(storage=f"local://{tmp_path}/{from_moments}", from_moments=from_moments)
        store.save(states[0], "step_1")
        stored[from_moments] = store.save(states[1], "step_2", "step_1").compressed_size
        loaded = store.load("step_2")
        for name, tensor in states[1]["model"].items():
            assert torch.equal(loaded["model"][name], tensor), name
        parameter = 0 if numbered else "0.weight"
        moments = loaded["optim"]["state"][parameter]
        assert torch.equal(moments["exp_avg"], states[1]["optim"]["state"][parameter]["exp_avg"])
    assert stored[True] < stored[False] - 5000


def test_numbered_moments_of_many_equal_shapes_are_found(tmp_path):
    """Groups with and without decay are numbered one after the other, and names are sorted otherwise."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(12)))
    decayed = [parameter for parameter in module.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in module.parameters() if parameter.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4)
    states = []
    for _ in range(6):
        step(module, optimizer)
        states.append(copy.deepcopy({"model": module.state_dict(), "optimizer": optimizer.state_dict()}))
    sizes = {}
    for from_moments in (False, True):
        options = {"from_moments": from_moments, "max_restore_cost": 10.0}
        store = ckpt.Compressor(storage=f"local://{tmp_path}/{from_moments}", **options)
        store.save(states[-2], "step_1")
        sizes[from_moments] = store.save(states[-1], "step_2", "step_1").compressed_size
        loaded = store.load("step_2")
        for name, tensor in states[-1]["model"].items():
            assert torch.equal(loaded["model"][name], tensor), name
    # Of two bytes and more that a weight took against its base, little is left.
    n_weights = sum(parameter.numel() for parameter in decayed)
    assert sizes[True] < sizes[False] - n_weights


def test_values_keep_their_types(compressor):
    state = {
        "none": None, "true": True, "int": -7, "large": 10**40, "float": 0.1, "nan": float("nan"), "zero": -0.0,
        "inf": float("inf"), "text": "ünï\ud800", "bytes": b"\0\xff", "tuple": (1, [2, (3,)]), "set": {1, 2},
        "frozen": frozenset("ab"), "complex": 1 - 2j, 3: "int key", (1, 2): "tuple key", "$": "mark", "empty": {},
        "dtype": torch.bfloat16, "device": torch.device("cpu"), "size": torch.Size([2, 3]), "npdtype": np.dtype("f4"),
        "scalar": np.float32(1.5), "bool_": np.bool_(True), "ordered": OrderedDict(b=1, a=2),
        "big-endian": np.arange(5, dtype=">i4"), "bf16": np.ones((2, 2), ml_dtypes.bfloat16), "zero-d": np.array(3),
        "jax": jnp.ones((2, 3), jnp.bfloat16), "mlx": mx.arange(4, dtype=mx.bfloat16), "nothing": torch.zeros(0, 3),
        "fp8": torch.ones(3).to(torch.float8_e4m3fn), "parameter": torch.nn.Parameter(torch.ones(2)),
        "grad": torch.ones(2, requires_grad=True), "strided": torch.arange(12.0).reshape(3, 4)[:, ::2],
    }  # fmt: skip
    compressor.save(state, "values")
    loaded = compressor.load("values")
    assert list(loaded) == list(state)
    for key, value in state.items():
        found = loaded[key]
        assert type(found) is type(value), key
        if isinstance(value, torch.Tensor):
            assert found.dtype == value.dtype and found.requires_grad == value.requires_grad
            assert torch.equal(found.detach().to(torch.float32), value.detach().to(torch.float32)), key
        elif isinstance(value, (np.ndarray, np.generic)):
            assert found.dtype == value.dtype and found.shape == value.shape and found.tobytes() == value.tobytes(), key
        elif key in ("jax", "mlx"):
            assert found.dtype == value.dtype and found.tolist() == value.tolist()
        elif isinstance(value, (set, frozenset)):
            # Their text has the order of their hashes, which differs from run to run.
            assert found == value, key
        else:
            assert repr(found) == repr(value), key


def test_shared_memory_is_shared_again(compressor):
    base = torch.randn(100, 8)
    array = np.arange(1000)
    state = {"whole": base, "rows": base[10:20], "t": base.t(), "tied": [base, base], "array": [array, array]}
    meta = compressor.save(state, "shared")
    assert meta.original_size == base.nbytes + array.nbytes
    loaded = compressor.load("shared")
    assert torch.equal(loaded["rows"], base[10:20]) and torch.equal(loaded["t"], base.t())
    loaded["whole"].zero_()
    assert not loaded["rows"].any() and not loaded["t"].any() and not loaded["tied"][1].any()
    assert np.shares_memory(*loaded["array"])


def test_names_that_clash_or_are_unsafe_are_kept_apart(compressor):
    one, two = np.zeros(3), np.ones(4)
    state = {"a.b": one, "a": {"b": two}, "..": one + 1, "/x": one + 2, "": one + 3, "__metadata__": one + 4}
    compressor.save(state, "names")
    loaded = compressor.load("names")
    assert loaded["a"]["b"].tolist() == [1] * 4
    for key in ("a.b", "..", "/x", "", "__metadata__"):
        assert np.array_equal(loaded[key], state[key]), key


class Unknown:
    """Something that only pickle can store."""

    def __eq__(self, other):
        return isinstance(other, Unknown)


def test_what_has_no_representation_is_refused_by_path(compressor, tmp_path):
    with pytest.raises(TypeError, match=r"`model\.1\.bad` is a .*Unknown"):
        compressor.save({"model": [0, {"bad": Unknown()}]}, "bad")
    with pytest.raises(TypeError, match=r"`x`: unsupported numpy dtype object"):
        compressor.save({"x": np.array([None])}, "bad")
    circle = []
    circle.append(circle)
    with pytest.raises(ValueError, match="contains itself"):
        compressor.save({"circle": circle}, "bad")
    assert list(compressor.list().keys()) == []
    trusting = ckpt.Compressor(storage=f"local://{tmp_path}/store", trusted=True)
    trusting.save({"model": Unknown()}, "pickled")
    assert trusting.load("pickled") == {"model": Unknown()}
    with pytest.raises(TypeError, match="trusted=True"):
        compressor.load("pickled")


def test_wrong_keys_have_their_exceptions(compressor):
    state = {"w": np.zeros(10)}
    compressor.save(state, "one")
    with pytest.raises(mithril.ConflictError):
        compressor.save(state, "one")
    with pytest.raises(mithril.NotFoundError):
        compressor.save(state, "two", previous_key="absent")
    with pytest.raises(mithril.NotFoundError):
        compressor.load("absent")
    with pytest.raises(ValueError, match="safe name"):
        compressor.save(state, "../escape")
    with pytest.raises((ValueError, mithril.MithrilError)):
        ckpt.Compressor(storage="nonsense://x")
    with pytest.raises(ValueError, match="level"):
        ckpt.Compressor(storage="memory://", compression_level=99)
    compressor.delete("one")
    with pytest.raises(mithril.NotFoundError):
        compressor.delete("one")


def test_damage_is_found(compressor, tmp_path):
    rng = np.random.default_rng(0)
    compressor.save({"w": rng.standard_normal(5000)}, "a")
    compressor.save({"w": rng.standard_normal(5000)}, "b")
    report = compressor.verify()
    # Without steps their order is that of their generations, which are random.
    assert sorted(report.intact) == ["a", "b"] and not report.damaged
    assert compressor.verify("a", deep=True).decoded >= 1
    data = sorted((tmp_path / "store").rglob("*.mckp"))
    damaged = bytearray(data[0].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    data[0].write_bytes(damaged)
    report = compressor.verify(deep=True)
    assert len(report.intact) == 1 and len(report.damaged) == 1
    with pytest.raises(mithril.CorruptError):
        compressor.load(report.damaged[0][0])
    assert compressor.load(report.intact[0])["w"].shape == (5000,)


def test_garbage_is_collected_and_chains_are_cut(compressor):
    state = {"w": np.random.default_rng(1).standard_normal(10_000).astype(np.float32)}
    compressor.save(state, "a")
    # Little enough that reading the base and what changed costs less than half more than reading all of it.
    state["w"][:100] += np.float32(1e-3)
    compressor.save(state, "b", "a")
    assert compressor.meta("b").depth == 1
    assert compressor.rebase("b").depth == 0
    compressor.delete("a")
    assert np.array_equal(compressor.load("b")["w"], state["w"])
    planned = compressor.gc(dry_run=True, min_age=0)
    assert compressor.gc(min_age=0).removed == planned.removed
    assert compressor.gc(min_age=0).removed == []
    assert np.array_equal(compressor.load("b")["w"], state["w"])
    kept = ckpt.Compressor(storage=compressor.storage, keep_last=1)
    kept.save(state, "c", "b")
    kept.apply_retention()
    assert list(kept.list().keys()) == ["c"]
    assert np.array_equal(kept.load("c")["w"], state["w"])


def test_saves_in_the_background_are_of_the_moment(compressor):
    state = {"w": np.zeros(100_000, np.float32)}
    handle = compressor.save_async(state, "before")
    state["w"] += 1
    assert handle.result(60).key == handle.key == "before" and handle.done()
    assert not compressor.load("before")["w"].any()

    async def run():
        meta = await compressor.save_async(state, "after", "before")
        loaded = await compressor.load_async("after")
        return meta, loaded

    meta, loaded = asyncio.run(run())
    assert meta.key == "after" and loaded["w"].all()
    failing = compressor.save_async(state, "after")
    with pytest.raises(mithril.ConflictError):
        failing.result()
    assert compressor.flush(10) == [] or all(handle.done() for handle in compressor.flush(10))


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_training_goes_on_while_its_states_are_saved(compressor, framework):
    """A hundred saves in the background of tensors that change all the time: each has the bytes of its call."""
    weights = np.zeros(20_000, np.float32)
    tensor = weights if framework == "numpy" else torch.from_numpy(weights)
    previous = None
    for step in range(100):
        weights[:] = step
        handle = compressor.save_async({"w": tensor}, f"step_{step}", previous)
        while not handle.done():
            weights += 0.5
        handle.result()
        previous = f"step_{step}"
    for step in range(100):
        assert (np.asarray(compressor.load(f"step_{step}")["w"]) == step).all(), step


def test_map_location_decides_where_tensors_go(compressor):
    compressor.save({"w": torch.ones(3)}, "k")
    assert compressor.load("k", map_location="cpu")["w"].device.type == "cpu"
    assert compressor.load("k", map_location="meta")["w"].device.type == "meta"
    assert compressor.load("k", map_location={"cpu": "meta"})["w"].device.type == "meta"
    seen = []
    compressor.load("k", map_location=lambda tensor, device: seen.append(device))
    assert seen == ["cpu"]


def child(compressor, key):
    compressor.save({"w": np.arange(10)}, key)
    os._exit(0 if compressor.load(key)["w"].sum() == 45 else 1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_compressors_go_to_other_processes(compressor, method):
    assert pickle.loads(pickle.dumps(compressor)).storage == compressor.storage
    compressor.save_async({"w": np.zeros(5)}, "parent").result()
    process = multiprocessing.get_context(method).Process(target=child, args=(compressor, f"child-{method}"))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    assert set(compressor.list().keys()) == {"parent", f"child-{method}"}


def test_loading_runs_no_pickle(compressor):
    compressor.save({"w": np.arange(10), "n": (1, None, "x")}, "k")
    code = f"""
import sys, numpy, mithril.checkpoint
compressor = mithril.checkpoint.Compressor({compressor.storage!r})
compressor.load("k")
events, armed = [], True
words = ("pickle", "exec", "compile", "subprocess", "os.system", "import", "marshal", "ctypes")
sys.addaudithook(lambda event, arguments: events.append(event) if armed and event.startswith(words) else None)
compressor.load("k"); compressor.list(); compressor.verify()
armed = False
print(events)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_progress_is_told(compressor):
    told = []
    compressor.save({"w": np.zeros(1000)}, "k", progress=lambda *step: told.append(step))
    assert told[-1] == (8000, 8000, "k")


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, store):
        self.store, self.calls = store, []

    def __getattr__(self, name):
        self.calls.append(name)
        return getattr(self.store, name)


def test_a_checkpoint_of_the_command_is_read_at_once(tmp_path):
    state = {f"layer.{number}": np.full((3, 4), number, np.float32) for number in range(50)}
    safetensors.numpy.save_file(state, tmp_path / "model.safetensors")
    command = ["mithril", "store", str(tmp_path / "store"), "save", "step_7", str(tmp_path / "model.safetensors")]
    assert mithril._mithril.run_cli(command) == 0
    compressor = ckpt.Compressor(tmp_path / "store")
    counting = Counting(compressor._store)
    compressor._opened = (os.getpid(), counting)
    loaded = compressor.load("step_7")
    assert counting.calls == ["describe", "load_into"]
    assert loaded.keys() == state.keys() and all(np.array_equal(loaded[name], state[name]) for name in state)
    assert compressor.load("latest").keys() == state.keys()


def test_latest_is_the_newest_wherever_a_key_is_read(compressor):
    with pytest.raises(mithril.NotFoundError, match="no checkpoint in"):
        compressor.load("latest")
    for number in (1, 2):
        compressor.save({"w": np.full(4, number)}, f"step_{number}")
    assert compressor.load("latest")["w"].tolist() == [2] * 4
    assert asyncio.run(compressor.load_async("latest"))["w"].tolist() == [2] * 4
    assert compressor.load_tensor("latest", "w").tolist() == [2] * 4
    assert compressor.meta("latest").key == "step_2"
