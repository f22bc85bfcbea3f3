"""Compares batches of small records with the Python package `zstandard`, in time and by the same dictionary.

    python3 tools/bench_records.py SAMPLES [--sets crate-versions,debian-control] [--level 3] [--repeat 7] [--json OUT]

SAMPLES is what `tools/dictionary_samples.py` made; of every set, records of 512 to 2048 bytes are taken, about 1 KB each, until
there are 4 MB of them. mithril and zstandard must be importable. All ways use one dictionary of 64 KiB that mithril trained, and
their frames must be the same in number and decode to the same records.

Rows are microseconds per record, best of the repetitions, which go round all ways in turn so that a busy moment of the
machine meets all of them. "CPU" is the time of the process on its cores, "wall" that of a clock. The last columns compare CPU
time on one thread, and wall time on several.

  new objects    `zstandard.ZstdCompressor(...).compress` with an object made for each record, of which few are measured
  per record     `zstandard.ZstdCompressor.compress` for each, one object that is used again: what users write
  native         `multi_compress_to_buffer` of zstandard on one buffer with segments, one thread: its C code without Python
  list           `mithril.dictionary.Dictionary.compress_many`
  buffer         `mithril.dictionary.Dictionary.compress_buffer`
"""

import argparse
import json
import os
import pathlib
import struct
import time

import zstandard
from mithril.dictionary import train

WANTED = 4 << 20
FEW = 200


def records_of(directory):
    found, total = [], 0
    paths = sorted(directory.iterdir())
    while paths and total < WANTED:
        for path in paths:
            record = path.read_bytes()
            if 512 <= len(record) <= 2048:
                found.append(record)
                total += len(record)
        if not found:
            break
    return found


def segments(records):
    """All records in one buffer as zstandard takes them: places and lengths of 64 bits."""
    table, at = bytearray(), 0
    for record in records:
        table += struct.pack("=QQ", at, len(record))
        at += len(record)
    return zstandard.BufferWithSegments(b"".join(records), bytes(table))


def offsets_of(records):
    numbers = [0]
    for record in records:
        numbers.append(numbers[-1] + len(record))
    return memoryview(struct.pack(f"={len(numbers)}Q", *numbers)).cast("Q")


def bests(ways, repeat):
    """The least CPU and wall time of each way."""
    best = {name: (float("inf"), float("inf")) for name in ways}
    for _ in range(repeat):
        for name, way in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            way()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            best[name] = (min(best[name][0], cpu), min(best[name][1], wall))
    return best


def measure(directory, level, repeat):
    """Prints and returns the rows of one set."""
    training = [path.read_bytes() for path in sorted((directory / "train").iterdir())]
    records = records_of(directory / "test")
    ours = train(training, size=64 << 10, level=level, search=False)
    theirs = ours.to_zstandard()
    compressor = zstandard.ZstdCompressor(level=level, dict_data=theirs)
    decompressor = zstandard.ZstdDecompressor(dict_data=theirs)
    frames = ours.compress_many(records)
    assert [decompressor.decompress(frame) for frame in frames] == records
    assert ours.decompress_many([compressor.compress(record) for record in records]) == records
    joined, offsets, raw_segments = b"".join(records), offsets_of(records), segments(records)
    joined_frames, frame_offsets, frame_segments = b"".join(frames), offsets_of(frames), segments(frames)
    cores = os.cpu_count()
    few, few_frames = records[:FEW], frames[:FEW]
    sides = {
        "compress": {
            ("zstandard, new objects", 1): lambda: [zstandard.ZstdCompressor(level=level, dict_data=theirs).compress(record) for record in few],
            ("zstandard, per record", 1): lambda: [compressor.compress(record) for record in records],
            ("zstandard, native", 1): lambda: compressor.multi_compress_to_buffer(raw_segments, threads=1),
            ("mithril, list", 1): lambda: ours.compress_many(records, threads=1),
            ("mithril, buffer", 1): lambda: ours.compress_buffer(joined, offsets, threads=1),
            ("mithril, list", cores): lambda: ours.compress_many(records, threads=cores),
            ("mithril, buffer", cores): lambda: ours.compress_buffer(joined, offsets, threads=cores),
        },
        "decompress": {
            ("zstandard, new objects", 1): lambda: [zstandard.ZstdDecompressor(dict_data=theirs).decompress(frame) for frame in few_frames],
            ("zstandard, per record", 1): lambda: [decompressor.decompress(frame) for frame in frames],
            ("zstandard, native", 1): lambda: decompressor.multi_decompress_to_buffer(frame_segments, threads=1),
            ("mithril, list", 1): lambda: ours.decompress_many(frames, threads=1),
            ("mithril, buffer", 1): lambda: ours.decompress_buffer(joined_frames, frame_offsets, threads=1),
            ("mithril, list", cores): lambda: ours.decompress_many(frames, threads=cores),
            ("mithril, buffer", cores): lambda: ours.decompress_buffer(joined_frames, frame_offsets, threads=cores),
        },
    }
    rows = []
    for what, ways in sides.items():
        best = bests(ways, repeat)
        per_record = best[("zstandard, per record", 1)]
        native = best[("zstandard, native", 1)]
        for (way, threads), (cpu, wall) in best.items():
            micro = 1e6 / len(records)
            if way == "zstandard, new objects":
                cpu, wall = cpu * len(records) / len(few), wall * len(records) / len(few)
            # On one thread both are CPU time, which other programs disturb less; several threads are there for the clock.
            against = (per_record[0] / cpu, native[0] / cpu) if threads == 1 else (per_record[1] / wall, native[1] / wall)
            print(f"| {directory.name} | {len(records)} | {len(joined) // len(records)} | {what} | {way} | {threads} | {cpu * micro:.2f} "
                  f"| {wall * micro:.2f} | {against[0]:.2f} | {against[1]:.2f} |", flush=True)
            rows.append({"set": directory.name, "what": what, "way": way, "threads": threads, "cpu": cpu * micro, "wall": wall * micro})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=pathlib.Path)
    parser.add_argument("--sets", default="crate-versions,debian-control,npm-manifests")
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    rows = []
    print("| set | records | bytes each | what | way | threads | us CPU | us wall | times zstandard per record | times its native code |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in arguments.sets.split(","):
        rows += measure(arguments.samples / name, arguments.level, arguments.repeat)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
