"""What very many tiny tensors cost: size, seconds and memory of the command for each number of tensors of 16 bytes.

    cargo build --release
    python3 tools/many_tensors.py target/release/mithril [--tensors 100000 1000000]
"""

import argparse
import filecmp
import json
import os
import struct
import sys
import tempfile
import time
from pathlib import Path

TENSOR_LEN = 16
MAX_RATIO = 1.35
MAX_MEGABYTES = 700


def make(path: Path, n: int) -> None:
    """Writes a safetensors file of `n` tensors of random bytes, piece by piece: the peak of this process would count as that
    of the commands that it starts.
    """
    with path.open("wb") as file:
        file.write(bytes(8))
        for i in range(n):
            entry = {"dtype": "F32", "shape": [4], "data_offsets": [TENSOR_LEN * i, TENSOR_LEN * (i + 1)]}
            text = json.dumps({f"model.layers.{i}.weight": entry}, separators=(",", ":"))
            file.write(("{" if i == 0 else ",").encode() + text[1:-1].encode())
        file.write(b"}")
        header_len = file.tell() - 8
        for _ in range(n):
            file.write(os.urandom(TENSOR_LEN))
        file.seek(0)
        file.write(struct.pack("<Q", header_len))


def run(command: list[str]) -> tuple[float, float]:
    """Runs a command without its output; returns seconds and megabytes of memory at most."""
    start = time.monotonic()
    child = os.posix_spawn(
        command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, stream, "/dev/null", os.O_WRONLY, 0) for stream in (1, 2)]
    )
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)}: {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - start, usage.ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mithril")
    parser.add_argument("--tensors", type=int, nargs="+", default=[100_000, 1_000_000])
    arguments = parser.parse_args()
    too_much = []
    with tempfile.TemporaryDirectory() as directory:
        plain, packed, restored = (Path(directory) / name for name in ("plain", "packed", "restored"))
        for n in arguments.tensors:
            make(plain, n)
            commands = {
                "compress": ["compress", "--force", "-o", str(packed), str(plain)],
                "inspect": ["inspect", str(packed)],
                "inspect --json": ["inspect", "--json", str(packed)],
                "verify": ["verify", str(packed)],
                "decompress": ["decompress", "--force", "-o", str(restored), str(packed)],
            }
            for name, command in commands.items():
                seconds, megabytes = run([arguments.mithril, *command])
                print(f"{n:>9,} tensors  {name:<15} {seconds:6.1f} s {megabytes:6.0f} MB")
                too_much += [f"{name} of {n:,}"] if megabytes > MAX_MEGABYTES else []
            if not filecmp.cmp(plain, restored, shallow=False):
                sys.exit("another file came back")
            plain_len, packed_len = plain.stat().st_size, packed.stat().st_size
            ratio = packed_len / plain_len
            print(f"{n:>9,} tensors  {plain_len:,} -> {packed_len:,} bytes, {ratio:.3f} of the file")
            too_much += [f"size of {n:,}"] if ratio > MAX_RATIO else []
    if too_much:
        sys.exit(f"above {MAX_RATIO} x the file or {MAX_MEGABYTES} MB: {', '.join(too_much)}")


if __name__ == "__main__":
    main()
