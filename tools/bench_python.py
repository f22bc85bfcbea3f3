"""Figures of the Python package: speed beside the Rust library, memory, import time, single tensors, threads.

    .venv/bin/python tools/bench_python.py [--size MIB] [--repeat N] [--without-rust]

Seconds are CPU time of the whole process, the best of several runs, so that other programs disturb less; those of a source
of 1 GB/s, of threads and of Ctrl-C are by the clock on the wall. The reader of 1 GB/s brings the bytes of a tensor to a file
in memory and only then lets it be read, so that nothing overlaps; it does the same for both packages.

Needs the package with numpy and ml_dtypes, the package safetensors, and cargo for the Rust side. The data are bf16 of a
normal distribution with a deviation that differs from row to row, as trained weights have.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import mithril
import mithril.safetensors
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

ROOT = Path(__file__).parents[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="MiB of the array")
    parser.add_argument("--repeat", type=int, default=5, help="runs of which the best counts")
    parser.add_argument("--without-rust", action="store_true", help="leave out what is measured beside the Rust library")
    options = parser.parse_args()
    rows = options.size * 512
    rng = np.random.default_rng(0)
    deviations = rng.uniform(0.005, 0.05, (rows, 1)).astype(np.float32)
    weights = (rng.standard_normal((rows, 1024), dtype=np.float32) * deviations).astype(ml_dtypes.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        if not options.without_rust:
            beside_rust(weights, options.repeat, Path(folder))
        single_tensors(weights, options.repeat, Path(folder))
    memory(options.size)
    threads(weights, options.repeat)
    imports(options.repeat)
    interrupts(3)


def best(call, repeat):
    """The least CPU seconds of several runs."""
    seconds = []
    for _ in range(repeat):
        start = time.process_time()
        result = call()
        seconds.append(time.process_time() - start)
        # Giving memory back to the system is not part of the call; the Rust side does not count it either.
        del result
    return min(seconds)


def best_wall(call, repeat):
    """The least seconds that passed, of several runs."""
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
        # Giving memory back to the system is not part of the call; the Rust side does not count it either.
        del result
    return min(seconds)


def beside_rust(weights, repeat, folder):
    path = folder / "weights.bin"
    path.write_bytes(weights.tobytes())
    for count in (1, 2):
        command = ["cargo", "run", "--quiet", "--release", "--package", "mithril", "--example", "frame_speed", "--"]
        command += [str(path), "bf16", str(count), str(repeat)]
        rust = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
        for name, seconds in seconds_of_python(weights, count, repeat).items():
            speed = weights.nbytes / seconds / 1e9
            print(
                f"{name}, threads={count}: {speed:.2f} GB/s, "
                f"{seconds / rust[name]:.2f} times the seconds of Rust ({weights.nbytes / rust[name] / 1e9:.2f} GB/s)"
            )
    path.unlink()


def seconds_of_python(weights, count, repeat):
    blob = mithril.compress(weights, threads=count)
    out = np.zeros_like(weights)
    seconds = {
        "compress": best(lambda: mithril.compress(weights, threads=count), repeat),
        "decompress": best(lambda: mithril.decompress(blob, threads=count), repeat),
        "decompress_into": best(lambda: mithril.decompress(blob, out=out, threads=count), repeat),
    }
    assert out.tobytes() == weights.tobytes()
    return seconds


def memory(size):
    """Peak of a process beyond what it had before, in MiB."""
    code = f"""
import numpy as np, ml_dtypes, mithril

def peak(reset=False):
    if reset:
        open("/proc/self/clear_refs", "w").write("5")
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) / 1024

weights = (np.random.default_rng(0).standard_normal({size} << 19, dtype=np.float32) * 0.02).astype(ml_dtypes.bfloat16)
blob = mithril.compress(weights[: 1 << 20])
before = peak(reset=True)
blob = mithril.compress(weights)
compressing = peak() - before
out = np.ones_like(weights)
before = peak(reset=True)
mithril.decompress(blob, out=out)
print(compressing, peak() - before, len(blob) / 2**20)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    compressing, into, packed = map(float, done.stdout.split())
    print(f"memory to compress {size} MiB: {compressing:.0f} MiB, of which the frame is {packed:.0f}")
    print(f"memory to decompress {size} MiB into `out`: {into:.1f} MiB")


def single_tensors(weights, repeat, folder):
    """Tensors one by one from a packed and from a plain file: warm, and from a source of 1 GB/s."""
    names = [f"layer.{number:02}" for number in range(16)]
    tensors = dict(zip(names, np.split(weights, 16), strict=True))
    plain, packed = folder / "plain.safetensors", folder / "packed.safetensors"
    safetensors.numpy.save_file(tensors, plain)
    mithril.safetensors.save_file(tensors, packed)

    def read(opener, path):
        with opener(path, framework="np") as file:
            for name in names:
                file.get_tensor(name)

    theirs = best(lambda: read(safetensors.safe_open, plain), repeat)
    ours = best(lambda: read(mithril.safetensors.safe_open, packed), repeat)
    print(f"get_tensor, warm: {theirs / ours:.2f} times the speed of the plain file")
    with mithril.safetensors.Reader.open(packed) as reader:
        sizes = [reader.frame_size(name) for name in names]
    theirs = cold(safetensors.safe_open, plain, names, [tensors[name].nbytes for name in names], repeat)
    ours = cold(mithril.safetensors.safe_open, packed, names, sizes, repeat)
    for what, (seconds, waiting, even) in (("plain", theirs), ("packed", ours)):
        print(
            f"get_tensor, {what} file through a reader of 1 GB/s: {1000 * seconds:.1f} ms a tensor, of which "
            f"{1000 * waiting:.1f} waiting; {1000 * even:.1f} ms undisturbed"
        )
    print(
        f"get_tensor, cold: {theirs[0] / ours[0]:.2f} times the speed of the plain file, "
        f"{theirs[2] / ours[2]:.2f} undisturbed"
    )


class Throttled:
    """A reader that brings bytes of a file at 1 GB/s at most, to their places in a file in memory that is opened meanwhile."""

    RATE, PIECE = 1e9, 1 << 20
    # Around frames: records, padding, and at the end the index.
    MARGIN = 1 << 16

    def __init__(self, source, target):
        self.source, self.target = source.fileno(), target.fileno()
        self.size = os.fstat(self.source).st_size
        os.truncate(self.target, self.size)
        self.at, self.brought, self.seconds = 0, 0, 0.0
        self.copy(max(0, self.size - self.MARGIN), self.size)
        self.fetch(0)

    def fetch(self, size):
        """Brings so many more bytes, and a margin."""
        end = min(self.at + size + self.MARGIN, self.size)
        self.copy(self.at, end)
        self.at = end

    def copy(self, start, end):
        began = time.perf_counter()
        for at in range(start, end, self.PIECE):
            data = os.pread(self.source, min(self.PIECE, end - at), at)
            os.pwrite(self.target, data, at)
            wait = (at + len(data) - start) / self.RATE - (time.perf_counter() - began)
            if wait > 0:
                time.sleep(wait)
        self.brought += end - start
        self.seconds += time.perf_counter() - began


def cold(opener, path, names, sizes, repeat):
    """Seconds per tensor, the least of several runs: bytes and decoding together, bytes alone, and both as they are without
    other programs: bytes at exactly 1 GB/s, and the CPU time of everything else, as if one core did it."""
    runs = []
    for _ in range(repeat):
        with path.open("rb") as source, tempfile.NamedTemporaryFile(dir="/dev/shm") as target:
            start = time.perf_counter()
            reader = Throttled(source, target)
            cpu = -time.process_time()
            with opener(target.name, framework="np") as file:
                cpu += time.process_time()
                for name, size in zip(names, sizes, strict=True):
                    reader.fetch(size)
                    cpu -= time.process_time()
                    file.get_tensor(name)
                    cpu += time.process_time()
            seconds = time.perf_counter() - start
            undisturbed = cpu + reader.brought / reader.RATE
            runs.append((seconds / len(names), reader.seconds / len(names), undisturbed / len(names)))
    return tuple(map(min, zip(*runs, strict=True)))


def threads(weights, repeat):
    blob = mithril.compress(weights)
    outs = [np.zeros_like(weights) for _ in range(4)]
    alone = best_wall(lambda: [mithril.decompress(blob, out=out, threads=1) for out in outs], repeat)

    def together():
        workers = [threading.Thread(target=mithril.decompress, args=(blob,), kwargs={"out": out, "threads": 1}) for out in outs]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    cores = len(os.sched_getaffinity(0))
    print(f"4 threads of Python on {cores} cores: {alone / best_wall(together, repeat):.2f} times the speed of one")


def interrupts(repeat):
    """How long a process lives on after SIGINT, in calls that take long."""
    sys.path.insert(0, str(ROOT / "crates/mithril-python/tests"))
    import interrupts

    with tempfile.TemporaryDirectory() as folder:
        interrupts.prepare(Path(folder))
        for case in interrupts.CASES:
            runs = [interrupts.measure(case, Path(folder)) for _ in range(repeat)]
            seconds = [seconds for seconds, _ in runs]
            ends = sorted({str(end) for _, end in runs})
            print(f"Ctrl-C in {case}: gone after {min(seconds):.2f} to {max(seconds):.2f} s ({', '.join(ends)})")


def imports(repeat):
    code = (
        "import time; start = time.process_time(); import mithril; print(1000 * (time.process_time() - start)); "
        "import sys; assert not {'numpy', 'torch', 'jax', 'mlx'} & set(sys.modules)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True) for _ in range(max(repeat, 5))]
    print(f"import mithril: {min(float(run.stdout) for run in runs):.0f} ms")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
