"""What kill -9 of a rank in the middle of a save leaves of PyTorch's distributed checkpoints.

    python tools/dcp_faults.py [--kills 200] [--seed 1] [--stock]

In every round two to four ranks (gloo) save a sharded state again and again through mithril, half of the rounds in the
background, and one of them or all are killed at a random moment. They save in turn

- to a new directory, whole or against the one before, with `latest` moved and all but the last four removed;
- over the checkpoint in one and the same directory, with `overwrite=True`.

Afterwards whatever calls itself a checkpoint must load bit by bit as one save made it; what was acknowledged and is among
the last four must be there; `latest` and the directory that is written over must hold the last acknowledged save or a later
one; and a save over a finished checkpoint must be refused without harm. Counts of lost, torn and unreadable checkpoints are
printed, and any makes the exit status 1.

`--stock` does the same with torch's own writer in its default, which overwrites one directory in place, and only counts.

Needs the Python package with torch.
"""

import argparse
import collections
import itertools
import logging
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

import mithril
import torch

# Both are needed at the first save: here, so that they are imported once and not by every rank.
import torch._dynamo
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from mithril._adapters import numpy as _numpy  # noqa: F401
from mithril.checkpoint import torch as ours
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

MAX_RANKS, N_KEPT, EVERY_WHOLE = 4, 4, 4
SHAPES = {"weights": (511, 1024), "moments": (256, 512), "replicated": (1000,)}
# Along which the others are sharded.
DIMENSIONS = {"weights": 0, "moments": 1}
# What the parent and the ranks share, so that nothing is lost with a rank: which save each of them has in hand and has
# been told is safe, of each place. No save yet is -1.
PLACES = ("run", "replaced")
context = multiprocessing.get_context("fork")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stock", action="store_true", help="torch's own writer, over one directory")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        acknowledged = {place: [] for place in PLACES}
        for kill in range(options.kills):
            one_kill(root, kill, options.stock, chance, acknowledged, counts)
            if options.stock:
                check_stock(root, kill, acknowledged, counts)
            else:
                check(root, acknowledged, counts)
    n_bad = counts["lost"] + counts["torn"] + counts["unreadable"]
    print(
        f"{options.kills} kills, {counts['mid-save']} of them in the middle of a save, {counts['acknowledged']} saves "
        f"acknowledged: {counts['lost']} lost, {counts['torn']} torn, {counts['unreadable']} unreadable"
    )
    if options.stock:
        return
    print(f"checkpoints loaded and compared: {counts['whole']}; overwriting refused {counts['refused']} times")
    sys.exit(1 if n_bad or counts["refused"] != options.kills else 0)


def one_kill(root, kill, stock, chance, acknowledged, counts):
    n_ranks = chance.randint(2, MAX_RANKS)
    in_hand = {place: context.RawArray("q", [-1] * n_ranks) for place in PLACES}
    safe = {place: context.RawArray("q", [-1] * n_ranks) for place in PLACES}
    background = chance.random() < 0.5
    meeting_place = root / "meeting"
    meeting_place.unlink(missing_ok=True)
    known = [number for numbers in acknowledged.values() for number, _ in numbers] + resumed_at(root / "run")
    first = 1 + max(known, default=-1)
    target = save_stock if stock else save_for_ever
    arguments = (n_ranks, root, meeting_place, kill, first, background, in_hand, safe)
    ranks = [context.Process(target=as_rank, args=(target, rank, *arguments)) for rank in range(n_ranks)]
    for rank in ranks:
        rank.start()
    # Some saves later, at a moment between its beginning and well behind its end.
    n_before = chance.randint(1, 5)
    deadline, since = time.monotonic() + 120, None
    while (now := max(max(numbers) for numbers in in_hand.values())) < first + n_before:
        if now >= first and since is None:
            since = time.monotonic()
        if time.monotonic() > deadline or not all(rank.is_alive() for rank in ranks):
            logs = "\n".join(path.read_text() for path in sorted(root.glob("rank*.log")))
            sys.exit(f"the ranks do not save:\n{logs}")
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 1.2) * (time.monotonic() - since) / n_before)
    victims = list(range(n_ranks)) if chance.random() < 0.3 else [chance.randrange(n_ranks)]
    for victim in victims:
        os.kill(ranks[victim].pid, signal.SIGKILL)
    counts["mid-save"] += any(in_hand[place][v] > safe[place][v] for place in PLACES for v in victims)
    for rank in ranks:
        rank.join(3)
        if rank.is_alive():
            # Waiting for the one that was killed.
            os.kill(rank.pid, signal.SIGKILL)
            rank.join()
    for place in PLACES:
        numbers = range(first, max(safe[place]) + 1)
        new = [(number, kill) for number in numbers if stock or place_of(number) == place]
        acknowledged[place] += new
        counts["acknowledged"] += len(new)


def resumed_at(run):
    """What a run goes on behind: a save may be finished, never acknowledged, and not yet named by the file `latest`."""
    found = newest(run)
    return [] if found is None else [int(found.name.removeprefix("step_"))]


def place_of(number):
    return PLACES[number % 2]


def as_rank(target, rank, n_ranks, root, meeting_place, *arguments):
    with open(root / f"rank{rank}.log", "w") as log:
        os.dup2(log.fileno(), 2)
    url = f"file://{meeting_place}"
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=n_ranks, timeout=timedelta(seconds=20))
    target(rank, root, init_device_mesh("cpu", (n_ranks,)), *arguments)


def save_for_ever(rank, root, mesh, kill, first, background, in_hand, safe):
    sharded, previous = Sharded(mesh), None
    for number in itertools.count(first):
        state = sharded.at(kill, number)
        place = place_of(number)
        if place == "run":
            path = root / "run" / f"step_{number:06}"
            # After a restart against the newest of the last run, whose world may have had another size.
            base = previous or newest(root / "run")
            how = {"base": base if number % EVERY_WHOLE else None, "step": number, "keep_last": N_KEPT}
            previous = path
        else:
            path, how = root / "replaced" / "checkpoint", {"overwrite": True}
        in_hand[place][rank] = number
        if background:
            ours.async_save(state, checkpoint_id=path, threads=1, **how).result()
            dist.barrier()
        else:
            ours.save(state, checkpoint_id=path, threads=1, **how)
        safe[place][rank] = number


def newest(run):
    try:
        return ours.latest(run)
    except mithril.NotFoundError:
        return None


def save_stock(rank, root, mesh, kill, first, background, in_hand, safe):
    sharded = Sharded(mesh)
    for number in itertools.count(first):
        state = sharded.at(kill, number)
        in_hand["replaced"][rank] = number
        if background:
            response = dcp.async_save(state, checkpoint_id=root / "replaced" / "checkpoint")
            getattr(response, "upload_completion", response).result()
        else:
            dcp.save(state, checkpoint_id=root / "replaced" / "checkpoint")
        dist.barrier()
        safe["replaced"][rank] = number


def full(kill, number):
    """The state of a save. It changes a little from one to the next, and no two are the same, also if made again."""
    generator = torch.Generator().manual_seed(1)
    change = torch.Generator().manual_seed(kill * 100_000 + number)
    tensors = {}
    for name, shape in SHAPES.items():
        dtype = torch.bfloat16 if name == "weights" else torch.float32
        moved = torch.rand(shape, generator=change) * 1e-3
        tensors[name] = torch.randn(shape, generator=generator).add_(moved).to(dtype)
    return tensors


class Sharded:
    """The part of the state that a rank has, which changes in place from save to save."""

    def __init__(self, mesh):
        self.mesh = mesh
        self.tensors = full(0, 0)
        for name in ("weights", "moments"):
            tensor = self.tensors[name]
            size = {"shape": tensor.shape, "stride": tensor.stride()}
            local = self.part(name, tensor).clone()
            self.tensors[name] = DTensor.from_local(local, mesh, [Shard(DIMENSIONS[name])], run_check=False, **size)

    def part(self, name, tensor):
        return tensor.chunk(self.mesh.size(), DIMENSIONS[name])[self.mesh.get_rank()].contiguous()

    def at(self, kill, number):
        for name, tensor in full(kill, number).items():
            if name in DIMENSIONS:
                self.tensors[name].to_local().copy_(self.part(name, tensor))
            else:
                self.tensors[name].copy_(tensor)
        return {"tensors": self.tensors, "save": [kill, number]}


def check(root, acknowledged, counts):
    found = {}
    for path in sorted((root / "run").glob("step_*/manifest.json")):
        found[path.parent.name] = whole(path.parent, counts)
    for number, kill in acknowledged["run"][-N_KEPT:]:
        # Also saves that were finished and never acknowledged push out older ones.
        n_newer = sum(name > f"step_{number:06}" for name in found)
        if n_newer < N_KEPT and found.get(f"step_{number:06}") != [kill, number]:
            lost(f"save {number} was acknowledged, there is {sorted(found)}", counts)
    if acknowledged["run"]:
        newest = ours.latest(root / "run").name
        if (found.get(newest) or [0, -1])[1] < acknowledged["run"][-1][0]:
            lost(f"latest is {newest}, acknowledged was {acknowledged['run'][-1][0]}", counts)
    path = root / "replaced" / "checkpoint"
    if acknowledged["replaced"]:
        number = (whole(path, counts) or [0, -1])[1]
        if number < acknowledged["replaced"][-1][0]:
            lost(f"what is written over holds {number}, acknowledged was {acknowledged['replaced'][-1][0]}", counts)
    path = next((root / "run").glob("step_*/manifest.json")).parent if found else path
    try:
        ours.save({"other": torch.zeros(3)}, checkpoint_id=path, no_dist=True)
    except (mithril.MithrilError, dcp.CheckpointException):
        counts["refused"] += path.name not in found or whole(path, counts) == found[path.name]


def lost(what, counts):
    print(f"lost: {what}", file=sys.stderr)
    counts["lost"] += 1


def whole(path, counts, load=ours.load):
    """The save that a checkpoint is of, or None. Says what is wrong with it."""
    state = {"tensors": {name: torch.zeros_like(tensor) for name, tensor in full(0, 0).items()}, "save": [None, None]}
    try:
        load(state, checkpoint_id=path, no_dist=True)
    except (Exception, dcp.CheckpointException) as error:  # noqa: BLE001 - whatever torch makes of it
        print(f"{path.name}: {type(error).__name__}: {' '.join(str(error).split())[-200:]}", file=sys.stderr)
        counts["unreadable"] += 1
        return None
    expected = full(*state["save"])
    if not all(torch.equal(bits(expected[name]), bits(tensor)) for name, tensor in state["tensors"].items()):
        counts["torn"] += 1
        return None
    counts["whole"] += 1
    return state["save"]


def bits(tensor):
    return tensor.reshape(-1).view(torch.uint8)


def check_stock(root, kill, acknowledged, counts):
    path = root / "replaced" / "checkpoint"
    if acknowledged["replaced"]:
        save = whole(path, counts, dcp.load)
        counts["lost"] += save is not None and save[1] < acknowledged["replaced"][-1][0]
    shutil.rmtree(path.parent, ignore_errors=True)
    acknowledged["replaced"].clear()


if __name__ == "__main__":
    main()
