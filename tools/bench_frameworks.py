"""Checkpoints of PyTorch (DCP), Orbax and DeepSpeed through mithril, beside the frameworks' own.

    python tools/train_small.py STATES --save 200,201,210
    python tools/bench_frameworks.py STATES/step_0201.safetensors --base STATES/step_0200.safetensors [--rounds N] [--out FILE]
    python tools/bench_frameworks.py CORPUS/minilm-l6-v2.bf16.safetensors --framework torch

The state is that of a real training run: bf16 weights, fp32 masters and both moments of Adam; or any safetensors file, with
`--base` for deltas, and `--large` for one large tensor made of it. DCP and Orbax save and restore it as a tree on the CPU,
in one process. For DeepSpeed it is laid out as ZeRO does on one rank, weights in one file, masters and moments flat in
another, and goes through the checkpoint engines of DeepSpeed and mithril.

Every contestant has a process of its own, forked when nothing but imports has happened. Seconds are time on the wall, and in
brackets CPU time of all threads, which other load on the machine disturbs less; the best of the rounds, in which all take turns. `save` is what the
trainer waits for; `on disk` is until the data would survive a power cut: mithril and DCP sync before a save in the
foreground returns, the others leave that to the system, so their files are synced afterwards and the time is added; its CPU
time holds all of the work. `memory` is what the process takes beyond what it had before: for saving in all, for loading
beyond the state itself, and the most of all rounds. Whatever was saved is loaded and compared bit by bit.

Needs the Python package with torch, zstandard, DeepSpeed, jax and orbax-checkpoint (scripts/test.sh installs them), and
Linux.
"""

import argparse
import contextlib
import ctypes
import gc
import importlib
import io
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

# Name, options of mithril or another way (None: the framework's own), in the background, against an earlier state.
CONTESTANTS = {
    "torch": [
        ("torch.save", "torch.save", False, False),
        ("DCP's own", "dcp", False, False),
        ("DCP's own, in the background", "dcp", True, False),
        ("DCP with its zstd", "zstd", False, False),
        ("mithril's writer", {}, False, False),
        ("mithril's writer, in the background", {}, True, False),
        ("mithril's writer, balanced", {"effort": "balanced"}, False, False),
        ("mithril's planners, DCP's writer", "planner", False, False),
        ("mithril's extension, DCP's writer", "extension", False, False),
        ("mithril's writer, delta", {}, False, True),
        ("mithril's writer, balanced, delta", {"effort": "balanced"}, False, True),
    ],
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


NAMES = {"torch": "PyTorch", "orbax": "Orbax", "deepspeed": "DeepSpeed"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("state", type=Path, help="safetensors file, best of tools/train_small.py")
    parser.add_argument("--base", type=Path, help="an earlier state of the same run, for deltas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the tables there as well")
    parser.add_argument("--framework", choices=CONTESTANTS, help="only this one")
    parser.add_argument("--directory", type=Path, help="where checkpoints are written; by default a temporary directory")
    parser.add_argument("--large", type=int, metavar="MIB", help="the elements again and again, as one tensor of this size (DCP)")
    parser.add_argument("--only", action="append", help="only contestants with this in their name; may be repeated")
    options = parser.parse_args()
    lines = []
    for framework, contestants in CONTESTANTS.items():
        if options.framework not in (None, framework):
            continue
        import_all(framework)
        lines += [f"## {NAMES[framework]}, {options.state.name}", ""]
        lines += ["| | MB | of raw | save s | on disk s | load s | memory to save, MB | to load, MB |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
        chosen = [c for c in contestants if (options.base or not c[3]) and any(part in c[0] for part in options.only or [""])]
        results = {name: {} for name, *_ in chosen}
        # In turn, so that other load on the machine hits all alike.
        for contestant in chosen * options.rounds:
            keep(results[contestant[0]], **in_a_process(measured, framework, contestant, options))
        for name, r in results.items():
            cells = [f"{r['bytes'] / 1e6:.1f}", f"{r['bytes'] / r['raw']:.3f}"]
            cells += [f"{r['save']:.2f}"]
            cells += [f"{r[key]:.2f} ({r[key + '_cpu']:.2f})" for key in ("on_disk", "load")]
            cells += [f"{max(0, r[key]) / 1e6:.0f}" for key in ("save_memory", "load_memory")]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")
    text = "\n".join(lines)
    print(text)
    if options.out:
        options.out.write_text(text)


def import_all(framework):
    """Once, and not in the process of every contestant."""
    warnings.simplefilter("ignore")
    os.environ["DS_ACCELERATOR"] = "cpu"
    modules = {
        "torch": ("torch.distributed.checkpoint", "mithril.checkpoint.torch"),
        "orbax": ("orbax.checkpoint", "mithril.checkpoint.orbax"),
        "deepspeed": ("deepspeed.runtime.checkpoint_engine", "mithril.checkpoint.deepspeed"),
    }
    with contextlib.redirect_stdout(io.StringIO()):
        for module in modules[framework]:
            importlib.import_module(module)


def in_a_process(function, *arguments):
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(function(*arguments)))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        sys.exit("a contestant failed")
    finally:
        process.join()


def measured(framework, contestant, options):
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    _, mithril_options, background, delta = contestant
    make = {"torch": Torch, "orbax": Orbax, "deepspeed": DeepSpeed}[framework]
    with contextlib.redirect_stdout(io.StringIO()):
        subject = make(mithril_options, background)
        subject.large = options.large
        state = subject.state(options.state)
        before = subject.state(options.base) if delta else None
    raw = subject.size(state)
    result = {"raw": raw}
    with tempfile.TemporaryDirectory(dir=options.directory) as root, contextlib.redirect_stdout(io.StringIO()):
        base = None
        if delta:
            base = Path(root) / "base"
            subject.save(base, before, None)
            subject.wait()
        del before
        # The first of the two pays for what is imported or set up at first use.
        for _ in range(2):
            path = Path(root) / "checkpoint"
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
            subject.forget(base)
            there = subject.prepare(state)
            with Memory() as memory:
                start, cpu = time.perf_counter(), time.process_time()
                loaded = subject.load(path)
                end, cpu = time.perf_counter(), time.process_time() - cpu
            keep(result, load=end - start, load_cpu=cpu, load_memory=memory.extra - raw + there)
            subject.check(state, loaded)
            del loaded
            shutil.rmtree(path)
    return result


def keep(result, **values):
    """The shortest time, and the most memory."""
    for key, value in values.items():
        result[key] = (max if key.endswith("memory") else min)(value, result.get(key, value))


class Memory:
    """The peak of a stretch of the program beyond what it had before."""

    def __enter__(self):
        gc.collect()
        # What is free already would hide what is taken now.
        ctypes.CDLL(None).malloc_trim(0)
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


class Torch:
    """Options of mithril's writer, or the name of another way."""

    def __init__(self, way, background):
        import torch
        import torch.distributed.checkpoint as dcp
        from mithril.checkpoint import torch as ours

        self.torch, self.dcp, self.ours = torch, dcp, ours
        self.way, self.background = way, background

    def state(self, path):
        from mithril.safetensors.torch import load_file

        state = load_file(path)
        if self.large is None:
            return state
        flat = self.torch.cat([tensor.reshape(-1) for tensor in state.values()])
        large = self.torch.empty((self.large << 20) // flat.element_size() // 1024, 1024, dtype=flat.dtype)
        for part in large.view(-1).split(flat.numel()):
            part.copy_(flat[: part.numel()])
        return {"large": large}

    def size(self, state):
        return sum(tensor.nbytes for tensor in state.values())

    def save(self, path, state, base):
        way, dcp, ours = self.way, self.dcp, self.ours
        if way == "torch.save":
            path.mkdir()
            self.torch.save(state, path / "state.pt")
            return
        how = {"planner": ours.MithrilSavePlanner()} if way == "planner" else {}
        if isinstance(way, dict):
            how["storage_writer"] = ours.MithrilStorageWriter(path, base=base, **way)
        else:
            extensions = {"zstd": self.zstd, "extension": ours.MithrilExtension}.get(way)
            how["storage_writer"] = dcp.FileSystemWriter(path, _extensions=[extensions()] if extensions else None)
        if self.background:
            self.pending = dcp.async_save(state, no_dist=True, **how)
        else:
            dcp.save(state, no_dist=True, **how)

    @staticmethod
    def zstd():
        from torch.distributed.checkpoint._extension import ZStandard

        return ZStandard()

    def wait(self):
        if self.background:
            getattr(self.pending, "upload_completion", self.pending).result()

    def forget(self, base):
        self.pending = None

    def prepare(self, state):
        """DCP loads to tensors that are there. How many bytes those take."""
        if self.way == "torch.save":
            return 0
        self.target = {name: self.torch.zeros_like(tensor).fill_(1) for name, tensor in state.items()}
        return self.size(state)

    def load(self, path):
        if self.way == "torch.save":
            return self.torch.load(path / "state.pt", weights_only=True)
        state, self.target = self.target, None
        how = {"planner": self.ours.MithrilLoadPlanner()} if self.way == "planner" else {}
        if isinstance(self.way, dict):
            how["storage_reader"] = self.ours.MithrilStorageReader(path)
        else:
            known = self.ours.MithrilExtension.registry() if self.way == "extension" else None
            how["storage_reader"] = self.dcp.FileSystemReader(path, _extension_registry=known)
        self.dcp.load(state, no_dist=True, **how)
        return state

    def check(self, state, loaded):
        for name, tensor in state.items():
            one, other = (t.reshape(-1).view(self.torch.uint8) for t in (tensor, loaded[name]))
            assert self.torch.equal(one, other), name


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

    def prepare(self, state):
        return 0


class DeepSpeed:
    FILES = ("mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")

    def __init__(self, mithril_options, background):
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

        if not group("master."):
            return ({"module": tensors, "global_steps": 200},)
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
        for name, part in zip(self.FILES, state, strict=False):
            self.engine.save(state_dict=part, path=str(path / name))
        if not self.background:
            self.engine.commit(self.info)

    def wait(self):
        if self.background:
            self.engine.commit(self.info)

    def load(self, path):
        files = [path / name for name in self.FILES if (path / name).exists()]
        return [self.engine.load(str(file), map_location="cpu") for file in files]

    def check(self, state, loaded):
        pairs = zip(self.tensors(state), self.tensors(loaded), strict=True)
        for one, other in pairs:
            assert self.torch.equal(one.reshape(-1).view(self.torch.uint8), other.reshape(-1).view(self.torch.uint8))

    def forget(self, base):
        """The next round is stored against the same base, as if no other had been saved in between."""
        if base is not None:
            self.engine._previous = base

    def prepare(self, state):
        return 0


if __name__ == "__main__":
    main()
