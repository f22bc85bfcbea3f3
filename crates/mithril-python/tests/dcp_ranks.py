"""Four ranks that save and load checkpoints among themselves, in every layout: run by `test_torch_checkpoint.py`.

    python dcp_ranks.py RANK PORT PLACE

Groups of 1, 2 and 4 of them save, groups of 1 to 4 load; each checks every bit. In an object store, where torch's own
storage is not at work, groups of 2 and 4 save by mithril's, from rows.
"""

import os
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from leaving import leave
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.device_mesh import DeviceMesh

from mithril.checkpoint.torch import (
    MithrilExtension,
    MithrilLoadPlanner,
    MithrilSavePlanner,
    MithrilStorageReader,
    MithrilStorageWriter,
    _extension,
)

try:
    from torch.distributed.tensor import DTensor, Replicate, Shard
except ImportError:
    # Before torch 2.5.
    from torch.distributed._tensor import DTensor, Replicate, Shard

WORLD = 4
LAYOUTS = {"rows": Shard(0), "columns": Shard(1), "replicated": Replicate()}
# Seven rows are uneven on two ranks and on four; three rows leave one of four without any.
SHAPES = {"even": (8, 12), "uneven": (7, 10), "few": (3, 5)}
TYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "i64": torch.int64, "f8": torch.float8_e4m3fn}


def full_tensors(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for shape_name, shape in SHAPES.items():
        for type_name, dtype in TYPES.items():
            numbers = torch.randn(shape, generator=generator) * 50
            tensors[f"{shape_name}.{type_name}"] = (numbers + 0.01 * step).to(dtype)
    # Wide enough for a delta to pay, and one dimension, where a planner's mistake would go unnoticed.
    big = torch.randn(64, 200, generator=generator)
    tensors["big.bf16"] = (big * (1 + 1e-3 * step)).bfloat16()
    tensors["flat.f32"] = torch.randn(1000, generator=generator) + 1e-4 * step
    return tensors


# By number of ranks. All ranks must make each mesh, also those that are not in it.
MESHES: dict[int, DeviceMesh] = {}


def laid_out(tensor: torch.Tensor, layout: object, ranks: list[int]) -> DTensor | torch.Tensor:
    """The tensor, or zeros of it, as this rank's part of a distributed one."""
    mesh = MESHES[len(ranks)]
    if isinstance(layout, Replicate) or layout.dim >= tensor.dim():
        local, layout = tensor, Replicate()
    else:
        parts = tensor.chunk(len(ranks), layout.dim)
        mine = ranks.index(dist.get_rank())
        empty = tensor.narrow(layout.dim, 0, 0)
        local = parts[mine] if mine < len(parts) else empty
    local = local.contiguous().clone()
    return DTensor.from_local(local, mesh, [layout], run_check=False, shape=tensor.shape, stride=tensor.stride())


def state(layout: object, ranks: list[int], step: int, *, zeros: bool) -> dict[str, object]:
    tensors = full_tensors(step)
    if zeros:
        tensors = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    nested = {name: laid_out(tensor, layout, ranks) for name, tensor in tensors.items()}
    return {
        "model": nested,
        "scalar": torch.tensor(0.0 if zeros else 2.5),
        "optimizer": {
            "lr": None if zeros else 1e-3,
            "betas": None if zeros else (0.9, 0.95),
            "steps": [None if zeros else step],
        },
    }


def check(loaded: dict[str, object], layout: object, ranks: list[int], step: int) -> None:
    expected = state(layout, ranks, step, zeros=False)
    for name, tensor in expected["model"].items():
        ours, theirs = loaded["model"][name].to_local(), tensor.to_local()
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, name
        assert torch.equal(ours.reshape(-1).view(torch.uint8), theirs.reshape(-1).view(torch.uint8)), name
    assert torch.equal(loaded["scalar"], expected["scalar"])
    assert loaded["optimizer"] == expected["optimizer"], loaded["optimizer"]
    assert type(loaded["optimizer"]["betas"]) is tuple


def save(way: str, path: str, contents: object, group: object, base: str | None) -> None:
    if way == "writer":
        dcp.save(contents, storage_writer=MithrilStorageWriter(path, base=base), process_group=group)
    elif way == "planner":
        dcp.save(contents, storage_writer=FileSystemWriter(path), planner=MithrilSavePlanner(), process_group=group)
    else:
        writer = FileSystemWriter(path, _extensions=[MithrilExtension()])
        dcp.save(contents, storage_writer=writer, process_group=group)


def load(way: str, path: str, contents: object, group: object) -> None:
    if way == "writer":
        dcp.load(contents, storage_reader=MithrilStorageReader(path), process_group=group)
    elif way == "planner":
        dcp.load(contents, storage_reader=FileSystemReader(path), planner=MithrilLoadPlanner(), process_group=group)
    else:
        reader = FileSystemReader(path, _extension_registry=MithrilExtension.registry())
        dcp.load(contents, storage_reader=reader, process_group=group)


def main(rank: int, port: int, place: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(WORLD))
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    members = {n: list(range(n)) for n in range(1, WORLD + 1)}
    groups = {n: dist.new_group(ranks) for n, ranks in members.items()}
    MESHES.update({n: DeviceMesh("cpu", ranks) for n, ranks in members.items()})
    n_checked = 0
    is_local = "://" not in place
    ways = ["writer", "delta"]
    if is_local:
        # Old versions of torch have no extensions.
        ways += ["planner", "extension"] if _extension.AVAILABLE else ["planner"]
    for n_saving in (1, 2, 4) if is_local else (2, 4):
        for save_layout in LAYOUTS if is_local else ("rows",):
            for way in ways:
                step = 2 if way == "delta" else 1
                path = f"{place}/{way}-{n_saving}-{save_layout}"
                base = f"{place}/writer-{n_saving}-{save_layout}" if way == "delta" else None
                kind = "writer" if way == "delta" else way
                if rank < n_saving:
                    contents = state(LAYOUTS[save_layout], members[n_saving], step, zeros=False)
                    save(kind, path, contents, groups[n_saving], base)
                dist.barrier()
                for n_loading in range(1, WORLD + 1):
                    # Every layout meets every other one over the numbers of ranks.
                    load_layout = list(LAYOUTS.values())[(n_loading + n_saving) % len(LAYOUTS)]
                    if rank < n_loading:
                        contents = state(load_layout, members[n_loading], step, zeros=True)
                        load(kind, path, contents, groups[n_loading])
                        check(contents, load_layout, members[n_loading], step)
                    n_checked += 1
                    dist.barrier()
    if rank == 0:
        print(f"checked {n_checked}")
    leave()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
