"""A training run with FSDP2 that is killed and resumed through mithril again and again, beside one that never was.

    python tools/fsdp_resume.py [--kills 50] [--ranks 2] [--seed 1]

A small transformer with dropout, sharded by `fully_shard` over gloo on the CPU, is trained with AdamW. Every few steps its
state goes through `mithril.checkpoint.torch`: weights, moments, the step and every rank's state of random numbers; every
other save is made in the background, and most are stored against the one before. At a random moment one rank or all are
killed with SIGKILL, then a new set goes on from `latest`. Losses of every step, also of steps that are done twice, and
weights and moments at the end must be the same, bit for bit, as those of a run without kills and without checkpoints.

Needs the Python package with torch.
"""

import argparse
import collections
import hashlib
import multiprocessing
import os
import random
import signal
import struct
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

import mithril
import torch

# Needed at the first step: here, so that it is imported once and not by every rank.
import torch._dynamo
import torch.distributed as dist
from mithril._adapters import numpy as _numpy  # noqa: F401
from mithril.checkpoint import torch as ours
from torch.distributed.checkpoint.state_dict import (
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

WIDTH, HEADS, BLOCKS, VOCABULARY, CONTEXT, BATCH = 64, 4, 2, 256, 32, 2
SAVE_EVERY, EVERY_WHOLE, N_KEPT = 2, 3, 3
STEPS_PER_KILL = 4
context = multiprocessing.get_context("fork")


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x):
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(y))
        return x + self.dropout(self.down(functional.gelu(self.up(self.norms[1](x)))))


class Transformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    n_steps = STEPS_PER_KILL * options.kills + 2 * SAVE_EVERY
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        life(root / "never", None, n_steps, options.ranks, lambda *_: None)
        counts = collections.Counter()
        for _ in range(options.kills):
            kill = killer(root / "killed", n_steps, chance, counts)
            life(root / "killed", root / "checkpoints", n_steps, options.ranks, kill)
        life(root / "killed", root / "checkpoints", n_steps, options.ranks, lambda *_: None)
        never, killed = (recorded(root / run, options.ranks) for run in ("never", "killed"))
    n_losses = sum(map(len, never["losses"]))
    n_twice = sum(map(len, killed["losses"])) - n_losses
    different = sum(
        loss != dict(one)[step]
        for one, other in zip(never["losses"], killed["losses"], strict=True)
        for step, loss in other
    )
    same_end = never["end"] == killed["end"]
    print(
        f"{options.kills} kills, {counts['mid-save']} of them in the middle of a save, and {options.kills} resumes in "
        f"{n_steps} steps of {options.ranks} ranks: {different} of {n_losses} losses differ ({n_twice} were computed again), "
        f"final weights and moments are {'the same' if same_end else 'DIFFERENT'}"
    )
    done = all({step for step, _ in losses} == set(range(n_steps)) for losses in killed["losses"])
    sys.exit(0 if same_end and not different and done else 1)


def life(run, checkpoints, n_steps, n_ranks, meanwhile):
    """One set of ranks, from `latest` to its end."""
    run.mkdir(exist_ok=True)
    meeting_place = run / "meeting"
    meeting_place.unlink(missing_ok=True)
    # Which step each rank is at, and whether it is saving; shared, so that it is not lost with the rank.
    at, saving = context.RawArray("q", [-1] * n_ranks), context.RawArray("q", [0] * n_ranks)
    arguments = (n_ranks, run, checkpoints, n_steps, meeting_place, at, saving)
    ranks = [context.Process(target=train, args=(rank, *arguments)) for rank in range(n_ranks)]
    for rank in ranks:
        rank.start()
    was_killed = meanwhile(ranks, at, saving)
    for rank in ranks:
        rank.join(3 if was_killed else 600)
        if rank.is_alive():
            # Waiting for the one that was killed.
            os.kill(rank.pid, signal.SIGKILL)
            rank.join()
        if not was_killed and rank.exitcode:
            sys.exit("a rank failed:\n" + logs(run))


def logs(run):
    return "\n".join(log.read_text() for log in sorted(run.glob("rank*.log")))


def killer(run, n_steps, chance, counts):
    def kill(ranks, at, saving):
        started = wait_for(ranks, at, 0)
        until = min(started + chance.randint(1, 2 * STEPS_PER_KILL), n_steps - 1)
        since = time.monotonic()
        wait_for(ranks, at, until)
        time.sleep(chance.uniform(0, 1.2) * (time.monotonic() - since) / max(1, until - started))
        victims = range(len(ranks)) if chance.random() < 0.3 else [chance.randrange(len(ranks))]
        for victim in victims:
            os.kill(ranks[victim].pid, signal.SIGKILL)
        counts["mid-save"] += any(saving[victim] for victim in victims)
        return True

    def wait_for(ranks, at, step):
        deadline = time.monotonic() + 300
        while (now := min(at)) < step:
            if time.monotonic() > deadline or any(rank.exitcode for rank in ranks):
                sys.exit("the ranks do not train:\n" + logs(run))
            time.sleep(0.001)
        return now

    return kill


def train(rank, n_ranks, run, checkpoints, n_steps, meeting_place, at, saving):
    with open(run / f"rank{rank}.log", "w") as log:
        os.dup2(log.fileno(), 2)
    torch.manual_seed(1)
    url = f"file://{meeting_place}"
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=n_ranks, timeout=timedelta(seconds=60))
    # Background saves talk while the model does: one group for both would mix up whose turn it is.
    for_saves = dist.new_group()
    model = Transformer()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    first, base, pending = 0, None, None
    if checkpoints is not None:
        first, base = resume(checkpoints, model, optimizer, rank, n_ranks)
    with open(run / f"losses{rank}", "ab", buffering=0) as losses:
        for step in range(first, n_steps):
            at[rank] = step
            loss = loss_of(model, step, rank)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # One write, so that a kill leaves whole entries.
            losses.write(struct.pack("<qf", step, loss.item()))
            if checkpoints is None or (step + 1) % SAVE_EVERY:
                continue
            saving[rank] = 1
            if pending is not None:
                pending.result()
            n_saved = (step + 1) // SAVE_EVERY
            path = checkpoints / f"step_{step:06}"
            # A save that was finished just before a kill is made again.
            how = {"checkpoint_id": path, "base": base if n_saved % EVERY_WHOLE else None, "overwrite": True}
            how |= {"step": step, "keep_last": N_KEPT, "threads": 1, "process_group": for_saves}
            state = state_of(model, optimizer, rank, n_ranks, step)
            if n_saved % 2:
                ours.save(state, **how)
                pending = None
            else:
                pending = ours.async_save(state, **how)
            saving[rank] = 0
            # The one before may be still on its way.
            base = path if pending is None else base
        if pending is not None:
            pending.result()
    (run / f"end{rank}").write_text(digest(model, optimizer))
    dist.barrier()
    dist.destroy_process_group()


def loss_of(model, step, rank):
    """A sequence that can be learnt: every token follows from the one before, with some noise."""
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=generator)
    for place in range(1, CONTEXT + 1, 2):
        tokens[:, place] = (tokens[:, place - 1] * 7 + 3) % VOCABULARY
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def state_of(model, optimizer, rank, n_ranks, step):
    weights, moments = get_state_dict(model, optimizer)
    random_numbers = {f"rank{n}": torch.get_rng_state() for n in range(n_ranks)}
    if dist.is_initialized():
        gathered = [torch.empty_like(random_numbers["rank0"]) for _ in range(n_ranks)]
        dist.all_gather(gathered, random_numbers["rank0"])
        random_numbers = {f"rank{n}": state for n, state in enumerate(gathered)}
    return {"model": weights, "optimizer": moments, "random": random_numbers, "step": step}


def resume(checkpoints, model, optimizer, rank, n_ranks):
    try:
        path = ours.latest(checkpoints)
    except mithril.NotFoundError:
        return 0, None
    state = state_of(model, optimizer, rank, n_ranks, None)
    ours.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    torch.set_rng_state(state["random"][f"rank{rank}"])
    return state["step"] + 1, path


def digest(model, optimizer):
    """Of this rank's part of weights and moments."""
    found = hashlib.sha256()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for tensor in (parameter, *(optimizer.state[parameter][name] for name in ("exp_avg", "exp_avg_sq", "step"))):
                local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                found.update(local.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def recorded(run, n_ranks):
    losses = [list(struct.iter_unpack("<q4s", (run / f"losses{rank}").read_bytes())) for rank in range(n_ranks)]
    return {"losses": losses, "end": [(run / f"end{rank}").read_text() for rank in range(n_ranks)]}


if __name__ == "__main__":
    main()
