"""Measures the memory of `mithril convert` on a large repository, to DFloat11 and back.

    python3 tools/df11_memory.py target/release/mithril --size-gb 2

Writes a repository of random BF16 matrices in shards to a temporary directory (which needs room for three times its size),
converts it there and back, compares the files, and prints the largest resident size of each process beside the most it may
be: 512 MiB and the largest block. Exit code 0: both stay below, and every byte came back. Needs numpy.
"""

import argparse
import filecmp
import json
import multiprocessing
import os
import resource
import struct
import subprocess
import tempfile
import time
from pathlib import Path

BLOCK_BYTES = 256 << 20
SHARD_BLOCKS = 2
LIMIT = 512 << 20


def write_shard(path: Path, names: list[str], block: bytes) -> None:
    rows = len(block) // 2 // 4096
    header = {
        name: {"dtype": "BF16", "shape": [rows, 4096], "data_offsets": [idx * len(block), (idx + 1) * len(block)]}
        for idx, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(block for _ in names)


def write_repository(folder: Path, n_blocks: int) -> None:
    import numpy

    weights = numpy.random.default_rng(0).standard_normal(BLOCK_BYTES // 2, dtype=numpy.float32) * 0.02
    block = (weights.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()
    names = [f"model.layers.{idx}.mlp.up_proj.weight" for idx in range(n_blocks)]
    shards = [names[idx : idx + SHARD_BLOCKS] for idx in range(0, n_blocks, SHARD_BLOCKS)]
    places = {}
    for idx, own in enumerate(shards):
        file = f"model-{idx + 1:05}-of-{len(shards):05}.safetensors"
        write_shard(folder / file, own, block)
        places |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}, indent=2))


def run(arguments: list[str]) -> tuple[int, float]:
    """The largest resident size of a process in bytes, and its seconds."""
    start = time.perf_counter()
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE)
    message = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"error: {message.decode()}")
    return usage.ru_maxrss * 1024, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mithril")
    parser.add_argument("--size-gb", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--folder", help="where to write; the system's place for temporary files by default")
    arguments = parser.parse_args()
    n_blocks = max(1, round(arguments.size_gb * 1e9 / BLOCK_BYTES))
    limit = LIMIT + BLOCK_BYTES
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        model, coded, plain = folder / "model", folder / "df11", folder / "plain"
        model.mkdir()
        # In a process of its own: a child starts with the largest size that its parent had.
        writer = multiprocessing.Process(target=write_repository, args=(model, n_blocks))
        writer.start()
        writer.join()
        total = sum(file.stat().st_size for file in model.glob("*.safetensors"))
        print(f"{total} bytes in {n_blocks} blocks of {BLOCK_BYTES} bytes; at most {limit >> 20} MiB may be resident")
        is_within = True
        threads = ["--threads", str(arguments.threads)]
        for source, target, to in [(model, coded, "df11"), (coded, plain, "safetensors")]:
            command = [arguments.mithril, "convert", str(source), "--to", to, "-o", str(target), *threads]
            peak, seconds = run(command)
            is_within &= peak <= limit
            print(f"convert --to {to:11} peak {peak >> 20:4} MiB, {seconds:6.1f} s")
        names = sorted(file.name for file in model.iterdir())
        same, *others = filecmp.cmpfiles(model, plain, names, shallow=False)
        print(f"{len(same)} of {len(names)} files came back byte for byte")
        if any(others) or not is_within:
            raise SystemExit("error: too much memory, or other bytes")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
