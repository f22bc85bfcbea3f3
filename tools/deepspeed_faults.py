"""What kill -9 of a rank in the middle of a save leaves of DeepSpeed checkpoints that go through mithril.

    python tools/deepspeed_faults.py [--kills 200] [--ranks 2] [--seed 1] [--decoupled]

Ranks save again and again, to three tags in turn, so that most saves replace an older one. At a random moment one of them, or
all, are killed; the rest notice and end. Then every tag must hold the state of one save, on all ranks and bit by bit, or be
refused; the tag that `latest` names must be whole, and not older than the last save that was acknowledged. Needs the Python
package with torch and DeepSpeed.
"""

import argparse
import itertools
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

warnings.simplefilter("ignore")
os.environ["DS_ACCELERATOR"] = "cpu"

import mithril
import torch
import torch.distributed as dist
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import (
    CheckpointCommitInfo,
)
from mithril.checkpoint.deepspeed import MithrilCheckpointEngine, Options

N_TAGS = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--decoupled", action="store_true")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    torch.set_num_threads(1)
    counts = {"whole": 0, "refused": 0, "never written": 0}
    n_acknowledged = 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for kill in range(options.kills):
            one_kill(root, kill, n_acknowledged, options, chance)
            if (root / "acknowledged").exists():
                n_acknowledged = int((root / "acknowledged").read_text()) + 1
            check(root, n_acknowledged - 1, options.ranks, counts)
    what = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"{options.kills} kills, {n_acknowledged} saves acknowledged: 0 lost, 0 torn; tags afterwards: {what}")


def one_kill(root, kill, first, options, chance):
    meeting_place = root / f"meeting{kill}"
    context = multiprocessing.get_context("fork")
    started = root / "started"
    started.unlink(missing_ok=True)
    arguments = (options.ranks, root, meeting_place, kill, first, options.decoupled)
    ranks = [context.Process(target=save_for_ever, args=(rank, *arguments)) for rank in range(options.ranks)]
    for rank in ranks:
        rank.start()
    deadline = time.monotonic() + 120
    while not started.exists():
        assert time.monotonic() < deadline, "the ranks do not start"
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 0.4))
    victims = ranks if chance.random() < 0.3 else [chance.choice(ranks)]
    for rank in victims:
        os.kill(rank.pid, signal.SIGKILL)
    for rank in ranks:
        rank.join(60)
        if rank.is_alive():
            # Waiting for the one that was killed.
            os.kill(rank.pid, signal.SIGKILL)
            rank.join()
    meeting_place.unlink(missing_ok=True)


def save_for_ever(rank, n_ranks, root, meeting_place, kill, first, decoupled):
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    torch.set_num_threads(1)
    timeout = timedelta(seconds=20)
    dist.init_process_group("gloo", init_method=f"file://{meeting_place}", rank=rank, world_size=n_ranks, timeout=timeout)
    engine = MithrilCheckpointEngine(options=Options(threads=1, decoupled=decoupled))
    for number in itertools.count(first):
        info = CheckpointCommitInfo(tag=f"tag{number % N_TAGS}", save_dir=str(root), save_latest=True)
        engine.create(info)
        directory = root / info.tag
        engine.makedirs(str(directory), exist_ok=True)
        engine.save(state_dict=state(rank, kill, number), path=str(directory / f"rank{rank}.pt"))
        if rank == 0:
            (root / "started").touch()
        engine.commit(info)
        if rank == 0:
            write(root / "latest", info.tag)
            write(root / "acknowledged", str(number))
        dist.barrier()


def write(path, text):
    """At once or not at all, so that only mithril is put to the test."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def state(rank, kill, number):
    """No two saves are the same, also if one is made again after a kill."""
    generator = torch.Generator().manual_seed((kill * 10_000 + number) * 100 + rank)
    weights = torch.randn(512, 1024, generator=generator).bfloat16()
    return {"save": (kill, number), "weights": weights, "step": torch.tensor(number)}


def check(root, acknowledged, n_ranks, counts):
    numbers = {}
    for tag in (f"tag{n}" for n in range(N_TAGS)):
        if not (root / tag).is_dir() or not any((root / tag).glob("*.pt")):
            counts["never written"] += 1
            continue
        try:
            loaded = [MithrilCheckpointEngine().load(str(root / tag / f"rank{rank}.pt")) for rank in range(n_ranks)]
        except (mithril.MithrilError, FileNotFoundError):
            counts["refused"] += 1
            continue
        counts["whole"] += 1
        save = loaded[0]["save"]
        numbers[tag] = save[1]
        for rank, found in enumerate(loaded):
            if found["save"] != save or not torch.equal(found["weights"], state(rank, *save)["weights"]):
                sys.exit(f"torn: {tag} holds save {save} and, on rank {rank}, {found['save']}")
    if acknowledged >= 0:
        latest = (root / "latest").read_text()
        if numbers.get(latest, -1) < acknowledged:
            kept = Path(tempfile.mkdtemp())
            shutil.copytree(root, kept / "lost")
            sys.exit(f"lost: {latest} holds {numbers.get(latest)}, acknowledged was {acknowledged}; see {kept}")


if __name__ == "__main__":
    main()
