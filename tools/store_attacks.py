"""Kills and races the savers of a store, through the command and through Python, with tensors that return to earlier values.

After every kill all acknowledged saves must be there and load with their bytes, and the next save must be accepted. Prints
one line of totals per attack, and exits with 1 at the first broken promise.

    python3 tools/store_attacks.py kills target/release/mithril --python .venv/bin/python
    python3 tools/store_attacks.py kills target/release/mithril --python .venv/bin/python --full
    python3 tools/store_attacks.py race target/release/mithril --minutes 10
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

from attacking import (
    RACES,
    Broken,
    Store,
    read_safetensors,
    run,
    said,
    state,
    write_safetensors,
)

# Every check reads much of a store, which grows: after this many kills all of it is checked, and a new one is begun.
KILLS_OF_A_STORE = 50
RACERS = 4


def save(store: Store, key: str, step: int, previous: str | None, source: Path) -> list[object]:
    source.write_bytes(write_safetensors(state(step)))
    against = [] if previous is None else ["--previous", previous]
    return store.command("save", key, source, "--step", step, *against)


def python_saver(folder: Path, first: int, previous: str) -> None:
    """Saves one step after the other until it is killed; says what it was told is safe."""
    import numpy as np
    from mithril import checkpoint

    types = {"F32": np.float32, "I64": np.int64, "U8": np.uint8}
    compressor = checkpoint.Compressor(str(folder))
    before = previous or None
    for step in range(first, first + 1000):
        tensors = {
            # Each in memory of its own: arrays that share theirs are saved once.
            name: np.frombuffer(content, types[dtype]).reshape(shape).copy()
            for name, (dtype, shape, content) in state(step).items()
        }
        compressor.save(tensors, f"step_{step}", before, step=step)
        before = f"step_{step}"
        print(f"saved {step}", flush=True)


def kill(process: subprocess.Popen[str], seconds: float) -> tuple[str, bool]:
    """Kills after some time; returns what it said in whole lines, and whether it was at work."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    out, errors = process.communicate()
    if process.returncode not in (0, -signal.SIGKILL):
        raise Broken(f"refused without cause: {errors.strip()}")
    return "".join(line for line in out.splitlines(keepends=True) if line.endswith("\n")), process.returncode != 0


def kills(options: argparse.Namespace, folder: Path, moments: random.Random) -> str:
    """Saves are killed at random moments: by the command, by Python, in turn."""
    ends = time.monotonic() + options.minutes * 60
    source = folder / "model.safetensors"
    n_killed = n_acknowledged = number = step = 0
    store = Store(options.mithril, folder / "store")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    while n_killed < options.kills and time.monotonic() < ends:
        number += 1
        there = store.keys()
        previous = next((key for key in reversed(list(store.acknowledged)) if key in there), None)
        while f"step_{step}" in there:
            step += 1
        by_python = options.python is not None and number % 2 == 0
        if by_python:
            words = [options.python, __file__, "saver", store.folder, step, "--previous", previous or ""]
            process = subprocess.Popen([str(word) for word in words], **pipes)  # type: ignore[call-overload]
            # Most of its start is imports: the first word tells when it is at work.
            first = process.stdout.readline()
            out, was_killed = kill(process, moments.uniform(0.0, 0.15))
            steps = [int(line.split()[1]) for line in (first + out).splitlines()]
        else:
            words = save(store, f"step_{step}", step, previous, source)
            process = subprocess.Popen([str(word) for word in words], **pipes)  # type: ignore[call-overload]
            _, was_killed = kill(process, moments.uniform(0.0, options.seconds))
            steps = [] if was_killed else [step]
        n_killed += was_killed
        n_acknowledged += len(steps)
        for acknowledged in steps:
            store.acknowledged[f"step_{acknowledged}"] = (acknowledged, 0)
        step = max([step, *steps])
        keys = list(store.acknowledged)
        try:
            store.check({*keys[-1:], *moments.sample(keys, min(2, len(keys)))})
            if number % KILLS_OF_A_STORE == 0:
                store.check_all()
        except Broken as error:
            raise Broken(f"after kill {n_killed} (seed {options.seed}): {error}") from error
        if number % KILLS_OF_A_STORE == 0:
            shutil.rmtree(store.folder)
            store, step = Store(options.mithril, store.folder), 0
            print(f"{n_killed} kills so far", file=sys.stderr, flush=True)
    store.check_all()
    return (
        f"{n_killed} saves killed by command{' and Python' if options.python else ''}, {n_acknowledged} acknowledged: "
        "0 lost, 0 refused without cause, 0 wrong bytes, 0 left over"
    )


def racer(options: argparse.Namespace, folder: Path, writer: int) -> None:
    """Does this and that with a store until its time is up; says what it was told, and before it removes anything."""
    chance = random.Random(options.seed * 100 + writer)
    store = Store(options.mithril, folder / "store")
    source, out = folder / f"{writer}.safetensors", folder / f"{writer}.out"
    ends = time.monotonic() + options.minutes * 60
    step = 0
    while time.monotonic() < ends:
        there = store.keys()
        some = chance.choice(there) if there else None
        draw = chance.randrange(20)
        if draw < 9 or some is None:
            step += 1
            # Once in a while a key that others want, too.
            key = f"shared_{step}" if step % 4 == 0 else f"writer_{writer}_{step}"
            source.write_bytes(write_safetensors(state(step, writer)))
            against = ["--previous", chance.choice(there[-3:])] if there else []
            words = store.command("save", key, source, "--step", step, *against)
            line = f"saved {key} {step} {writer}"
        elif draw < 13:
            words, line = store.command("gc", "--min-age", 0), "gc"
        elif draw < 15:
            print(f"deleting {some}", flush=True)
            words, line = store.command("delete", some), "deleted"
        elif draw < 17:
            words, line = store.command("rebase", some), "rebased"
        else:
            words, line = store.command("load", some, "-o", out, "--force"), f"loaded {some}"
        result = run(*words)
        if result.returncode == 0:
            print(line, flush=True)
            if line.startswith("loaded"):
                tensors = read_safetensors(out.read_bytes())
                theirs = int.from_bytes(tensors["writer"][2], "little")
                if tensors != state(int(str(some).rsplit("_", 1)[1]), theirs):
                    raise Broken(f"`{some}` was loaded with wrong bytes")
        elif any(reason in said(result) for reason in RACES):
            print("conflict", flush=True)
        else:
            raise Broken(f"refused without cause: {words[3:5]}: {said(result)}")


def race(options: argparse.Namespace, folder: Path, _: random.Random) -> str:
    """Processes that know nothing of each other work on one store."""
    words = [sys.executable, __file__, "racer", options.mithril, "--minutes", options.minutes, "--seed", options.seed]
    with (folder / "errors").open("wb") as errors:
        racers = [
            subprocess.Popen(
                [str(word) for word in [*words, "--writer", writer, "--folder", folder]],
                stdout=subprocess.PIPE, stderr=errors, text=True,
            )
            for writer in range(RACERS)
        ]  # fmt: skip
        outs = [process.communicate()[0] for process in racers]
    if any(process.returncode != 0 for process in racers):
        raise Broken((folder / "errors").read_text().strip())
    lines = [line.split() for out in outs for line in out.splitlines()]
    store = Store(options.mithril, folder / "store")
    deleted = {line[1] for line in lines if line[0] == "deleting"}
    for line in lines:
        # What was deleted may have been saved again by another one.
        if line[0] == "saved" and line[1] not in deleted:
            if line[1] in store.acknowledged:
                raise Broken(f"`{line[1]}` was acknowledged to two writers")
            store.acknowledged[line[1]] = (int(line[2]), int(line[3]))
    store.check_all()
    n = {word: sum(line[0] == word for line in lines) for word in ("saved", "gc", "deleted", "rebased", "conflict")}
    return (
        f"{RACERS} processes for {options.minutes:g} minutes: {n['saved']} saves, {n['gc']} gc, {n['deleted']} deletions, "
        f"{n['rebased']} rebases, {n['conflict']} told of a conflict; {len(store.acknowledged)} there: 0 lost, 0 refused "
        "without cause, 0 wrong bytes, 0 left over"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attack", choices=["kills", "race", "saver", "racer"], help="the last two are started by the first")
    parser.add_argument("mithril", type=Path, help="the program")
    parser.add_argument("first", type=int, nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--python", type=Path, help="an interpreter that has mithril and numpy, to save from, too")
    parser.add_argument("--full", action="store_true", help="1000 kills, or 10 minutes of races")
    parser.add_argument("--kills", type=int, help="saves to kill at work")
    parser.add_argument("--minutes", type=float, help="ends after so long, whatever is done by then")
    parser.add_argument("--seconds", type=float, default=0.04, help="in which a save of the command is killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--previous", default="", help=argparse.SUPPRESS)
    parser.add_argument("--writer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.kills = options.kills or (1000 if options.full else 30)
    if options.attack == "saver":
        python_saver(options.mithril, options.first, options.previous)
        return 0
    options.mithril = options.mithril.resolve()
    if options.minutes is None:
        options.minutes = {"kills": 600.0}.get(options.attack, 10.0 if options.full else 0.2)
    try:
        if options.attack == "racer":
            racer(options, options.folder, options.writer)
            return 0
        folder = Path(tempfile.mkdtemp(prefix="mithril-attack-"))
        try:
            attack = {"kills": kills, "race": race}[options.attack]
            print(attack(options, folder, random.Random(options.seed)), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return 0
    except Broken as error:
        print(f"broken: {error}", file=sys.stderr if options.attack == "racer" else sys.stdout)
        return 1


if __name__ == "__main__":
    sys.exit(main())
