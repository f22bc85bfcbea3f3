"""Two ranks that save and load as they should not, or not quite: run by `test_torch_rules.py`.

python dcp_rules.py RANK PORT DIRECTORY
"""

import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from leaving import leave
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh

from mithril.checkpoint.torch import MithrilStorageReader, MithrilStorageWriter

try:
    from torch.distributed.tensor import DTensor, Shard
except ImportError:
    # Before torch 2.5.
    from torch.distributed._tensor import DTensor, Shard

WORLD = 2
# Old versions of torch make a plan for every save.
CACHING = {"enable_plan_caching": True} if "enable_plan_caching" in inspect.signature(DefaultSavePlanner).parameters else {}
ROWS = 64


def full(step: int) -> torch.Tensor:
    tensor = torch.randn(ROWS, 200, generator=torch.Generator().manual_seed(1)).bfloat16()
    tensor[step] += 1
    return tensor


def sharded(step: int, mesh: DeviceMesh) -> dict[str, Any]:
    mine = full(step).chunk(WORLD)[dist.get_rank()].clone()
    return {"w": DTensor.from_local(mine, mesh, [Shard(0)], run_check=False), "step": step}


def zeros(mesh: DeviceMesh) -> dict[str, Any]:
    local = torch.zeros(ROWS // WORLD, 200, dtype=torch.bfloat16)
    return {"w": DTensor.from_local(local, mesh, [Shard(0)], run_check=False), "step": None}


def check(path: Path, step: int, mesh: DeviceMesh) -> None:
    loaded = zeros(mesh)
    dcp.load(loaded, storage_reader=MithrilStorageReader(path))
    expected = full(step).chunk(WORLD)[dist.get_rank()]
    assert torch.equal(loaded["w"].to_local().view(torch.int16), expected.view(torch.int16))
    assert loaded["step"] == step


def fails(call: Callable[[], object], *texts: str) -> CheckpointException:
    """All ranks are told, in the same words."""
    caught = None
    try:
        call()
    except CheckpointException as error:
        caught = error
    assert caught is not None, f"nothing was raised, where {texts} was expected"
    for text in texts:
        assert text in str(caught), f"`{text}` is not in: {caught}"
    dist.barrier()
    return caught


class FailsOnOne(MithrilStorageWriter):
    """Rank 1 cannot write."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        if dist.get_rank() == 1:
            raise OSError(28, "No space left on device")
        return super().write_data(plan, planner)


class FailsToFinish(MithrilStorageWriter):
    def finish(self, metadata: Any, results: Any) -> None:
        raise OSError(5, "Input/output error")


class Forgets(MithrilStorageWriter):
    """Rank 1 does not say what it has written."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        written = super().write_data(plan, planner)
        if dist.get_rank() == 0:
            return written
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result([])
        return future


class Overlapping(DefaultSavePlanner):  # type: ignore[misc]
    """Both ranks say that they have all rows, from different ones on."""

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        for item in plan.items:
            if item.tensor_data is not None and dist.get_rank() == 1:
                chunk = item.tensor_data.chunk
                chunk.offsets = torch.Size([chunk.offsets[0] - 1, 0])
        return plan


def main(rank: int, port: int, place: Path) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(WORLD))
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    mesh = DeviceMesh("cpu", list(range(WORLD)))
    alone = dist.new_group([0])
    one = place / "one"
    dcp.save(sharded(0, mesh), storage_writer=MithrilStorageWriter(one))

    # One rank fails: nobody commits, everyone is told by whom, and what was there is untouched.
    for writer, options in ((FailsOnOne, {}), (FailsOnOne, {"overwrite": True}), (FailsToFinish, {"overwrite": True})):
        target = one if options else place / "failed"
        what = "No space left" if writer is FailsOnOne else "Input/output error"
        error = fails(lambda w=writer, t=target, o=options: dcp.save(sharded(1, mesh), storage_writer=w(t, **o)), what)
        assert list(error.failures) == [1 if writer is FailsOnOne else 0]
        assert not (place / "failed" / "manifest.json").exists()
        check(one, 0, mesh)
    # The same place can be saved to afterwards.
    dcp.save(sharded(1, mesh), storage_writer=MithrilStorageWriter(place / "failed"))
    check(place / "failed", 1, mesh)

    fails(lambda: dcp.save(sharded(1, mesh), storage_writer=Forgets(place / "forgot")), "nothing is committed", "w")
    assert not (place / "forgot" / "manifest.json").exists()
    fails(lambda: dcp.save(sharded(1, mesh), storage_writer=MithrilStorageWriter(one)), "already", "overwrite=True")
    check(one, 0, mesh)

    # A plan that torch's validation refuses is not written.
    wrong = MithrilStorageWriter(place / "overlap")
    fails(lambda: dcp.save(sharded(1, mesh), storage_writer=wrong, planner=Overlapping()), "plan")
    assert not (place / "overlap").exists()

    # One rank cannot read: everyone is told.
    broken = place / "failed"
    manifest = json.loads((broken / "manifest.json").read_text())["body"]
    dist.barrier()
    file_of_one = next(file for file in manifest["files"] if file.startswith("r00001"))
    if rank == 0:
        (broken / file_of_one).unlink()
    dist.barrier()
    fails(lambda: dcp.load(zeros(mesh), storage_reader=MithrilStorageReader(broken)), file_of_one, "missing")

    # Plans that are kept: each save has its own containers and base.
    for step in range(3):
        writer = MithrilStorageWriter(place / f"kept_{step}", base=place / f"kept_{step - 1}" if step else None)
        dcp.save(sharded(step, mesh), storage_writer=writer, planner=DefaultSavePlanner(**CACHING))
        check(place / f"kept_{step}", step, mesh)
    sizes = [sum(file.stat().st_size for file in (place / f"kept_{step}").glob("*.mckp")) for step in range(3)]
    assert max(sizes[1:]) < sizes[0] / 3, sizes

    # Another number of ranks than the base had: chunks that begin elsewhere are stored whole, and everything is right.
    if rank == 0:
        whole = {"w": full(2), "step": 2}
        writer = MithrilStorageWriter(place / "by_one", base=place / "kept_0")
        dcp.save(whole, storage_writer=writer, process_group=alone)
    dist.barrier()
    check(place / "by_one", 2, mesh)
    dcp.save(sharded(1, mesh), storage_writer=MithrilStorageWriter(place / "by_two", base=place / "by_one"))
    check(place / "by_two", 1, mesh)
    if rank == 0:
        print("all rules hold")
    leave()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
