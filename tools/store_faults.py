"""Kills, stops and races the workers of a checkpoint store, and looks at what they leave.

Every worker says what it was told is safe; after it is gone, everything that it said must be there, byte for byte,
nothing may be torn, and after gc nothing may be left that no checkpoint needs. Prints one line of totals per kind of
fault, and exits with 1 at the first broken promise.

    cargo build --release -p mithril --example store_worker
    python3 tools/store_faults.py target/release/examples/store_worker            # the numbers of every run
    python3 tools/store_faults.py target/release/examples/store_worker --full     # those of a release
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Every check reads all of a store, which grows: after this many kills a new one is begun.
KILLS_OF_A_STORE = 100


class Broken(Exception):
    """A promise that was not kept."""


def said_by(process: subprocess.Popen[bytes]) -> list[str]:
    """Whole lines: a line that the end cut off was not said."""
    text = process.communicate()[0].decode()
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def check(worker: str, store: Path, said: list[str]) -> str:
    command = [worker, "check", str(store)]
    result = subprocess.run(command, check=False, input="".join(said), capture_output=True, text=True)
    if result.returncode != 0:
        raise Broken(result.stderr.strip())
    return result.stdout.strip()


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def kills(worker: str, folder: Path, n: int, moments: random.Random) -> str:
    """F1: killed at random moments of full, delta and background saves, deletions, gc and rebase."""
    store, said, n_saved = folder / "kills", [], 0
    for number in range(n):
        if number % KILLS_OF_A_STORE == 0:
            shutil.rmtree(store, ignore_errors=True)
            said = []
        process = start([worker, "work", str(store), str(number)])
        time.sleep(moments.uniform(0.0, 0.6))
        process.send_signal(signal.SIGKILL)
        said_now = said_by(process)
        said += said_now
        n_saved += sum(line.startswith("saved") for line in said_now)
        if process.returncode != -signal.SIGKILL:
            raise Broken(f"the worker ended by itself with {process.returncode}")
        try:
            check(worker, store, said)
        except Broken as error:
            raise Broken(f"after kill {number}: {error}") from error
        if number % 100 == 99:
            print(f"{number + 1} of {n} kills so far", file=sys.stderr, flush=True)
    return f"{n} kills: 0 lost, 0 torn; {n_saved} saves acknowledged"


def terminations(worker: str, folder: Path, n: int, moments: random.Random) -> str:
    """F18: told to end while saves are in the background, with a deadline of 2 s."""
    said_in_all, slowest = 0, 0.0
    for number in range(n):
        store = folder / f"term{number}"
        process = start([worker, "background", str(store)])
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.5))
        told = time.monotonic()
        process.send_signal(signal.SIGTERM)
        said = said_by(process)
        took = time.monotonic() - told
        slowest = max(slowest, took)
        if took > 2.5 + 1.0 or process.returncode != 0:
            raise Broken(f"termination {number}: took {took:.2f} s, exit code {process.returncode}")
        check(worker, store, said)
        said_in_all += len(said)
        shutil.rmtree(store, ignore_errors=True)
    return f"{n} terminations: the handles of {said_in_all} saves told the truth; the slowest end took {slowest:.2f} s"


def races(worker: str, folder: Path, n: int, n_saves: int, moments: random.Random) -> str:
    """F13: eight writers of the same keys, half of them killed."""
    n_saved = n_conflicts = 0
    for number in range(n):
        store = folder / f"race{number}"
        writers = [start([worker, "race", str(store), str(writer), str(n_saves)]) for writer in range(8)]
        victims = [writer for writer in writers if moments.random() < 0.5] if number % 2 else []
        for victim in victims:
            time.sleep(moments.uniform(0.0, 0.4))
            victim.send_signal(signal.SIGKILL)
        said = [line for writer in writers for line in said_by(writer)]
        for writer in writers:
            if writer.returncode not in (0, -signal.SIGKILL):
                raise Broken(f"race {number}: a writer failed with {writer.returncode}")
        try:
            check(worker, store, said)
        except Broken as error:
            raise Broken(f"race {number}: {error}") from error
        n_saved += sum(line.startswith("saved") for line in said)
        n_conflicts += sum(line.startswith("conflict") for line in said)
        shutil.rmtree(store, ignore_errors=True)
    return f"{n} races of 8 writers: {n_saved} saves won, {n_conflicts} were told of the conflict, 0 mixed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("worker", type=Path, help="the example `store_worker`")
    parser.add_argument("--full", action="store_true", help="1000 kills, 200 terminations, 20 races of 200 saves")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    moments = random.Random(options.seed)
    worker = str(options.worker.resolve())
    n_kills, n_terminations, n_races, n_saves = (1000, 200, 20, 200) if options.full else (50, 10, 2, 12)
    folder = Path(tempfile.mkdtemp(prefix="mithril-store-"))
    try:
        print(kills(worker, folder, n_kills, moments), flush=True)
        print(terminations(worker, folder, n_terminations, moments), flush=True)
        print(races(worker, folder, n_races, n_saves, moments), flush=True)
        return 0
    except Broken as error:
        print(f"broken: {error}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
