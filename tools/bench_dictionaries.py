"""Compares dictionaries of mithril with those of zstd's trainers, on records that no trainer has seen.

    python3 tools/bench_dictionaries.py SAMPLES --mithril target/release/mithril [--keep DIR] [--json OUT]

SAMPLES is what `tools/dictionary_samples.py` made. Every trainer gets the same train records, size and level, and its
search; every dictionary compresses the same test records with the same compressor, the one of the Python package
`zstandard`. Trainers: `zstd --train-cover`, `zstd --train-fastcover` (both search k and d by default), `zstandard`
(`train_dictionary`), and `mithril dictionary train`. Sizes are those of whole frames with the dictionary id and the
content size. A frame names the id of its dictionary in one, two or four bytes; the last column of each table counts four for
all, so that it compares content and tables alone. With `--keep`, dictionaries that are already there are measured and not trained again.

With `--training MB` the time of training is measured instead: the train records of all sets together, up to so many megabytes,
in one directory, 64 KiB, level 3. Every trainer is a process of its own that reads the same files; seconds on the clock, CPU
seconds and peak memory of it, how many times smaller the test records get, and MB of samples for each second.

    python3 tools/bench_dictionaries.py SAMPLES --mithril target/release/mithril --training 100

With `--groups` grouped dictionaries are compared with one dictionary of the size of their file, and one of the size of their
base, on held-out records: of six kinds together, and of one kind whose groups mithril finds. Nothing is searched.

    python3 tools/bench_dictionaries.py SAMPLES --mithril target/release/mithril --groups --levels 3
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import zstandard


def records(directory):
    """The records of one part of a set, in order."""
    return [path.read_bytes() for path in sorted(directory.iterdir())]


def train_zstd(kind):
    def train(directory, size, level, threads, out):
        subprocess.run(["zstd", "-q", "-f", f"-T{threads}", f"--train-{kind}", "-r", str(directory), "-o", str(out), f"--maxdict={size}", f"-{level}"],
                       check=True, capture_output=True)

    return train


def train_python(directory, size, level, threads, out):
    out.write_bytes(zstandard.train_dictionary(size, records(directory), level=level, threads=threads, steps=40).as_bytes())


def train_mithril(binary, extra):
    def train(directory, size, level, threads, out):
        command = [binary, "dictionary", "train", str(directory), "-o", str(out), "--size", str(size), "--level", str(level),
                   "--threads", str(threads), "--force", *extra]
        subprocess.run(command, check=True, capture_output=True)

    return train


def measure(dictionary, level, test):
    """Bytes of all test records as frames."""
    compressor = zstandard.ZstdCompressor(level=level, dict_data=zstandard.ZstdCompressionDict(dictionary)) if dictionary else zstandard.ZstdCompressor(level=level)
    return sum(len(compressor.compress(record)) for record in test)


def cpu_seconds():
    """Of this process and of those that it has waited for."""
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def id_len(dictionary):
    """Bytes that a frame takes to name a dictionary."""
    number = zstandard.ZstdCompressionDict(dictionary).dict_id()
    return 0 if number == 0 else 1 if number < 1 << 8 else 2 if number < 1 << 16 else 4


def fill(samples, out, limit):
    """Hard links to the train records of all sets, each in turn, and the held-out ones; the bytes of the former."""
    trains = [sorted((path / "train").iterdir()) for path in sorted(samples.iterdir())]
    total, number = 0, 0
    while any(trains) and total < limit:
        for paths in filter(None, trains):
            path = paths.pop()
            os.link(path, out / f"{number:06}")
            number += 1
            total += path.stat().st_size
    tests = [path for directory in sorted(samples.iterdir()) for path in sorted((directory / "test").iterdir())]
    step = max(1, len(tests) // 5000)
    return total, number, [path.read_bytes() for path in tests[::step]]


def measure_training(arguments):
    """Prints the time that trainers take for all records together."""
    threads, size = arguments.threads, 65536
    with tempfile.TemporaryDirectory(dir=arguments.samples.parent) as name:
        directory, joined, out = (pathlib.Path(name) / part for part in ("records", "joined", "dictionary"))
        directory.mkdir()
        total, number, test = fill(arguments.samples, directory, arguments.training * 1_000_000)
        raw = sum(map(len, test))
        ours = [arguments.mithril, "dictionary", "train", "-o", str(out), f"--size={size}", "--level=3", f"--threads={threads}", "--force"]
        theirs = ["zstd", "-q", "-f", f"-T{threads}", "-r", str(directory), "-o", str(out), f"--maxdict={size}", "-3"]
        commands = {
            "mithril, no search": [*ours, str(directory), "--no-search"],
            "mithril, no search, records in one file": [*ours, str(joined), "--split=length-prefixed", "--no-search"],
            "mithril, its search": [*ours, str(directory)],
            "zstd fastcover, k=1024 d=8": [*theirs, "--train-fastcover=k=1024,d=8"],
            "zstd fastcover, 10 dictionaries": [*theirs, "--train-fastcover=d=8,steps=9"],
            "zstd fastcover, its search (82)": [*theirs, "--train-fastcover"],
        }
        # Which reads all records once, so that the first trainer does not pay for the disk.
        with joined.open("wb") as file:
            for record in records(directory):
                file.write(len(record).to_bytes(4, "little") + record)
        print(f"{number} records, {total / 1e6:.1f} MB; {len(test)} to measure with; {threads} threads\n")
        print("| trainer | seconds | CPU seconds | MB/s | peak memory, times the samples | held-out records, times smaller |")
        print("|---|---|---|---|---|---|", flush=True)
        for what, command in commands.items():
            out.unlink(missing_ok=True)
            started = time.monotonic()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            message = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.monotonic() - started
            if status:
                sys.exit(f"{what}: {message.decode(errors='replace')}")
            ratio = raw / measure(out.read_bytes(), 3, test)
            cpu = usage.ru_utime + usage.ru_stime
            print(f"| {what} | {wall:.1f} | {cpu:.1f} | {total / 1e6 / wall:.1f} | {usage.ru_maxrss * 1024 / total:.1f} | {ratio:.3f} |", flush=True)


# Kinds of records that share little, and kinds whose groups are found: sets, base and addition in KiB, number of groups.
KINDS = ["debian-control", "changelog-entries", "man-sections", "crate-versions", "npm-manifests", "python-metadata"]
GROUPINGS = [("six kinds, by kind", KINDS, 32, 8, None), ("six kinds, by kind", KINDS, 64, 16, None), ("six kinds, found", KINDS, 32, 8, 6),
             ("debian-control, found", ["debian-control"], 32, 8, 4), ("npm-manifests, found", ["npm-manifests"], 32, 8, 4),
             ("html-pages, found", ["html-pages"], 32, 8, 4), ("log-lines, found", ["log-lines"], 8, 4, 4)]


def measure_groups(arguments):
    """Prints what groups of records gain."""
    level = arguments.levels.split(",")[0]

    def mithril(*words):
        command = [arguments.mithril, "dictionary", *map(str, words), "--level", level, "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    print(f"level {level}\n\n| records | base and additions, KiB | bytes of the file | no dictionary | one of the base's size "
          "| one of the file's size | groups | against one of the file's size |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        grouped, one, base = (pathlib.Path(name) / part for part in ("grouped", "one", "base"))
        for what, sets, base_size, group_size, n_groups in GROUPINGS:
            train = [arguments.samples / part / "train" for part in sets]
            test = [arguments.samples / part / "test" for part in sets]
            always = ["--no-search", "--force", f"--threads={arguments.threads}"]
            way = [f"--groups={n_groups}"] if n_groups else ["--group-by=argument"]
            made = mithril("train", *train, "-o", grouped, f"--size={base_size}K", f"--group-size={group_size}K", *way, *always)
            mithril("train", *train, "-o", one, f"--size={made['bytes']}", *always)
            mithril("train", *train, "-o", base, f"--size={base_size}K", *always)
            results = [mithril("evaluate", path, *test) for path in (base, one, grouped)]
            cells = " | ".join(f"{result['ratio']:.3f}" for result in results)
            gain = results[2]["ratio"] / results[1]["ratio"] - 1
            print(f"| {what} | {base_size} + {len(made['members']) - 1} x {group_size} | {made['bytes']} | {results[0]['plain_ratio']:.3f} "
                  f"| {cells} | {gain * 100:+.2f} % |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=pathlib.Path)
    parser.add_argument("--mithril", help="the binary; without it only rivals run")
    parser.add_argument("--sets")
    parser.add_argument("--sizes", default="65536,114688")
    parser.add_argument("--levels", default="3,19")
    parser.add_argument("--trainers", default="zstd-cover,zstd-fastcover,zstandard,mithril")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--options", default="", help="more options of `mithril dictionary train`")
    parser.add_argument("--training", type=int, metavar="MB", help="measure the time of training on so many megabytes")
    parser.add_argument("--groups", action="store_true", help="measure what groups of records gain")
    arguments = parser.parse_args()
    if arguments.groups:
        measure_groups(arguments)
        return
    if arguments.training:
        measure_training(arguments)
        return

    trainers = {"zstd-cover": train_zstd("cover"), "zstd-fastcover": train_zstd("fastcover"), "zstandard": train_python}
    if arguments.mithril:
        trainers["mithril"] = train_mithril(arguments.mithril, arguments.options.split())
    trainers = {name: trainers[name] for name in arguments.trainers.split(",") if name in trainers}
    names = arguments.sets.split(",") if arguments.sets else sorted(path.name for path in arguments.samples.iterdir())
    keep = arguments.keep or pathlib.Path(tempfile.mkdtemp())
    keep.mkdir(parents=True, exist_ok=True)
    rows = []
    gains, fair_gains = [], []
    print("| set | size | level | raw | no dictionary | " + " | ".join(trainers) + " | mithril against the best other | with ids of four bytes |")
    print("|---|---|---|---|---|" + "---|" * len(trainers) + "---|---|", flush=True)
    for name in names:
        directory = arguments.samples / name
        test = records(directory / "test")
        raw = sum(map(len, test))
        for level in map(int, arguments.levels.split(",")):
            plain = measure(None, level, test)
            for size in map(int, arguments.sizes.split(",")):
                results, seconds, fair = {}, {}, {}
                for trainer, train in trainers.items():
                    out = keep / f"{name}-{size}-{level}-{trainer}"
                    if not out.exists():
                        started, cpu_before = time.monotonic(), cpu_seconds()
                        try:
                            train(directory / "train", size, level, arguments.threads, out)
                        except (subprocess.CalledProcessError, zstandard.ZstdError) as error:
                            print(f"{trainer} failed on {name}: {getattr(error, 'stderr', error)}", file=sys.stderr)
                            continue
                        seconds[trainer] = {"wall": time.monotonic() - started, "cpu": cpu_seconds() - cpu_before}
                    dictionary = out.read_bytes()
                    assert len(dictionary) <= size, (trainer, len(dictionary))
                    results[trainer] = measure(dictionary, level, test)
                    fair[trainer] = results[trainer] + (4 - id_len(dictionary)) * len(test)
                others = [value for key, value in results.items() if key != "mithril"]
                gain = fair_gain = ""
                if "mithril" in results and others:
                    gains.append(min(others) / results["mithril"] - 1)
                    gain = f"{gains[-1] * 100:+.2f} %"
                    fair_gains.append(min(value for key, value in fair.items() if key != "mithril") / fair["mithril"] - 1)
                    fair_gain = f"{fair_gains[-1] * 100:+.2f} %"
                cells = " | ".join(f"{raw / results[key]:.3f}" if key in results else "failed" for key in trainers)
                print(f"| {name} | {size} | {level} | {raw} | {raw / plain:.3f} | {cells} | {gain} | {fair_gain} |", flush=True)
                rows.append({"set": name, "size": size, "level": level, "raw": raw, "plain": plain, "bytes": results, "bytes_with_long_ids": fair, "seconds": seconds})
    if gains:
        for what, values in (("as they are", gains), ("with ids of four bytes", fair_gains)):
            print(f"\n{what}: mean {sum(values) / len(values) * 100:+.2f} %, worst {min(values) * 100:+.2f} %, {len(values)} rows")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
