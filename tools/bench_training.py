"""Sizes and speeds of checkpoint stores on a real training run, beside what else people use.

    python tools/train_small.py STATES ...                      (see its first lines; torch is needed there only)
    cargo build --release -p mithril --example store_figures
    python tools/bench_training.py STATES --venv .venv-peers --out table.md

STATES holds safetensors files `step_XXXX.safetensors` with `model.*` (bf16), `master.*`, `exp_avg.*` and `exp_avg_sq.*`
(fp32). A pair is a state and the earlier one that it is stored against. Peers get the tensors of each dtype one behind
the other; `XOR + zstd` splits the changed bits into byte planes; `torch.save` is its file (an uncompressed archive), as
train_small.py writes it beside the states with --torch. Every peer's output is compared with its input. CPU time, best
of three passes over the weights and one over the rest, one thread.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import bench_peers

PACKAGES = ["numpy", "zstandard", "pcodec", "z4ai"]
PAIRS = [
    ("low rate, 10 steps", "step_0310", "step_0300"),
    ("low rate, 1 step", "step_0301", "step_0300"),
    ("high rate, 10 steps", "step_0110", "step_0100"),
    ("fine-tune of one block, 10 steps", "tuned/step_0020", "tuned/step_0010"),
    ("middle rate, 10 steps", "step_0210", "step_0200"),
    ("high rate, 1 step", "step_0101", "step_0100"),
    ("middle rate, 1 step", "step_0201", "step_0200"),
]
N_PASSES = 3


def tensors_of(path: Path) -> dict[str, tuple[str, bytes]]:
    file = path.read_bytes()
    header_len = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + header_len])
    start = 8 + header_len
    return {
        name: (tensor["dtype"], file[start + tensor["data_offsets"][0] : start + tensor["data_offsets"][1]])
        for name, tensor in sorted(header.items())
        if name != "__metadata__"
    }


def joined(tensors: dict[str, tuple[str, bytes]], dtype: str) -> bytes:
    return b"".join(data for kind, data in tensors.values() if kind == dtype)


class Peer:
    """What it takes to store one dtype of a state against its base, and its speed."""

    def __init__(self, name: str, encode: Callable, decode: Callable) -> None:
        self.name, self.encode, self.decode = name, encode, decode

    def measure(self, dtype: str, data: bytes, base: bytes) -> tuple[int, float, float]:
        best = [float("inf"), float("inf")]
        # Speeds are compared on the weights.
        for _ in range(N_PASSES if dtype == "BF16" else 1):
            start = time.process_time()
            coded = self.encode(dtype, data, base)
            between = time.process_time()
            restored = self.decode(dtype, coded, base)
            best = [min(best[0], between - start), min(best[1], time.process_time() - between)]
        if bytes(restored) != data:
            raise SystemExit(f"{self.name}: output differs from input")
        return len(coded), *best


def peers() -> list[Peer]:
    import numpy
    import z4ai
    import zstandard
    from pcodec import ChunkConfig, standalone

    width = {"BF16": 2, "F32": 4}
    zstd, unzstd = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()

    def planes(data: bytes, n: int) -> bytes:
        return numpy.ascontiguousarray(numpy.frombuffer(data, "u1").reshape(-1, n).T).tobytes()

    def unplanes(data: bytes, n: int) -> bytes:
        return numpy.ascontiguousarray(numpy.frombuffer(data, "u1").reshape(n, -1).T).tobytes()

    def xor(a: bytes, b: bytes) -> bytes:
        return (numpy.frombuffer(a, "u1") ^ numpy.frombuffer(b, "u1")).tobytes()

    def ordered(data: bytes, n: int) -> object:
        """Bits of floats as unsigned numbers in the order of the floats."""
        bits = numpy.frombuffer(data, f"<u{n}")
        top = bits.dtype.type(1 << (8 * n - 1))
        return numpy.where(bits & top, ~bits, bits | top)

    def unordered(numbers: object, n: int) -> bytes:
        top = numbers.dtype.type(1 << (8 * n - 1))
        return numpy.where(numbers & top, numbers & ~top, ~numbers).astype(f"<u{n}").tobytes()

    def subtract(dtype: str, data: bytes, base: bytes) -> bytes:
        n = width[dtype]
        step = (ordered(data, n) - ordered(base, n)).view(f"<i{n}")
        return standalone.simple_compress(step, ChunkConfig(compression_level=8))

    def add(dtype: str, coded: bytes, base: bytes) -> bytes:
        n = width[dtype]
        return unordered(standalone.simple_decompress(coded).view(f"<u{n}") + ordered(base, n), n)

    names = {"BF16": "bf16", "F32": "fp32"}
    return [
        Peer("zstd -3", lambda _, data, base: zstd.compress(data), lambda _, coded, base: unzstd.decompress(coded)),
        Peer(
            "XOR + zstd -3",
            lambda dtype, data, base: zstd.compress(planes(xor(data, base), width[dtype])),
            lambda dtype, coded, base: xor(unplanes(unzstd.decompress(coded), width[dtype]), base),
        ),
        Peer(
            "z4ai delta",
            lambda dtype, data, base: z4ai.compress_delta(data, base, dtype=names[dtype], threads=1),
            lambda dtype, coded, base: z4ai.decompress_delta(coded, base),
        ),
        Peer("ordered subtract + pcodec", subtract, add),
    ]


def peer_rows(state: Path, base: Path, only_weights: bool) -> dict[str, dict[str, tuple[int, float, float]]]:
    """Bytes and seconds of every peer, for weights and for the whole state."""
    now, before = tensors_of(state), tensors_of(base)
    rows: dict[str, dict[str, tuple[int, float, float]]] = {}
    for peer in peers():
        dtypes = ["BF16"] if only_weights else ["BF16", "F32"]
        of = {dtype: peer.measure(dtype, joined(now, dtype), joined(before, dtype)) for dtype in dtypes}
        whole = tuple(sum(values) for values in zip(*of.values(), strict=True))
        rows[peer.name] = {"weights": of["BF16"], "state": whole}
    return rows


def figures(program: Path, arguments: list[str], n_lines: int | None = None) -> list[dict]:
    """What the example prints; only the first lines, if not all are wanted."""
    lines = []
    with subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(json.loads(line))
            if len(lines) == n_lines:
                process.kill()
                return lines
    if process.returncode:
        raise SystemExit("store_figures failed")
    return lines


def section(title: str, state: Path, base: Path, options: argparse.Namespace) -> str:
    n_lines = len(options.effort) if options.only_weights else None
    ours = figures(options.figures, [str(options.scratch), str(state), str(base), *options.effort], n_lines)
    others = peer_rows(state, base, options.only_weights)
    torch = state.with_suffix(".pt")
    lines = [f"## {title}", ""]
    for what in ["weights"] if options.only_weights else ["weights", "state"]:
        rows = [row for row in ours if row["what"] == what]
        raw, copy = rows[0]["raw"], rows[0]["memcpy"]
        label = "weights (bf16)" if what == "weights" else "full state (bf16, fp32 masters and moments)"
        lines += [f"{label}: {raw} bytes, {100 * rows[0]['equal']:.1f} % of the elements unchanged.", ""]
        lines += ["| | bytes | ratio | save x memcpy | restore x memcpy |", "|---|---|---|---|---|"]

        def line(name: str, n: int, save: float | None, load: float | None, raw: int = raw, copy: float = copy) -> str:
            speeds = " | ".join("" if seconds is None else f"{copy / seconds:.4f}" for seconds in (save, load))
            return f"| {name} | {n} | {raw / n:.3f} | {speeds} |"

        lines.append(line("raw", raw, None, None))
        if what == "state" and torch.exists():
            lines.append(line("torch.save", torch.stat().st_size, None, None))
        for name, row in others.items():
            lines.append(line(name, *row[what]))
        for row in rows:
            lines.append(line(f"mithril {row['effort']}, full", row["full"], row["save_full"], row["load_full"]))
            lines.append(line(f"**mithril {row['effort']}, delta**", row["delta"], row["save_delta"], row["load_delta"]))
        lines.append("")
        for row in rows:
            parts = [f"{role} {8 * stored / (n / (2 if role == 'model' else 4)):.3f}" for role, (n, stored) in row["roles"].items()]
            lines.append(
                f"{row['effort']}: bits per weight by role: {', '.join(parts)}; a restore reads "
                f"{row['restore_bytes'] / row['full_bytes']:.3f} x the bytes of a full one"
                + ("" if row["wall_save_delta"] is None else
                   f"; to disk with all syncs {row['wall_save_delta']:.2f} s, a raw write and sync of the same bytes "
                   f"{row['wall_raw_write']:.2f} s")
                + ".\n"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("states", type=Path)
    parser.add_argument("--figures", type=Path, default=Path("target/release/examples/store_figures"))
    parser.add_argument("--venv", type=Path, required=True, help="virtual environment of the peers; made if missing")
    parser.add_argument("--scratch", type=Path, help="where stores are written; default STATES")
    parser.add_argument("--effort", action="append", choices=["fast", "balanced", "max"])
    parser.add_argument("--only-weights", action="store_true", help="leave the full states out, which take longest")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.effort = options.effort or ["fast", "balanced", "max"]
    options.scratch = options.scratch or options.states
    bench_peers.PACKAGES = PACKAGES
    bench_peers.enter_environment(options.venv)
    text = ""
    for title, state, base in PAIRS:
        paths = [options.states / f"{name}.safetensors" for name in (state, base)]
        if not all(path.exists() for path in paths):
            print(f"left out: {title}, for want of {paths[0].name}", file=sys.stderr)
            continue
        text += section(title, *paths, options) + "\n"
        print(text[text.rindex("## ") :], flush=True)
        if options.out:
            options.out.write_text(text)
    chain = sorted((options.states / "chain").glob("step_*.safetensors"))
    if len(chain) > 1:
        row = figures(options.figures, [str(options.scratch), "chain", *map(str, chain)])[0]
        text += (
            f"## A chain of {row['n']} saves, weights, low rate\n\nBytes: {', '.join(map(str, row['bytes']))}. Depth of "
            f"the newest: {row['depth']}. Restoring it reads {row['restore_bytes'] / row['full_bytes']:.3f} x the bytes and "
            f"takes {row['load_newest'] / row['load_full']:.2f} x the CPU time of a full one "
            f"({row['memcpy'] / row['load_newest']:.3f} and {row['memcpy'] / row['load_full']:.3f} x memcpy).\n"
        )
        print(text[text.rindex("## ") :], flush=True)
        if options.out:
            options.out.write_text(text)


if __name__ == "__main__":
    main()
