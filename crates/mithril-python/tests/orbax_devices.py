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
    print(f"checked {n_checked}")


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
    else:
        alone(Path(place))
