"""JAX checkpoints through Orbax, with the real package; several devices and processes in programs of their own."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp_v1
import pytest
from flax import nnx

import mithril
from mithril.checkpoint.orbax import (
    MithrilCheckpointableHandler,
    MithrilCheckpointHandler,
    MithrilRestore,
    MithrilSave,
)

# Orbax warns of its own interfaces that are about to go.
pytestmark = pytest.mark.filterwarnings("ignore")


class Moments(NamedTuple):
    """As optax has them."""

    mu: Any
    nu: Any


def tree(seed: int = 1) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    return {
        "params": {
            "dense": {"kernel": normal(64, 48).astype(jnp.bfloat16), "bias": normal(48)},
            "f8": [normal(16, 8).astype(jnp.float8_e4m3fn), normal(16, 8).astype(jnp.float8_e5m2)],
            "narrow": jnp.arange(-4, 4).astype(jnp.int4),
            "special": jnp.asarray([np.nan, np.inf, -0.0, 1e-40], jnp.float32),
            "scalar": jnp.float32(3.5),
            "empty": jnp.zeros((0, 4)),
            "key": jax.random.key(seed),
        },
        "opt": (Moments(normal(5), normal(5, 3)), None),
        "host": {"ints": np.arange(7), "fortran": np.asfortranarray(np.eye(3)), "zero": np.float64(0.1)},
        "odd/name": {1: np.complex128(1 + 2j), 20: {"a~b/c": np.arange(3).astype(ml_dtypes.float8_e3m4)}},
        "plain": [7, 1.5, True, "text", b"bytes", 2**70, float("inf"), None],
    }


def check_equal(one: Any, other: Any) -> None:
    flat, definition = jax.tree_util.tree_flatten(one)
    theirs, their_definition = jax.tree_util.tree_flatten(other)
    assert definition == their_definition
    for leaf, their_leaf in zip(flat, theirs, strict=True):
        if isinstance(leaf, jax.Array):
            assert isinstance(their_leaf, jax.Array)
        else:
            assert type(leaf) is type(their_leaf)
        if hasattr(leaf, "dtype"):
            assert leaf.dtype == their_leaf.dtype and leaf.shape == their_leaf.shape
            if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                leaf, their_leaf = jax.random.key_data(leaf), jax.random.key_data(their_leaf)
            assert np.asarray(leaf).tobytes() == np.asarray(their_leaf).tobytes()
        else:
            assert leaf == their_leaf


def abstract(contents: Any) -> Any:
    return jax.tree_util.tree_map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, jax.Array) else leaf, contents
    )


def saved(path: Path, contents: Any, **options: Any) -> Path:
    ocp.Checkpointer(MithrilCheckpointHandler(compression_level=3)).save(path, args=MithrilSave(contents, **options))
    return path


def restored(path: Path, target: Any = None, **options: Any) -> Any:
    return ocp.Checkpointer(MithrilCheckpointHandler()).restore(path, args=MithrilRestore(target, **options))


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_trees_come_back_as_they_were(tmp_path: Path) -> None:
    saved(tmp_path / "one", tree())
    check_equal(restored(tmp_path / "one", tree(2)), tree())
    check_equal(restored(tmp_path / "one", abstract(tree(2))), tree())
    # Without a target, named tuples are dictionaries.
    wanted = tree()
    wanted["opt"] = ({"mu": wanted["opt"][0].mu, "nu": wanted["opt"][0].nu}, None)
    check_equal(restored(tmp_path / "one"), wanted)
    ours = {file.suffix for file in (tmp_path / "one").iterdir()} - {".txt", ""}
    assert ours == {".json", ".mckp"} and len(list((tmp_path / "one").glob("*.json"))) == 1


def test_the_short_form_works_too(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(MithrilCheckpointHandler(compression_level=3))
    checkpointer.save(tmp_path / "one", tree())
    check_equal(checkpointer.restore(tmp_path / "one", item=tree(2)), tree())
    with pytest.raises(ValueError, match="already exists"):
        checkpointer.save(tmp_path / "one", tree())
    checkpointer.save(tmp_path / "one", tree(5), force=True)
    check_equal(checkpointer.restore(tmp_path / "one", item=tree(2)), tree(5))


def test_saves_in_the_background_are_not_changed_by_training(tmp_path: Path) -> None:
    contents = tree()
    donated = jnp.asarray(np.random.default_rng(0).standard_normal((512, 256), np.float32))
    expected = np.array(donated)
    contents["donated"] = donated
    checkpointer = ocp.AsyncCheckpointer(MithrilCheckpointHandler())
    checkpointer.save(tmp_path / "one", args=MithrilSave(contents))
    jax.jit(lambda x: x * 0, donate_argnums=0)(donated).block_until_ready()
    contents["host"]["ints"][:] = 0
    checkpointer.wait_until_finished()
    loaded = restored(tmp_path / "one")
    assert loaded["donated"].tobytes() == expected.tobytes()
    assert loaded["host"]["ints"].tolist() == list(range(7))
    checkpointer.close()


@pytest.mark.parametrize("background", [False, True])
def test_a_manager_keeps_the_last(tmp_path: Path, background: bool) -> None:
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=background)
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        for step in range(4):
            manager.save(step, args=ocp.args.Composite(state=MithrilSave(tree(step)), note=ocp.args.JsonSave({"step": step})))
        manager.wait_until_finished()
        assert manager.all_steps() == [2, 3] and manager.latest_step() == 3
        loaded = manager.restore(3, args=ocp.args.Composite(state=MithrilRestore(tree()), note=ocp.args.JsonRestore()))
        check_equal(loaded["state"], tree(3))
        assert loaded["note"] == {"step": 3}
    # A new process knows only what is on disk: the arguments say which handler it is.
    with ocp.CheckpointManager(tmp_path) as manager:
        check_equal(manager.restore(2, args=ocp.args.Composite(state=MithrilRestore(tree()))).state, tree(2))


def test_a_manager_takes_a_handler_with_options(tmp_path: Path) -> None:
    weights = {"w": jnp.asarray(np.random.default_rng(3).standard_normal((256, 256), np.float32))}
    sizes = {}
    for effort in ("fast", "max"):
        handlers = {"state": MithrilCheckpointHandler(effort=effort)}
        with ocp.CheckpointManager(tmp_path / effort, item_handlers=handlers) as manager:
            manager.save(0, args=ocp.args.Composite(state=MithrilSave(weights)))
            manager.wait_until_finished()
            check_equal(manager.restore(0, args=ocp.args.Composite(state=MithrilRestore(weights))).state, weights)
            shapes = manager.item_metadata(0)["state"]
            assert shapes["w"].shape == (256, 256) and shapes["w"].dtype == jnp.float32
        sizes[effort] = size_of(tmp_path / effort)
    assert sizes["max"] < sizes["fast"]


def test_states_of_flax_come_back(tmp_path: Path) -> None:
    model = nnx.state(nnx.Linear(4, 5, rngs=nnx.Rngs(0)))
    saved(tmp_path / "one", model)
    shapes = jax.eval_shape(lambda: nnx.state(nnx.Linear(4, 5, rngs=nnx.Rngs(0))))
    loaded = restored(tmp_path / "one", shapes)
    assert type(loaded) is type(model)
    check_equal(loaded, model)


def test_smaller_than_orbax_itself(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    weights = {f"w{n}": jnp.asarray(rng.standard_normal((512, 512), np.float32) * 0.02).astype(jnp.bfloat16) for n in range(4)}
    saved(tmp_path / "ours", weights)
    with ocp.StandardCheckpointer() as theirs:
        theirs.save(tmp_path / "theirs", weights)
    assert size_of(tmp_path / "ours") < 0.9 * size_of(tmp_path / "theirs")


def test_version_1_of_the_interface(tmp_path: Path) -> None:
    # A name that nobody has registered for the whole process.
    registry = ocp_v1.handlers.local_registry()
    registry.add(MithrilCheckpointableHandler, checkpointable_name="tensors")
    context = ocp_v1.Context(checkpointables_options=ocp_v1.options.CheckpointablesOptions(registry=registry))
    with context:
        ocp_v1.save_checkpointables(tmp_path / "one", {"tensors": tree(), "note": {"step": 3}})
        loaded = ocp_v1.load_checkpointables(tmp_path / "one", {"tensors": abstract(tree(2))})
        check_equal(loaded["tensors"], tree())
        ocp_v1.save_checkpointables_async(tmp_path / "two", {"tensors": tree(2)}).result()
        check_equal(ocp_v1.load_checkpointables(tmp_path / "two", {"tensors": tree()})["tensors"], tree(2))
        shapes = ocp_v1.checkpointables_metadata(tmp_path / "two").metadata["tensors"]
        assert shapes["params"]["dense"]["kernel"].shape == (64, 48)
    assert (tmp_path / "one" / "tensors" / "manifest.json").is_file()
    handler = MithrilCheckpointableHandler()
    assert handler.is_handleable(tree()) and not handler.is_handleable({"a": object()})
    assert handler.is_abstract_handleable(abstract(tree())) and not handler.is_abstract_handleable({"a": object()})


def test_deltas_are_small_and_need_their_base(tmp_path: Path) -> None:
    weights = {"w": np.random.default_rng(3).standard_normal((256, 512)).astype(ml_dtypes.bfloat16)}
    saved(tmp_path / "0", weights)
    for step in (1, 2):
        weights["w"][step] *= 2
        saved(tmp_path / str(step), weights, base=tmp_path / str(step - 1))
        check_equal(restored(tmp_path / str(step)), weights)
    sizes = [size_of(tmp_path / str(step)) for step in range(3)]
    assert max(sizes[1:]) < sizes[0] / 10, sizes
    shutil.rmtree(tmp_path / "0")
    with pytest.raises(mithril.NotFoundError, match="stored against another checkpoint"):
        restored(tmp_path / "2")
    with pytest.raises(mithril.NotFoundError):
        saved(tmp_path / "3", weights, base=tmp_path / "0")
    saved(tmp_path / "0", weights)
    with pytest.raises(mithril.BaseMismatchError, match="written anew"):
        restored(tmp_path / "2")


def test_a_manager_keeps_deltas_readable_if_the_base_is_kept(tmp_path: Path) -> None:
    weights = {"w": np.random.default_rng(3).standard_normal((256, 512)).astype(np.float32)}
    options = ocp.CheckpointManagerOptions(max_to_keep=1, keep_period=10)
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        for step in (10, 11, 12):
            base = None if step == 10 else tmp_path / str(step - 1) / "default"
            weights["w"][0] += 1
            manager.save(step, args=MithrilSave(weights, base=base))
            manager.wait_until_finished()
        assert manager.all_steps() == [10, 12]
        check_equal(manager.restore(12, args=MithrilRestore(weights)), weights)


def test_targets_decide(tmp_path: Path) -> None:
    path = saved(tmp_path / "one", {"a": jnp.ones((4, 3)), "b": {"c": np.arange(5), "n": 3}})
    half = restored(path, {"a": jax.ShapeDtypeStruct((4, 3), jnp.bfloat16), "b": {"c": np.zeros(5, np.int8), "n": 0.0}})
    assert half["a"].dtype == jnp.bfloat16 and half["b"]["c"].dtype == np.int8 and half["b"]["n"] == 3.0
    assert restored(path, {"a": ..., "b": {"c": jnp.zeros(5, jnp.int32), "n": jnp.int32(0)}})["a"] is ...
    only = restored(path, {"b": {"n": 0}}, partial_restore=True)
    assert only == {"b": {"n": 3}}
    with pytest.raises(ValueError, match=r"`a`.*partial_restore"):
        restored(path, {"b": {"c": np.zeros(5, np.int64), "n": 0}})
    with pytest.raises(mithril.NotFoundError, match="`b/d`"):
        restored(path, {"a": ..., "b": {"c": ..., "n": ..., "d": 1}})
    with pytest.raises(ValueError, match=r"`a` has the shape \(4, 3\) in the checkpoint, and \(3, 4\)"):
        restored(path, {"a": jnp.ones((3, 4)), "b": {"c": ..., "n": ...}})
    with pytest.raises(ValueError, match=r"`b/c` is an array"):
        restored(path, {"a": ..., "b": {"c": 1, "n": ...}})
    for wrong in ("text", False):
        with pytest.raises(ValueError, match=r"`b/n` is a int"):
            restored(path, {"a": ..., "b": {"c": ..., "n": wrong}})
    with pytest.raises(TypeError, match=r"`b/c`"):
        restored(path, {"a": ..., "b": {"c": object(), "n": ...}})
    wide = saved(tmp_path / "wide", {"w": np.arange(3) + 2**40})
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(ValueError, match="jax_enable_x64"):
        restored(wide, {"w": jax.ShapeDtypeStruct((3,), np.int64, sharding=here)})


def test_targets_by_to_shape_dtype_struct_give_what_was_saved(tmp_path: Path) -> None:
    """Beside Orbax's own handler: arrays of numpy in 64 bits, keys, and what they are asked for as."""
    state = {
        "wide": {"f": np.array([0.1, 1e300]), "i": np.arange(3) + 2**40, "scalar": np.float64(0.1)},
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), 4),
        "w": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
        "n": 3,
    }
    orbax = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    orbax.save(tmp_path / "orbax", args=ocp.args.StandardSave(state))
    ours = saved(tmp_path / "ours", state)
    wanted = jax.tree_util.tree_map(ocp.utils.to_shape_dtype_struct, state)
    assert wanted["key"].shape == (2,) and wanted["wide"]["f"].dtype == np.float64
    narrowed = {**wanted, "wide": {**wanted["wide"], "f": jax.ShapeDtypeStruct((2,), np.float32)}}
    placed = {**wanted, "wide": {**wanted["wide"], "i": jax.ShapeDtypeStruct((3,), np.int32, sharding=state["w"].sharding)}}
    by_shape = {**wanted, "key": jax.ShapeDtypeStruct((), state["key"].dtype), "keys": state["keys"]}
    for target in (wanted, narrowed, placed, by_shape):
        expected = orbax.restore(tmp_path / "orbax", args=ocp.args.StandardRestore(target))
        found = restored(ours, target)
        flat, definition = jax.tree_util.tree_flatten(expected)
        assert jax.tree_util.tree_structure(found) == definition
        for leaf, ours_leaf in zip(flat, jax.tree_util.tree_leaves(found), strict=True):
            assert type(ours_leaf) is type(leaf) or isinstance(ours_leaf, np.generic), (type(ours_leaf), type(leaf))
            if isinstance(leaf, jax.Array):
                assert ours_leaf.sharding == leaf.sharding
            if hasattr(leaf, "dtype"):
                assert ours_leaf.dtype == leaf.dtype and ours_leaf.shape == leaf.shape
                leaf, ours_leaf = (
                    jax.random.key_data(k)
                    if k.dtype == leaf.dtype != "uint32" and jnp.issubdtype(k.dtype, jax.dtypes.prng_key)
                    else k
                    for k in (leaf, ours_leaf)
                )
            assert np.asarray(ours_leaf).tobytes() == np.asarray(leaf).tobytes()
    with pytest.raises(ValueError, match=r"`keys` has the shape \(4,\)"):
        restored(ours, {**wanted, "keys": jax.ShapeDtypeStruct((3,), np.uint32)})


def test_none_in_a_target_leaves_out(tmp_path: Path) -> None:
    state = {"a": jnp.ones(2), "b": {"c": np.arange(3), "d": 1}, "b2": 5, "e": [jnp.zeros(1), None]}
    orbax = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    orbax.save(tmp_path / "orbax", args=ocp.args.StandardSave(state))
    ours = saved(tmp_path / "ours", state)
    target = {"a": None, "b": {"c": None, "d": 1}, "b2": None, "e": [jnp.zeros(1), None]}
    found = restored(ours, target)
    check_equal(found, orbax.restore(tmp_path / "orbax", args=ocp.args.StandardRestore(target)))
    assert found["a"] is None and found["b"]["c"] is None and found["b2"] is None
    assert restored(ours, {**target, "b": None})["b"] is None
    with pytest.raises(ValueError, match="`b2`"):
        restored(ours, {"a": None, "b": None, "e": [None, None]})


def test_every_dtype_of_numpy_and_ml_dtypes_comes_back(tmp_path: Path) -> None:
    names = [name for name in dir(ml_dtypes) if isinstance(getattr(ml_dtypes, name), type) and name not in ("finfo", "iinfo")]
    dtypes = [np.dtype(getattr(ml_dtypes, name)) for name in names]
    dtypes += [np.dtype(code) for code in "?bhilqBHILQefdFD"] + [np.dtype(">f4"), np.dtype(">c16"), np.dtype(">i8")]
    assert len(names) >= 15
    rng = np.random.default_rng(5)
    leaves = {}
    for n, dtype in enumerate(dtypes):
        leaves[f"{n}"] = rng.integers(0, 2, (4, 3)).astype(np.int8).astype(dtype)
    found = restored(saved(tmp_path / "all", leaves))
    for name, leaf in leaves.items():
        assert found[name].dtype == leaf.dtype.newbyteorder("=") and found[name].shape == leaf.shape, leaf.dtype
        assert found[name].tobytes() == leaf.astype(leaf.dtype.newbyteorder("=")).tobytes(), leaf.dtype


def test_what_cannot_be_saved_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    for bad in (object(), np.array(["text"]), np.array([None]), jax.ShapeDtypeStruct((1,), jnp.float32)):
        with pytest.raises(TypeError, match="`a/b`"):
            saved(tmp_path / "one", {"a": {"b": bad}})
        assert not (tmp_path / "one").exists()

    class Alike(int):
        def __str__(self) -> str:
            return "alike"

    with pytest.raises(ValueError, match="two leaves of the tree have the name `alike`"):
        saved(tmp_path / "one", {Alike(1): 2, Alike(2): 3})


def test_damage_is_told(tmp_path: Path) -> None:
    def copied(name: str) -> tuple[Path, Path, Path]:
        path = shutil.copytree(tmp_path / "good", tmp_path / name)
        return path, path / "manifest.json", next(path.glob("*.mckp"))

    saved(tmp_path / "good", tree())
    path, _, container = copied("missing")
    container.unlink()
    with pytest.raises(mithril.NotFoundError, match="not whole"):
        restored(path)
    path, manifest, _ = copied("unfinished")
    manifest.unlink()
    with pytest.raises(mithril.NotFoundError, match="no finished checkpoint"):
        restored(path)
    path, manifest, _ = copied("newer")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 2}))
    with pytest.raises(mithril.UnsupportedError, match="version 2"):
        restored(path)
    path, manifest, _ = copied("altered")
    manifest.write_text(manifest.read_text().replace("[64,48]", "[48,64]"))
    with pytest.raises(mithril.CorruptError, match="digest"):
        restored(path)
    path, _, container = copied("damaged")
    good = container.read_bytes()
    n_refused = 0
    for place in range(50, len(good), len(good) // 40):
        container.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        # Some bytes between tensors are only for salvage, and not looked at.
        try:
            check_equal(restored(path, tree(2)), tree())
        except mithril.MithrilError:
            n_refused += 1
    assert n_refused > 25
    path, _, container = copied("short")
    container.write_bytes(container.read_bytes()[:-1000])
    with pytest.raises(mithril.MithrilError):
        restored(path)
    with pytest.raises(FileNotFoundError):
        restored(tmp_path / "nowhere")
    with pytest.raises(mithril.UnsupportedError, match=r"copy it, or save the tree by mithril\.checkpoint\.Compressor"):
        MithrilCheckpointHandler().restore("gs://bucket/run")


def run(arguments: list[str], n_devices: int) -> subprocess.Popen[str]:
    program = Path(__file__).parent / "orbax_devices.py"
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={n_devices}",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, str(program), *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_every_sharding_is_restored_to_every_other(tmp_path: Path) -> None:
    process = run(["shardings", str(tmp_path)], 8)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "checked 100" in output
    process = run(["fewer", str(tmp_path)], 4)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "fewer" in output, output


def test_two_processes_save_one_checkpoint(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [run(["processes", str(tmp_path), port, str(number)], 4) for number in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    # One process restores what two have saved.
    process = run(["alone", str(tmp_path)], 8)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
