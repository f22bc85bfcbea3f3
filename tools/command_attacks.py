"""Runs the commands that write on disks that fill up, and ends them by signals at random moments.

On a full disk a command must say so, leave no part of an output and lose nothing. After a signal the output is absent, as it
was, or complete; the run after it is right and leaves no temporary file. Prints one line of totals, and exits with 1 at
the first broken promise.

    python3 tools/command_attacks.py disk target/release/mithril             # few sizes
    python3 tools/command_attacks.py disk target/release/mithril --full      # 80 sizes
    python3 tools/command_attacks.py signals target/release/mithril --full   # 510 signals

Full disks are `tmpfs` of some size, which only root can mount; others mount them in a user namespace where the system lets
them: `unshare --user --map-root-user --mount python3 tools/command_attacks.py disk ...`.
"""

import argparse
import hashlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attacking import (
    Broken,
    Store,
    floats,
    run,
    said,
    state,
    succeed,
    write_safetensors,
)

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGQUIT]
FULL = ("No space left on device", "are free")


def model(seed: int, moved: int = 0, n: int = 60_000) -> bytes:
    tensors = {f"layer.{layer}": ("F32", [n], floats(seed * 10 + layer, n, moved)) for layer in range(3)}
    return write_safetensors(tensors)


def content(path: Path) -> str:
    """A digest of a file, or of all files of a directory with their names; empty if there is neither."""
    digest = hashlib.sha256()
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    if not path.exists():
        return ""
    for file in files:
        digest.update(str(file.relative_to(path)).encode() + b"\0")
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()


def remove(outputs: list[Path]) -> None:
    for output in outputs:
        if output.is_dir():
            shutil.rmtree(output)
        else:
            output.unlink(missing_ok=True)


def temporaries(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith(".tmp") or ".tmp." in path.name]


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    succeed("mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", folder)
    try:
        yield folder
    finally:
        succeed("umount", folder)


class FullDisk:
    """A disk of some size on which everything that writes is tried."""

    def __init__(self, mithril: Path, sources: Path, place: Path, kib: int) -> None:
        self.mithril, self.sources, self.place, self.kib = mithril, sources, place, kib
        self.store = Store(mithril, place / "store")
        self.store.out = sources.with_name("out")
        self.n_runs = self.n_full = 0

    def attempt(self, *words: object, output: Path | None = None, of: str = "") -> bool:
        result = run(*words)
        self.n_runs += 1
        here = f"{self.kib} KiB: {' '.join(str(word) for word in words[1:4])}"
        if result.returncode != 0:
            if not any(words in said(result) for words in FULL):
                raise Broken(f"{here}: it does not say that the disk is full: {said(result)}")
            self.n_full += 1
        if output is not None:
            found = content(output)
            output.unlink(missing_ok=True)
            if found != (of if result.returncode == 0 else ""):
                raise Broken(f"{here}: `{output.name}` is not whole after exit code {result.returncode}")
        if left := temporaries(self.place):
            raise Broken(f"{here}: it leaves {left}")
        return result.returncode == 0

    def fill(self) -> None:
        store, sources = self.store, self.sources
        previous = None
        for step in range(6):
            against = ["--previous", previous] if previous else []
            if self.attempt(*store.command("save", f"step_{step}", sources / f"{step}.safetensors", *against)):
                previous = f"step_{step}"
                store.acknowledged[previous] = (step, 0)
            store.check(store.acknowledged)
        if previous:
            self.attempt(*store.command("gc", "--min-age", 0))
            self.attempt(*store.command("rebase", previous))
            want = content(sources / f"{previous.removeprefix('step_')}.safetensors")
            loaded = self.place / "loaded"
            self.attempt(*store.command("load", previous, "-o", loaded), output=loaded, of=want)
            store.check(store.acknowledged)
        model, packed = sources / "model.safetensors", sources / "packed.mckp"
        frame, back = self.place / "model.mckp", self.place / "back"
        self.attempt(self.mithril, "compress", model, "-o", frame, output=frame, of=content(packed))
        self.attempt(self.mithril, "decompress", packed, "-o", back, output=back, of=content(model))
        for key in list(store.acknowledged)[:2]:
            # What is removed is marked, for which there may be no room: then it is not done, or its data stays until gc.
            was = store.acknowledged.pop(key)
            there = self.attempt(*store.command("delete", key)) or store.keys()
            if there is not True and key in there:
                store.acknowledged[key] = was
        store.check(store.acknowledged)
        if store.acknowledged and self.attempt(*store.command("gc", "--min-age", 0)):
            store.check_all()


def disk(options: argparse.Namespace, folder: Path) -> str:
    """Disks of many sizes, from one that has room for nothing to one that has for all."""
    sources = folder / "sources"
    sources.mkdir()
    for step in range(6):
        (sources / f"{step}.safetensors").write_bytes(write_safetensors(state(step)))
    (sources / "model.safetensors").write_bytes(model(1))
    succeed(options.mithril, "compress", sources / "model.safetensors", "-o", sources / "packed.mckp")
    n_runs = n_full = 0
    sizes = [8 + 1000 * number // options.sizes for number in range(options.sizes)]
    for kib in sizes:
        with small_disk(folder / "disk", kib) as place:
            tried = FullDisk(options.mithril, sources, place, kib)
            tried.fill()
            n_runs, n_full = n_runs + tried.n_runs, n_full + tried.n_full
    return (
        f"{len(sizes)} disks of {sizes[0]} to {sizes[-1]} KiB: {n_runs} runs, {n_full} out of space, all said so: 0 lost, "
        "0 parts of files, 0 left over"
    )


class Job:
    """A command that writes, and what is there when it was run to its end."""

    def __init__(self, name: str, words: list[object], outputs: list[Path], prepare: Callable[[], None]) -> None:
        self.name, self.words, self.outputs, self.prepare = name, words, outputs, prepare


def jobs(mithril: Path, place: Path) -> list[Job]:
    sources = place.with_name("sources")
    sources.mkdir()
    base, tuned, folder = sources / "base.safetensors", sources / "tuned.safetensors", sources / "folder"
    base.write_bytes(model(1))
    tuned.write_bytes(model(1, 5))
    folder.mkdir()
    for name, seed in (("a.safetensors", 2), ("b.safetensors", 3)):
        (folder / name).write_bytes(model(seed, n=20_000))
    (folder / "config.json").write_text('{"hidden": 3}\n' * 100)
    packed, delta, tree = sources / "base.mckp", sources / "tuned.mckp", sources / "folder.mckp"
    succeed(mithril, "compress", base, "-o", packed)
    succeed(mithril, "compress", tuned, "-o", delta, "--base", base)
    succeed(mithril, "compress", folder, "-o", tree)
    store = sources / "store"
    for step in range(3):
        (sources / "step").write_bytes(write_safetensors(state(step)))
        against = ["--previous", f"step_{step - 1}"] if step else []
        succeed(mithril, "store", store, "save", f"step_{step}", sources / "step", *against)

    def nothing() -> None:
        pass

    def one(name: str, *words: object) -> Job:
        out = place / "out"
        return Job(name, [mithril, *words, "-o", out], [out], nothing)

    def in_store(name: str, *words: object) -> Job:
        copy = place / "store"

        def prepare() -> None:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(store, copy)

        return Job(name, [mithril, "store", copy, *words], [], prepare)

    return [
        one("compress", "compress", base),
        one("compress at balanced", "compress", base, "--effort", "balanced"),
        one("compress against a base", "compress", tuned, "--base", base),
        one("compress a directory", "compress", folder),
        one("compress to safetensors", "compress", base, "--to", "safetensors"),
        one("decompress", "decompress", packed),
        one("decompress a delta", "decompress", delta, "--base", base),
        one("decompress a directory", "decompress", tree),
        one("extract", "extract", packed, "layer.1"),
        one("repair", "repair", packed),
        one("store load", "store", store, "load", "step_2"),
        one("store extract", "store", store, "extract", "step_2", "weight", "--raw"),
        in_store("store save", "save", "step_3", sources / "step", "--previous", "step_2"),
        in_store("store save with retention", "save", "step_3", sources / "step", "--keep-last", 2),
        in_store("store delete", "delete", "step_0"),
        in_store("store rebase", "rebase", "step_2"),
        in_store("store gc", "gc", "--min-age", 0),
    ]


def check_store(mithril: Path, place: Path, name: str) -> None:
    """Every checkpoint that is there is whole; what the command was to remove may be gone, and nothing else."""
    store = Store(mithril, place / "store")
    store.out = place.with_name("checked")
    there = store.keys()
    may_be_gone = {"store delete": {"step_0"}, "store save with retention": {"step_0", "step_1"}}.get(name, set())
    for step in range(4):
        if f"step_{step}" in there:
            # The file of the last step was saved again.
            store.acknowledged[f"step_{step}"] = (min(step, 2), 0)
        elif step < 3 and f"step_{step}" not in may_be_gone:
            raise Broken(f"step_{step} is lost")
    store.check_all()


def signals(options: argparse.Namespace, folder: Path) -> str:
    chance = random.Random(options.seed)
    ends = time.monotonic() + options.minutes * 60
    place = folder / "place"
    place.mkdir()
    all_jobs = jobs(options.mithril, place)
    wanted: dict[str, list[str]] = {}
    durations: dict[str, float] = {}
    for job in all_jobs:
        job.prepare()
        began = time.monotonic()
        succeed(*job.words)
        durations[job.name] = time.monotonic() - began
        wanted[job.name] = [content(output) for output in job.outputs]
        remove(job.outputs)
    n_sent = n_absent = n_complete = n_left = number = 0
    while n_sent < options.signals and time.monotonic() < ends:
        job, sent = all_jobs[number % len(all_jobs)], SIGNALS[number // len(all_jobs) % len(SIGNALS)]
        number += 1
        remove(job.outputs)
        job.prepare()
        process = subprocess.Popen(
            [str(word) for word in job.words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(0.0, 1.05 * durations[job.name]))
        process.send_signal(sent)
        process.wait()
        n_sent += 1
        name = f"{job.name}, {sent.name}, signal {n_sent} (seed {options.seed})"
        for output, want in zip(job.outputs, wanted[job.name], strict=True):
            found = content(output)
            # The files of a directory appear one by one, each as a whole.
            if found not in ("", want) and not output.is_dir():
                raise Broken(f"{name}: {output.name} is neither absent nor complete")
            n_absent += found == ""
            n_complete += found == want
        n_left += bool(temporaries(place))
        force = ["--force"] if job.outputs else []
        again = run(*job.words, *force)
        # What the first run saved or deleted is refused the second time.
        is_done = not job.outputs and any(reason in said(again) for reason in ("exists already", "no checkpoint"))
        if again.returncode != 0 and not is_done:
            raise Broken(f"{name}: the next run is refused: {said(again)}")
        if [content(output) for output in job.outputs] != wanted[job.name]:
            raise Broken(f"{name}: the next run is not right")
        try:
            if not job.outputs:
                check_store(options.mithril, place, job.name)
        except Broken as error:
            raise Broken(f"{name}: {error}") from error
        if left := temporaries(place):
            raise Broken(f"{name}: the next run leaves {left}")
    return (
        f"{n_sent} signals to {len(all_jobs)} commands: outputs absent {n_absent}, complete {n_complete}; {n_left} left a "
        "temporary file, all removed by the next run; 0 parts of files, 0 wrong files, 0 lost"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attack", choices=["disk", "signals"])
    parser.add_argument("mithril", type=Path, help="the program")
    parser.add_argument("--full", action="store_true", help="80 sizes, or 510 signals")
    parser.add_argument("--sizes", type=int, help="disks to fill")
    parser.add_argument("--signals", type=int, help="signals to send")
    parser.add_argument("--minutes", type=float, default=600.0, help="sends no more signals after so long")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.mithril = options.mithril.resolve()
    options.sizes = options.sizes or (80 if options.full else 6)
    options.signals = options.signals or (510 if options.full else 51)
    folder = Path(tempfile.mkdtemp(prefix="mithril-attack-"))
    try:
        if options.attack == "disk":
            (folder / "try").mkdir()
            if run("mount", "-t", "tmpfs", "tmpfs", folder / "try").returncode != 0:
                print("not run: a small disk cannot be mounted; see the first lines of this script")
                return 0
            succeed("umount", folder / "try")
        print({"disk": disk, "signals": signals}[options.attack](options, folder), flush=True)
        return 0
    except Broken as error:
        print(f"broken: {error}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
