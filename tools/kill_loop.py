"""Kills `mithril compress` and `mithril decompress` at random moments, and looks at what they leave.

After every kill the destination must be absent, as it was before, or complete; the run after it must succeed and leave
no temporary file. Prints one line of totals, and exits with 1 at the first broken promise.

    python3 tools/kill_loop.py target/release/mithril model.safetensors --kills 200
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
from pathlib import Path


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run(arguments: list[str]) -> float:
    """Runs to the end; returns the seconds that took."""
    started = time.monotonic()
    subprocess.run(arguments, check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - started


def kill_after(arguments: list[str], seconds: float) -> bool:
    """Runs and kills after some time; returns whether it was still at work."""
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mithril", type=Path, help="the program")
    parser.add_argument("model", type=Path, help="a model file that takes some tenths of a second")
    parser.add_argument("--kills", type=int, default=200, help="runs to kill at work, half of each verb")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    moments = random.Random(options.seed)

    folder = Path(tempfile.mkdtemp(prefix="mithril-kill-"))
    try:
        source = folder / "model.safetensors"
        shutil.copyfile(options.model, source)
        packed = folder / "model.safetensors.mckp"
        restored = folder / "restored.safetensors"
        program = str(options.mithril)
        jobs = {
            "compress": ([program, "compress", str(source), "--threads", "2"], packed),
            "decompress": ([program, "decompress", str(packed), "-o", str(restored), "--threads", "2"], restored),
        }
        totals = {"killed": 0, "finished": 0, "absent": 0, "complete": 0, "old": 0, "leftovers": 0}
        for verb, (arguments, output) in jobs.items():
            duration = run(arguments)
            complete = digest(output)
            wanted, attempt = totals["killed"] + options.kills // 2, -1
            # Runs that finish before they are killed do not count.
            while totals["killed"] < wanted:
                attempt += 1
                # Every other time there is an old output, which must stay what it is until it is replaced.
                replace = attempt % 2 == 1
                if replace:
                    output.write_bytes(b"old")
                else:
                    output.unlink(missing_ok=True)
                command = [*arguments, "--force"] if replace else arguments
                was_killed = kill_after(command, moments.uniform(0.0, 1.05 * duration))
                totals["killed" if was_killed else "finished"] += 1
                if not output.exists():
                    state = "absent"
                elif output.read_bytes()[:4] == b"old":
                    state = "old"
                elif digest(output) == complete:
                    state = "complete"
                else:
                    print(f"{verb}: after kill {attempt} the destination is neither whole, old nor absent")
                    return 1
                if state == "absent" and replace:
                    print(f"{verb}: after kill {attempt} the old destination is gone")
                    return 1
                totals[state] += 1
                totals["leftovers"] += any(path.name.endswith(".tmp") for path in folder.iterdir())
                run([*arguments, "--force"])
                names = sorted(path.name for path in folder.iterdir())
                if digest(output) != complete or any(name.endswith(".tmp") for name in names):
                    print(f"{verb}: the run after kill {attempt} did not clean up: {names}")
                    return 1
        if digest(restored) != digest(source):
            print("the restored file is not the source")
            return 1
        print(
            f"{options.model.name}: {totals['killed']} runs killed at work, "
            f"{totals['finished']} finished first; destination absent {totals['absent']}, "
            f"old {totals['old']}, complete {totals['complete']}; "
            f"{totals['leftovers']} left a temporary file, all cleaned by the next run"
        )
        return 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
