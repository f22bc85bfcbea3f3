#!/usr/bin/env python3
"""Measures `mithril bench` beside the Python peers on a directory of safetensors files.

    python tools/bench_peers.py CORPUS --mithril target/release/mithril --venv .venv-peers --out table.md
    python tools/bench_peers.py CORPUS ... --match minilm --rounds 3
    python tools/bench_peers.py CORPUS ... --effort max --small     also the peers' smallest settings, one run each
    python tools/bench_peers.py CORPUS ... --effort max --small --rounds 1 --peers 'zstd 19|brotli|z4ai max'    those alone

How it measures
* Every peer gets the same bytes: all tensors of the file's dominant dtype, one behind the other. mithril gets those
  bytes as a raw file, and in further rows the safetensors file itself, tensor by tensor with all its dtypes.
* One thread, pinned to one CPU. Speed is raw bytes through CPU seconds, the best of all passes. In a round every peer,
  mithril and memcpy run the same number of passes, in turns, so that a noisy moment hits all of them. Peers of
  `--small` run once in all: their size is the point.
* `x memcpy` is against a copy of the same bytes measured by the same program in the same rounds.
* The C heap keeps freed memory, so that peers are not charged for fresh pages; mithril writes to touched buffers.
* Every peer's output is compared with its input in the first round.

Missing peers are installed into the virtual environment by package name, as published: what has no binary extension
for this platform runs without one, and its row says so.
"""

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import struct
import subprocess
import sys
import tempfile
import time
import venv
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ["numpy", "zstandard", "lz4", "brotli", "pcodec", "openzl", "z4ai", "zipnn"]
# Passes of everybody in one round.
N_PASSES = 3

WIDTH = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "U32": 4, "I32": 4}
ZIPNN_DTYPE = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
Z4AI_DTYPE = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F64": "fp64", "F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2"}

Encode = Callable[[bytes], object]
Decode = Callable[[object], object]


@dataclass
class Peer:
    """A codec, and the best it has done."""

    name: str
    encode: Encode
    decode: Decode
    note: str = ""
    once: bool = False
    coded_len: int = 0
    encode_seconds: float = float("inf")
    decode_seconds: float = float("inf")

    def run(self, data: bytes) -> None:
        coded, seconds = timed(lambda: self.encode(data))
        self.encode_seconds = min(self.encode_seconds, seconds)
        restored, seconds = timed(lambda: self.decode(coded))
        self.decode_seconds = min(self.decode_seconds, seconds)
        if not self.coded_len:
            self.coded_len = memoryview(coded).nbytes
            if bytes(memoryview(restored).cast("B")) != data:
                raise ValueError("output differs from input")


@dataclass
class Row:
    """A line of the table; speeds in GB/s."""

    name: str
    bits: float
    encode: float
    decode: float
    encode_x: float
    decode_x: float
    note: str = ""
    is_peer: bool = True


def timed(work: Callable[[], object]) -> tuple[object, float]:
    start = time.process_time()
    value = work()
    return value, time.process_time() - start


# Peers


def general(dtype: str, data: bytes, small: bool) -> list[Peer]:
    import brotli
    import lz4.frame
    import zstandard

    def zstd(level: int, once: bool = False) -> Peer:
        encoder, decoder = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
        return Peer(f"zstd {level}", encoder.compress, decoder.decompress, once=once)

    peers = [zstd(1), zstd(3), Peer("lz4", lz4.frame.compress, lz4.frame.decompress)]
    if small:
        peers.append(zstd(19, once=True))
        smallest = lambda data: brotli.compress(data, quality=11, lgwin=24)
        peers.append(Peer("brotli 11", smallest, brotli.decompress, once=True))
    return peers


def zipnn(dtype: str, data: bytes, small: bool) -> list[Peer]:
    if dtype not in ZIPNN_DTYPE:
        return []
    from zipnn import ZipNN

    make = lambda: ZipNN(input_format="byte", bytearray_dtype=ZIPNN_DTYPE[dtype], threads=1)
    # It rewrites its input in place, so the copy is part of using it.
    return [Peer("zipnn", lambda data: make().compress(bytearray(data)), lambda coded: make().decompress(bytearray(coded)))]


def z4ai(dtype: str, data: bytes, small: bool) -> list[Peer]:
    import z4ai
    from z4ai import chunked, rans

    native = ["_native_shuffle", "_native_codec"]
    missing = [module for module in native if importlib.util.find_spec(f"z4ai.{module}") is None]
    missing += [] if rans.available() else ["rans"]
    note = f"as pip installs it, without its native {', '.join(missing)}" if missing else ""
    name = Z4AI_DTYPE.get(dtype)
    in_chunks = lambda data: chunked.compress(data, dtype=name, threads=1)
    peers = [Peer("z4ai chunked", in_chunks, lambda coded: chunked.decompress(coded, threads=1), note)]
    for effort in ["fast", *(["max"] if small else [])]:
        encode = lambda data, effort=effort: z4ai.compress(data, dtype=name, effort=effort, threads=1)
        peers.append(Peer(f"z4ai {effort}", encode, z4ai.decompress, note, once=effort == "max"))
    return peers


def pcodec(dtype: str, data: bytes, small: bool) -> list[Peer]:
    import numpy
    from pcodec import ChunkConfig, standalone

    width = WIDTH.get(dtype, 1)
    if width == 1:
        return []
    kinds = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
    kind = kinds.get(dtype, f"<u{width}")

    def at(level: int) -> Peer:
        config = ChunkConfig(compression_level=level)
        encode = lambda data: standalone.simple_compress(numpy.frombuffer(data, kind), config)
        return Peer(f"pcodec {level}", encode, lambda coded: standalone.simple_decompress(coded).view("u1"))

    return [at(1), at(8)]


def openzl(dtype: str, data: bytes, small: bool) -> list[Peer]:
    import numpy
    import openzl.ext as zl

    graphs, nodes = zl.graphs, zl.nodes
    width = WIDTH.get(dtype, 1)

    def peer(name: str, build: Callable, input_type: object, kind: str) -> Peer:
        compressor = zl.Compressor()
        compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        compressor.select_starting_graph(build(compressor))

        def encode(data: bytes) -> object:
            context = zl.CCtx()
            context.ref_compressor(compressor)
            return context.compress([zl.Input(input_type, numpy.frombuffer(data, kind))])

        return Peer(f"openzl {name}", encode, lambda coded: zl.DCtx().decompress(coded)[0].content.as_bytes())

    split = lambda graph: lambda c: nodes.TransposeSplit()(c, graph(c))
    entropy, fse, huffman, store = (lambda c, g=g: g()(c) for g in (graphs.Entropy, graphs.Fse, graphs.Huffman, graphs.Store))
    deconstruct = {"BF16": "BFloat16Deconstruct", "F16": "Float16Deconstruct", "F32": "Float32Deconstruct"}.get(dtype)
    if deconstruct is None:
        return [peer("entropy", entropy, zl.Type.Serial, "u1")]
    fields = getattr(nodes, deconstruct)
    packed = lambda c: nodes.ConvertStructToNumLE()(c, graphs.Bitpack()(c))
    # Of each float type: where sign and mantissa go for size, and for speed.
    rest_small = {"BF16": store, "F16": split(entropy), "F32": split(fse)}[dtype]
    rest_fast = packed if dtype == "F16" else store
    numeric = zl.Type.Numeric, f"<u{width}"
    return [
        peer("float fse", lambda c: fields()(c, rest_small(c), fse(c)), *numeric),
        peer("float huffman", lambda c: fields()(c, rest_fast(c), huffman(c)), *numeric),
    ]


FAMILIES = [general, zipnn, z4ai, openzl, pcodec]


# Measuring


def dominant_payload(path: Path) -> tuple[str, bytes]:
    """Returns the dtype with most bytes, and all its tensors one behind the other."""
    file = path.read_bytes()
    (header_len,) = struct.unpack_from("<Q", file)
    header = json.loads(file[8 : 8 + header_len])
    spans: dict[str, list[tuple[int, int]]] = {}
    for name, tensor in header.items():
        if name != "__metadata__":
            start, end = (8 + header_len + offset for offset in tensor["data_offsets"])
            spans.setdefault(tensor["dtype"], []).append((start, end))
    dtype = max(spans, key=lambda dtype: sum(end - start for start, end in spans[dtype]))
    return dtype, b"".join(file[start:end] for start, end in sorted(spans[dtype]))


def run_mithril(program: Path, path: Path, dtype: str, effort: str) -> dict:
    command = [program, "bench", path, "--effort", effort, "--dtype", dtype, "--repeat", str(N_PASSES), "--json"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"error: mithril bench failed: {result.stderr.strip()}")
    return json.loads(result.stdout)["files"][0]


def mithril_rows(label: str, reports: list[dict]) -> list[Row]:
    """Rows from the reports of all rounds, the best of each figure."""
    memcpy = max(report["memcpy"]["thread_cpu_gb_s"] for report in reports)
    rows = []
    for idx, first in enumerate(reports[0]["rows"]):
        encode, decode = (
            max(report["rows"][idx][way]["thread_cpu_gb_s"] for report in reports) for way in ("encode", "decode")
        )
        sums = "checksums" if first["checksums"] else "no checksums"
        name = f"**{first['codec']}**, {label}, {sums}"
        dtypes = reports[0]["dtypes"]
        note = f"all of {', '.join(dtypes)}" if len(dtypes) > 1 else ""
        rows.append(Row(name, first["bits_per_element"], encode, decode, encode / memcpy, decode / memcpy, note, is_peer=False))
    return rows


def bench_file(path: Path, arguments: argparse.Namespace) -> str:
    import numpy

    dtype, data = dominant_payload(path)
    width = WIDTH.get(dtype, 1)
    peers: list[Peer] = []
    notes: list[str] = []
    for family in FAMILIES:
        try:
            peers += family(dtype, data, arguments.small)
        # Whatever keeps a peer from running is told under the table, and the others go on.
        except Exception as error:  # noqa: BLE001
            notes.append(f"{family.__name__} is not available: {type(error).__name__}: {error}")
    peers = [peer for peer in peers if re.search(arguments.peers, peer.name)]
    source = numpy.frombuffer(data, "u1")
    target = numpy.ones_like(source)
    memcpy_seconds = float("inf")
    raw_reports, file_reports = [], []
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "payload.bin"
        raw.write_bytes(data)
        for round_idx in range(arguments.rounds):
            for effort in arguments.effort:
                raw_reports.append((effort, run_mithril(arguments.mithril, raw, dtype, effort)))
                file_reports.append((effort, run_mithril(arguments.mithril, path, dtype, effort)))
            for _ in range(N_PASSES):
                memcpy_seconds = min(memcpy_seconds, timed(lambda: numpy.copyto(target, source))[1])
            for peer in list(peers):
                if peer.once and round_idx:
                    continue
                try:
                    for _ in range(1 if peer.once else N_PASSES):
                        peer.run(data)
                except Exception as error:  # noqa: BLE001
                    notes.append(f"{peer.name} failed: {type(error).__name__}: {error}")
                    peers.remove(peer)
            print(f"{path.name}: round {round_idx + 1} of {arguments.rounds}", file=sys.stderr)
    gb = len(data) / 1e9
    rows = []
    for effort in arguments.effort:
        rows += mithril_rows("same bytes", [report for name, report in raw_reports if name == effort])
        rows += mithril_rows("tensor by tensor", [report for name, report in file_reports if name == effort])
    for peer in peers:
        bits = peer.coded_len * 8 / (len(data) / width)
        encode, decode = gb / peer.encode_seconds, gb / peer.decode_seconds
        copy = gb / memcpy_seconds
        note = "; ".join(filter(None, ["one run" if peer.once else "", peer.note]))
        rows.append(Row(peer.name, bits, encode, decode, encode / copy, decode / copy, note))
    title = f"## {path.name.removesuffix('.safetensors')}\n\n{dtype}, {len(data)} bytes, "
    title += f"best of {arguments.rounds} x {N_PASSES} passes"
    copies = [report["memcpy"]["thread_cpu_gb_s"] for _, report in raw_reports]
    title += f"; memcpy {gb / memcpy_seconds:.2f} GB/s beside the peers, {max(copies):.2f} inside mithril\n"
    return "\n".join([title, *table(rows), *(f"\n{note}" for note in notes)]) + "\n"


def table(rows: list[Row]) -> list[str]:
    peers = [row for row in rows if row.is_peer]
    # lz4 stores what it cannot shrink, which is copying: it sets no mark for compressors.
    shrinking = [row for row in peers if row.name != "lz4"] or peers
    fastest_encode = max((row.encode for row in shrinking), default=float("nan"))
    fastest_decode = max((row.decode for row in shrinking), default=float("nan"))
    lines = [
        "| codec | bits/element | encode GB/s | x memcpy | x fastest peer | decode GB/s | x memcpy | x fastest peer | note |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        encode = f"{row.encode:.3f} | {row.encode_x:.3f} | {row.encode / fastest_encode:.2f}"
        decode = f"{row.decode:.3f} | {row.decode_x:.3f} | {row.decode / fastest_decode:.2f}"
        lines.append(f"| {row.name} | {row.bits:.3f} | {encode} | {decode} | {row.note} |")
    return lines


# Setting up


def enter_environment(folder: Path) -> None:
    """Goes on inside of the virtual environment, made and filled as far as needed."""
    if Path(sys.prefix).resolve() != folder.resolve():
        python = folder / "bin" / "python"
        if not python.exists():
            venv.create(folder, with_pip=True)
        os.execv(python, [str(python), *sys.argv])
    for package in PACKAGES:
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            print(f"installing {package}", file=sys.stderr)
            # A peer that does not install is left out, and the table says so.
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", package], check=False, stdout=sys.stderr)


def keep_freed_memory() -> None:
    """Fresh pages cost as much as a fast decoder: the heap keeps what it has."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        trim_threshold, top_pad, mmap_max = -1, -2, -4
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(top_pad, 64 << 20)


def cpu_name() -> str:
    try:
        names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="directory of safetensors files")
    parser.add_argument("--mithril", type=Path, default=Path("target/release/mithril"), help="the program to measure")
    parser.add_argument("--venv", type=Path, required=True, help="virtual environment of the peers; made if missing")
    parser.add_argument("--out", type=Path, help="where to write the tables, besides stdout")
    parser.add_argument("--match", default="", help="regular expression that file names must match")
    parser.add_argument("--peers", default="", help="regular expression that names of peers must match")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--effort", action="append", choices=["fast", "balanced", "max"], help="may be repeated; default fast")
    parser.add_argument("--small", action="store_true", help="also the peers' smallest settings, one run each")
    arguments = parser.parse_args()
    arguments.effort = arguments.effort or ["fast"]
    if not arguments.mithril.is_file():
        parser.error(f"no program at {arguments.mithril}: run `cargo build --release`")
    enter_environment(arguments.venv)
    files = sorted(path for path in arguments.corpus.glob("*.safetensors") if re.search(arguments.match, path.name))
    if not files:
        parser.error("no such safetensors files")
    keep_freed_memory()
    warnings.simplefilter("ignore")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"

    versions = []
    for package in PACKAGES[1:]:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} missing")
    mithril = subprocess.run([arguments.mithril, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    text = f"{mithril} beside {', '.join(versions)}; {cpu_name()}, one thread pinned to one CPU, CPU time.\n"
    text += "`x fastest peer` leaves out lz4, which stores what it cannot shrink.\n"
    print(text, flush=True)
    for path in files:
        section = bench_file(path, arguments)
        print(section, flush=True)
        text += "\n" + section
        # After every file, so that a long run that is stopped leaves what it has.
        if arguments.out:
            arguments.out.write_text(text)


if __name__ == "__main__":
    main()
