"""Run by test_orbax.py with several devices, and as one of two processes: shards saved, and restored to other shardings."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp_v1
from jax.sharding import NamedSharding, PartitionSpec

from mithril.checkpoint.orbax import (
    MithrilCheckpointableHandler,
    MithrilCheckpointHandler,
    MithrilRestore,
    MithrilSave,
)

SPECS = [
    PartitionSpec(),
    PartitionSpec("x"),
    PartitionSpec(None, "x"),
    PartitionSpec("x", "y"),
    PartitionSpec(("x", "y")),
    PartitionSpec(None, ("x", "y")),
    PartitionSpec("y", "x"),
    PartitionSpec("y"),
    PartitionSpec(None, "y"),
    PartitionSpec(None, ("y", "x")),
]
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.int32, jnp.bool_]


def weights(n: int) -> np.ndarray:
    values = np.random.default_rng(n).standard_normal((16, 24), np.float32)
    return np.asarray(jnp.asarray(values).astype(DTYPES[n]))


def shardings() -> list[NamedSharding]:
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    return [NamedSharding(mesh, spec) for spec in SPECS]


def tree_in(sharding: NamedSharding) -> dict[str, jax.Array]:
    made = {
        f"w{n}": jax.make_array_from_callback((16, 24), sharding, lambda index, n=n: weights(n)[index])
        for n in range(len(DTYPES))
    }
    return {
        **made,
        "whole": jax.make_array_from_callback((), NamedSharding(sharding.mesh, PartitionSpec()), lambda _: np.float32(2)),
    }


def blank_in(sharding: NamedSharding) -> dict[str, jax.ShapeDtypeStruct]:
    made = {f"w{n}": jax.ShapeDtypeStruct((16, 24), dtype, sharding=sharding) for n, dtype in enumerate(DTYPES)}
    return {**made, "whole": jax.ShapeDtypeStruct((), jnp.float32, sharding=NamedSharding(sharding.mesh, PartitionSpec()))}


def check(loaded: dict[str, jax.Array], sharding: NamedSharding) -> None:
    for n, dtype in enumerate(DTYPES):
        array = loaded[f"w{n}"]
        assert array.dtype == dtype and array.sharding.is_equivalent_to(sharding, 2)
        for shard in array.addressable_shards:
            assert np.asarray(shard.data).tobytes() == weights(n)[shard.index].tobytes()
    assert float(loaded["whole"].addressable_shards[0].data) == 2


def every_sharding(directory: Path) -> None:
    n_checked = 0
    checkpointer = ocp.Checkpointer(MithrilCheckpointHandler())
    for number, source in enumerate(shardings()):
        path = directory / str(number)
        checkpointer.save(path, args=MithrilSave(tree_in(source)))
        for target in shardings():
            check(checkpointer.restore(path, args=MithrilRestore(blank_in(target))), target)
            n_checked += 1
    # Against a base with other chunks, and with the same.
    for number, source in enumerate(shardings()[2:5]):
        path = directory / f"delta{number}"
        checkpointer.save(path, args=MithrilSave(tree_in(source), base=directory / "3"))
        check(checkpointer.restore(path, args=MithrilRestore(blank_in(shardings()[5]))), shardings()[5])
    # A mesh of fewer devices, and none.
    small = NamedSharding(jax.sharding.Mesh(np.array(jax.devices()[:3]).reshape(3, 1), ("x", "y")), PartitionSpec(None, "x"))
    check(checkpointer.restore(directory / "3", args=MithrilRestore(blank_in(small))), small)
    for n, array in enumerate(checkpointer.restore(directory / "3")[f"w{n}"] for n in range(len(DTYPES))):
        assert np.asarray(array).tobytes() == weights(n).tobytes()
    restored_where_they_were(directory)
    print(f"checked {n_checked}")


def restored_where_they_were(directory: Path) -> None:
    """Beside Orbax itself: without a target, or with one that says nothing of shardings."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), devices=jax.devices()[3:7])
    keys = jax.random.split(jax.random.key(1), 8)
    tree = {
        **{f"s{n}": array for n, sharding in enumerate(shardings()) for array in [tree_in(sharding)["w0"]]},
        "part": jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, PartitionSpec(("y", "x")))),
        "device": jax.device_put(np.arange(3), jax.devices()[6]),
        "keys": jax.device_put(keys, NamedSharding(mesh, PartitionSpec("y"))),
        "numpy": np.arange(3.0),
    }
    ocp.Checkpointer(ocp.StandardCheckpointHandler()).save(directory / "orbax", args=ocp.args.StandardSave(tree))
    checkpointer = ocp.Checkpointer(MithrilCheckpointHandler())
    checkpointer.save(directory / "ours", args=MithrilSave(tree))
    blank = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in tree.items()}
    structs = jax.tree_util.tree_map(ocp.utils.to_shape_dtype_struct, tree)
    for target in (None, blank, structs):
        theirs = ocp.Checkpointer(ocp.StandardCheckpointHandler())
        expected = theirs.restore(directory / "orbax", args=ocp.args.StandardRestore(target))
        found = checkpointer.restore(directory / "ours", args=MithrilRestore(target))
        for name, array in tree.items():
            assert isinstance(found[name], np.ndarray) == isinstance(array, np.ndarray), name
            if isinstance(array, jax.Array):
                assert found[name].sharding.is_equivalent_to(array.sharding, array.ndim), (name, found[name].sharding)
                if name != "keys":
                    assert found[name].sharding == expected[name].sharding, name
            raw, wanted = (jax.random.key_data(a) if name == "keys" else a for a in (found[name], array))
            assert np.asarray(raw).tobytes() == np.asarray(wanted).tobytes(), name


def fewer(directory: Path) -> None:
    """The mesh is not there: arrays come to the default device."""
    assert jax.device_count() == 4
    found = ocp.Checkpointer(MithrilCheckpointHandler()).restore(directory / "ours")
    for n in range(len(SPECS)):
        assert np.asarray(found[f"s{n}"]).tobytes() == weights(0).tobytes()
        assert found[f"s{n}"].sharding.device_set == {jax.devices()[0]}
    print("fewer")


def one_of_two(directory: Path, port: str, number: int) -> None:
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=number)
    assert jax.device_count() == 8 and jax.process_count() == 2
    source, target = shardings()[3], shardings()[5]
    checkpointer = ocp.Checkpointer(MithrilCheckpointHandler())
    checkpointer.save(directory / "sync", args=MithrilSave(tree_in(source)))
    check(checkpointer.restore(directory / "sync", args=MithrilRestore(blank_in(target))), target)
    with ocp.CheckpointManager(directory / "manager") as manager:
        manager.save(1, args=ocp.args.Composite(state=MithrilSave(tree_in(source))))
        manager.wait_until_finished()
        loaded = manager.restore(1, args=ocp.args.Composite(state=MithrilRestore(blank_in(target))))
        check(loaded["state"], target)
    ocp_v1.handlers.register_handler(MithrilCheckpointableHandler, checkpointable_name="weights")
    ocp_v1.save_checkpointables(directory / "v1", {"weights": tree_in(source)})
    check(ocp_v1.load_checkpointables(directory / "v1", {"weights": blank_in(target)})["weights"], target)
    assert len(list((directory / "v1" / "weights").glob("r0000*.mckp"))) == 2


def alone(directory: Path) -> None:
    target = shardings()[6]
    checkpointer = ocp.Checkpointer(MithrilCheckpointHandler())
    for path in ("sync", "manager/1/state", "v1/weights"):
        check(checkpointer.restore(directory / path, args=MithrilRestore(blank_in(target))), target)


if __name__ == "__main__":
    what, place, *rest = sys.argv[1:]
    if what == "shardings":
        every_sharding(Path(place))
    elif what == "processes":
        one_of_two(Path(place), rest[0], int(rest[1]))
    elif what == "fewer":
        fewer(Path(place))
    else:
        alone(Path(place))
