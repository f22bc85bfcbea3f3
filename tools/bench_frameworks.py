"""Checkpoints of Orbax and DeepSpeed through mithril, beside the frameworks' own.

    python tools/train_small.py STATES --save 200,201,210
    python tools/bench_frameworks.py STATES/step_0200.safetensors --next STATES/step_0201.safetensors [--rounds N] [--out FILE]

The state is that of a real training run: bf16 weights, fp32 masters and both moments of Adam. Orbax saves and restores it as
a tree on the CPU. For DeepSpeed it is laid out as ZeRO does on one rank, weights in one file, masters and moments flat in
another, and goes through the checkpoint engines of DeepSpeed and mithril.

Every contestant has a process of its own. Seconds are time on the wall, and in brackets CPU time of all threads, which other
load on the machine disturbs less; the best of the rounds. `save` is what the trainer
waits for; `on disk` is until the data would survive a power cut: mithril syncs before it returns, the others leave that to
the system, so their files are synced afterwards and the time is added; its CPU time holds all of the work. `memory` is what the process takes beyond what it
had before: for saving in all, for loading beyond the state itself, and the most of all rounds; 0 where memory that was there
already was enough. Whatever was saved is loaded and compared bit by bit.

Needs the Python package with torch, DeepSpeed, jax and orbax-checkpoint (scripts/test.sh installs them), and Linux.
"""

import argparse
import contextlib
import gc
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

# Name, options of mithril or None for the framework's own, in the background, against the state before.
CONTESTANTS = {
    "orbax": [
        ("Orbax, its own zstd", None, False, False),
        ("Orbax, its own zstd, in the background", None, True, False),
        ("mithril", {}, False, False),
        ("mithril, in the background", {}, True, False),
        ("mithril, balanced", {"effort": "balanced"}, False, False),
        ("mithril, delta", {}, False, True),
        ("mithril, balanced, delta", {"effort": "balanced"}, False, True),
    ],
    "deepspeed": [
        ("DeepSpeed's own", None, False, False),
        ("mithril", {}, False, False),
        ("mithril, decoupled", {"decoupled": True}, True, False),
        ("mithril, balanced", {"effort": "balanced"}, False, False),
        ("mithril, delta", {"delta_enabled": True}, False, True),
        ("mithril, balanced, delta", {"effort": "balanced", "delta_enabled": True}, False, True),
    ],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("state", type=Path, help="safetensors file of tools/train_small.py")
    parser.add_argument("--next", type=Path, required=True, help="a later state of the same run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the tables there as well")
    parser.add_argument("--framework", choices=CONTESTANTS, help="only this one")
    parser.add_argument("--directory", type=Path, help="where checkpoints are written; by default a temporary directory")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        framework, number = options.run.split(":")
        print(json.dumps(measured(framework, CONTESTANTS[framework][int(number)], options)))
        return
    lines = []
    for framework, contestants in CONTESTANTS.items():
        if options.framework not in (None, framework):
            continue
        lines += [f"## {framework.capitalize().replace('speed', 'Speed')}", ""]
        lines += ["| | MB | of raw | save s | on disk s | load s | memory to save, MB | to load, MB |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
        for number, (name, *_) in enumerate(contestants):
            command = [sys.executable, __file__, *map(str, (options.state, "--next", options.next))]
            command += ["--rounds", str(options.rounds), "--run", f"{framework}:{number}"]
            if options.directory:
                command += ["--directory", str(options.directory)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            r = json.loads(done.stdout.splitlines()[-1])
            cells = [f"{r['bytes'] / 1e6:.1f}", f"{r['bytes'] / r['raw']:.3f}"]
            cells += [f"{r['save']:.2f}"]
            cells += [f"{r[key]:.2f} ({r[key + '_cpu']:.2f})" for key in ("on_disk", "load")]
            cells += [f"{max(0, r[key]) / 1e6:.0f}" for key in ("save_memory", "load_memory")]
            lines.append(f"| {name} | {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr, flush=True)
        lines.append("")
    text = "\n".join(lines)
    print(text)
    if options.out:
        options.out.write_text(text)


def measured(framework, contestant, options):
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    _, mithril_options, background, delta = contestant
    make = Orbax if framework == "orbax" else DeepSpeed
    with contextlib.redirect_stdout(io.StringIO()):
        subject = make(mithril_options, background)
        state = subject.state(options.next)
        before = subject.state(options.state) if delta else None
    raw = subject.size(state)
    result = {"raw": raw}
    with tempfile.TemporaryDirectory(dir=options.directory) as root, contextlib.redirect_stdout(io.StringIO()):
        base = None
        if delta:
            base = Path(root) / "base"
            subject.save(base, before, None)
            subject.wait()
        del before
        for number in range(options.rounds):
            path = Path(root) / f"round{number}"
            with Memory() as memory:
                start, cpu = time.perf_counter(), time.process_time()
                subject.save(path, state, base)
                saved = time.perf_counter()
                subject.wait()
                sync(path)
                on_disk = time.perf_counter()
                cpu = time.process_time() - cpu
            keep(result, save=saved - start, on_disk=on_disk - start, on_disk_cpu=cpu, save_memory=memory.extra)
            result["bytes"] = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            with Memory() as memory:
                start, cpu = time.perf_counter(), time.process_time()
                loaded = subject.load(path)
                end, cpu = time.perf_counter(), time.process_time() - cpu
            keep(result, load=end - start, load_cpu=cpu, load_memory=memory.extra - raw)
            subject.check(state, loaded)
            del loaded
            shutil.rmtree(path)
            subject.forget(base)
    return result


def keep(result, **values):
    """The shortest time, and the most memory."""
    for key, value in values.items():
        result[key] = (max if key.endswith("memory") else min)(value, result.get(key, value))


class Memory:
    """The peak of a stretch of the program beyond what it had before."""

    def __enter__(self):
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        self.before = self.field("VmRSS")
        return self

    def __exit__(self, *_):
        self.extra = self.field("VmHWM") - self.before

    @staticmethod
    def field(name):
        text = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(name))


def sync(directory):
    for file in directory.rglob("*"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


class Orbax:
    def __init__(self, mithril_options, background):
        import orbax.checkpoint as ocp
        from mithril.checkpoint import orbax as ours

        self.ocp, self.ours, self.is_ours = ocp, ours, mithril_options is not None
        handler = ours.MithrilCheckpointHandler(**mithril_options) if self.is_ours else ocp.StandardCheckpointHandler()
        self.checkpointer = (ocp.AsyncCheckpointer if background else ocp.Checkpointer)(handler)
        self.background = background

    def state(self, path):
        import jax
        from mithril.safetensors import numpy

        self.jax = jax
        return {name: jax.device_put(array) for name, array in numpy.load_file(path).items()}

    def size(self, state):
        return sum(array.nbytes for array in state.values())

    def save(self, path, state, base):
        self.target = {name: self.jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for name, a in state.items()}
        args = self.ours.MithrilSave(state, base=base) if self.is_ours else self.ocp.args.StandardSave(state)
        self.checkpointer.save(path, args=args)

    def wait(self):
        if self.background:
            self.checkpointer.wait_until_finished()

    def load(self, path):
        args = self.ours.MithrilRestore(self.target) if self.is_ours else self.ocp.args.StandardRestore(self.target)
        return self.jax.block_until_ready(self.checkpointer.restore(path, args=args))

    def check(self, state, loaded):
        import numpy as np

        for name, array in state.items():
            one, other = (np.asarray(a).reshape(-1).view(np.uint8) for a in (array, loaded[name]))
            assert np.array_equal(one, other), name

    def forget(self, base):
        pass


class DeepSpeed:
    FILES = ("mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")

    def __init__(self, mithril_options, background):
        os.environ["DS_ACCELERATOR"] = "cpu"
        import torch
        from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
        from deepspeed.runtime.checkpoint_engine.checkpoint_engine import (
            CheckpointCommitInfo,
        )
        from mithril.checkpoint.deepspeed import MithrilCheckpointEngine, Options

        self.torch, self.info_type = torch, CheckpointCommitInfo
        if mithril_options is None:
            self.engine = TorchCheckpointEngine()
        else:
            self.engine = MithrilCheckpointEngine(options=Options(**mithril_options))
        self.background = background

    def state(self, path):
        from mithril.safetensors.torch import load_file

        tensors = load_file(path)

        def group(prefix):
            return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

        def flat(prefix):
            return self.torch.cat([tensor.reshape(-1) for tensor in group(prefix).values()])

        moments = {"step": self.torch.tensor(200.0), "exp_avg": flat("exp_avg."), "exp_avg_sq": flat("exp_avg_sq.")}
        base = {"state": {0: moments}, "param_groups": [{"lr": 1e-3, "params": [0]}]}
        optimizer = {"base_optimizer_state": base, "single_partition_of_fp32_groups": [flat("master.")], "zero_stage": 1}
        return {"module": group("model."), "global_steps": 200}, {"optimizer_state_dict": optimizer, "ds_version": "0"}

    def tensors(self, state):
        if isinstance(state, self.torch.Tensor):
            return [state]
        values = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
        return [tensor for value in values for tensor in self.tensors(value)]

    def size(self, state):
        return sum(tensor.nbytes for tensor in self.tensors(state))

    def save(self, path, state, base):
        self.info = self.info_type(tag=path.name, save_dir=str(path.parent), save_latest=False)
        self.engine.create(self.info)
        self.engine.makedirs(str(path), exist_ok=True)
        for name, part in zip(self.FILES, state, strict=True):
            self.engine.save(state_dict=part, path=str(path / name))
        if not self.background:
            self.engine.commit(self.info)

    def wait(self):
        if self.background:
            self.engine.commit(self.info)

    def load(self, path):
        return [self.engine.load(str(path / name), map_location="cpu") for name in self.FILES]

    def check(self, state, loaded):
        pairs = zip(self.tensors(state), self.tensors(loaded), strict=True)
        for one, other in pairs:
            assert self.torch.equal(one.reshape(-1).view(self.torch.uint8), other.reshape(-1).view(self.torch.uint8))

    def forget(self, base):
        """The next round is stored against the same base, as if no other had been saved in between."""
        if base is not None:
            self.engine._previous = base


if __name__ == "__main__":
    main()
