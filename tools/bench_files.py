"""Compares whole files: `mithril compress` beside z4ai's safetensors files, ZipNN and zstd -19 --long.

    python tools/bench_files.py CORPUS --mithril target/release/mithril --venv .venv-peers --out table.md
    python tools/bench_files.py CORPUS ... --match bf16 --rounds 5 --without zstd

How it measures
* Everybody reads a file and writes a file, on one thread, pinned to one CPU. Sizes are those of the files.
* Speed is raw bytes through CPU seconds, the best of all rounds, in turns. For mithril those are the seconds of the
  whole process from its start, with syncing the output; for the others the seconds of the call alone.
* Compressing is done once: z4ai and zstd -19 take minutes. Decompressing is done in every round.
* ZipNN has no safetensors files of its own: it is given the bytes of the file in its streaming mode, with the dtype
  that most of them have.
* Every restored file is compared with its original.
"""

import argparse
import importlib.metadata
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bench_peers

PACKAGES = ["numpy", "zstandard", "z4ai", "zipnn"]


@dataclass
class Entrant:
    """Something that packs a file, and the best it has done."""

    name: str
    pack: Callable[[Path, Path], None]
    unpack: Callable[[Path, Path], None]
    in_children: bool = False
    packed_len: int = 0
    pack_seconds: float = float("nan")
    unpack_seconds: float = float("inf")

    def timed(self, work: Callable[[Path, Path], None], source: Path, target: Path) -> float:
        before = cpu_seconds(self.in_children)
        work(source, target)
        return cpu_seconds(self.in_children) - before


def cpu_seconds(of_children: bool) -> float:
    if not of_children:
        return time.process_time()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def mithril(program: Path, effort: str) -> Entrant:
    def run(*arguments: object) -> None:
        subprocess.run([program, *arguments, "--force", "--threads", "1"], check=True, stderr=subprocess.DEVNULL)

    pack = lambda source, target: run("compress", source, "-o", target, "--effort", effort)
    unpack = lambda source, target: run("decompress", source, "-o", target)
    return Entrant(f"mithril {effort}", pack, unpack, in_children=True)


def z4ai() -> Entrant:
    from z4ai import safetensors

    pack = lambda source, target: safetensors.compress_file(str(source), str(target), threads=1, workers=1)
    unpack = lambda source, target: safetensors.decompress_file(str(source), str(target), workers=1)
    return Entrant("z4ai safetensors", pack, unpack)


def zipnn(dtype: str) -> Entrant:
    from zipnn import ZipNN

    name = bench_peers.ZIPNN_DTYPE.get(dtype, "bfloat16")
    make = lambda: ZipNN(input_format="byte", bytearray_dtype=name, threads=1, is_streaming=True)
    pack = lambda source, target: target.write_bytes(make().compress(bytearray(source.read_bytes())))
    unpack = lambda source, target: target.write_bytes(make().decompress(bytearray(source.read_bytes())))
    return Entrant("zipnn", pack, unpack)


def zstd() -> Entrant:
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(19, enable_ldm=True, window_log=27)
    encoder = zstandard.ZstdCompressor(compression_params=parameters)
    decoder = zstandard.ZstdDecompressor(max_window_size=1 << 27)

    def stream(codec: object, source: Path, target: Path) -> None:
        with source.open("rb") as reader, target.open("wb") as writer:
            codec.copy_stream(reader, writer, read_size=1 << 20, write_size=1 << 20)

    pack = lambda source, target: stream(encoder, source, target)
    unpack = lambda source, target: stream(decoder, source, target)
    return Entrant("zstd -19 --long=27", pack, unpack)


def bench(path: Path, arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The rows of one file, and what did not work."""
    dtype, _ = bench_peers.dominant_payload(path)
    makers: dict[str, Callable[[], Entrant]] = {"z4ai": z4ai, "zipnn": lambda: zipnn(dtype), "zstd": zstd}
    entrants = [mithril(arguments.mithril, effort) for effort in arguments.effort]
    notes = []
    for name, make in makers.items():
        if name not in arguments.without:
            entrants.append(make())
    raw_len = path.stat().st_size
    original = path.read_bytes()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        packed = {entrant.name: Path(folder) / f"{idx}.packed" for idx, entrant in enumerate(entrants)}
        restored = Path(folder) / "restored.safetensors"
        for round_idx in range(arguments.rounds):
            for entrant in list(entrants):
                place = packed[entrant.name]
                # Whatever keeps a peer from a file is told under the table, and the others go on.
                try:
                    if round_idx == 0:
                        entrant.pack_seconds = entrant.timed(entrant.pack, path, place)
                        entrant.packed_len = place.stat().st_size
                    restored.unlink(missing_ok=True)
                    entrant.unpack_seconds = min(entrant.unpack_seconds, entrant.timed(entrant.unpack, place, restored))
                    if restored.read_bytes() != original:
                        raise ValueError("the restored file differs")
                except Exception as error:  # noqa: BLE001
                    notes.append(f"{path.name}: {entrant.name} failed: {type(error).__name__}: {error}")
                    entrants.remove(entrant)
            print(f"{path.name}: round {round_idx + 1} of {arguments.rounds}", file=sys.stderr)
    ours = [entrant for entrant in entrants if entrant.in_children]
    rows = []
    for entrant in entrants:
        speed = raw_len / 1e9 / entrant.unpack_seconds
        against = "" if entrant.in_children else f"{entrant.unpack_seconds / ours[0].unpack_seconds:.1f}"
        smaller = "" if entrant.in_children else "yes" if all(our.packed_len < entrant.packed_len for our in ours) else (
            "**no**" if all(our.packed_len >= entrant.packed_len for our in ours)
            else ", ".join(our.name.split()[1] for our in ours if our.packed_len < entrant.packed_len) + " only")
        rows.append(
            f"| {path.name.removesuffix('.safetensors')} | {entrant.name} | {entrant.packed_len} | "
            f"{entrant.packed_len / raw_len:.4f} | {smaller} | {raw_len / 1e9 / entrant.pack_seconds:.3f} | {speed:.3f} | {against} |"
        )
    return rows, notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="directory of safetensors files")
    parser.add_argument("--mithril", type=Path, default=Path("target/release/mithril"), help="the program to measure")
    parser.add_argument("--venv", type=Path, required=True, help="virtual environment of the peers; made if missing")
    parser.add_argument("--out", type=Path, help="where to write the table, besides stdout")
    parser.add_argument("--scratch", type=Path, help="directory for packed and restored files; they are removed")
    parser.add_argument("--match", default="", help="regular expression that file names must match")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--effort", action="append", choices=["fast", "balanced", "max"], help="may be repeated; default fast")
    parser.add_argument("--without", action="append", default=[], choices=["z4ai", "zipnn", "zstd"], help="peers to leave out")
    arguments = parser.parse_args()
    arguments.effort = arguments.effort or ["fast"]
    if not arguments.mithril.is_file():
        parser.error(f"no program at {arguments.mithril}: run `cargo build --release`")
    bench_peers.PACKAGES[:] = PACKAGES
    bench_peers.enter_environment(arguments.venv)
    files = sorted(path for path in arguments.corpus.glob("*.safetensors") if re.search(arguments.match, path.name))
    if not files:
        parser.error("no such safetensors files")
    warnings.simplefilter("ignore")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES[1:])
    version = subprocess.run([arguments.mithril, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    head = f"{version} beside {versions}; {bench_peers.cpu_name()}, one thread pinned to one CPU, CPU time.\n\n"
    head += "| file | by | bytes | of raw | mithril smaller | compress GB/s | decompress GB/s | mithril x faster |\n"
    head += "|---|---|---|---|---|---|---|---|\n"
    rows: list[str] = []
    notes: list[str] = []
    for path in files:
        more_rows, more_notes = bench(path, arguments)
        rows += more_rows
        notes += more_notes
        text = head + "\n".join(rows) + "\n" + "".join(f"\n{note}\n" for note in notes)
        # After every file, so that a long run that is stopped leaves what it has.
        if arguments.out:
            arguments.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
